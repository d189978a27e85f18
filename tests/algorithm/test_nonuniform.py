"""NHR and NB: the order of the places, both forms of each operator at the sizes where they change, who meets whom."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax

from hccljax.algorithm import nb, nhr, registered, run
from hccljax.algorithm.nonuniform import order
from hccljax.group import Group
from hccljax.reduction import Reduction, reduction
from hccljax.schedule import count

GROUP, SUM = Group("r"), reduction("sum")
LIMITS = [
    ("NHR", "all_reduce", nhr.LIMITS["all_reduce"]),
    ("NHR", "broadcast", nhr.LIMITS["broadcast"]),
    ("NB", "all_reduce", nb.LIMITS["all_reduce"]),
]


@pytest.mark.parametrize("n", range(1, 66))
def test_every_step_sends_one_end_of_the_order_and_keeps_the_other(n):
    places = np.array(order(n))
    assert sorted(places) == list(range(n))
    assert places[-1] == n - 1
    while len(places) > 1:
        pairs = len(places) // 2
        sent, kept = (places[:pairs], places[pairs:]) if len(places) % 2 else (places[pairs:], places[:pairs])
        assert (sent == kept[:pairs] + 1).all()
        places = kept // 2


def on_ranks(name, operator, x, op=SUM, root=0):
    """The operator of an algorithm on x [p, …] → [p, …]."""
    return np.asarray(
        jax.jit(jax.vmap(lambda row: run(registered(name), operator, row, GROUP, op, root), axis_name="r"))(x)
    )


@pytest.mark.parametrize("p", [5, 6, 8])
@pytest.mark.parametrize(("name", "operator", "limit"), LIMITS)
def test_both_forms_are_right_on_their_side_of_the_limit(name, operator, limit, p):
    algorithm = registered(name)
    for elements in (limit // 4, limit // 4 // p * p + p):  # the second is the next one that p divides
        x = np.random.default_rng(p).integers(-99, 99, (p, elements)).astype(np.int32)
        root = p - 2
        wanted = x.sum(0) if operator == "all_reduce" else x[root]
        np.testing.assert_array_equal(on_ranks(name, operator, x, root=root), np.broadcast_to(wanted, x.shape))
        counts = count(lambda row: run(algorithm, operator, row, GROUP, SUM), x[0], axis_sizes={"r": p})
        assert counts.steps == algorithm.steps(operator, p, 4 * elements)
        assert counts.bytes_sent == algorithm.bytes_sent(operator, p, 4 * elements)
        # Cut, the busiest rank sends less than 2 messages; uncut, the root sends one on each level.
        assert (counts.bytes_sent < 2 * 4 * elements) == (4 * elements > limit)


@pytest.mark.parametrize("name", ["NHR", "NB", "bruck"])
def test_one_rank_sends_nothing(name):
    algorithm = registered(name)
    for operator in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "scatter", "all_to_all"):
        if algorithm.supports(operator):
            for nbytes in (4, 1 << 30):
                assert (algorithm.steps(operator, 1, nbytes), algorithm.bytes_sent(operator, 1, nbytes)) == (0, 0)


def meet(values, combine):
    """Neighbours meet, then neighbouring pairs, …; who has no partner waits."""
    while len(values) > 1:
        pairs = [combine(*values[i : i + 2]) for i in range(0, len(values) - 1, 2)]
        values = [*pairs, *values[2 * len(pairs) :]]
    return values[0]


@pytest.mark.parametrize("p", [3, 5, 6, 7, 8, 12])
@pytest.mark.parametrize(("name", "direction"), [("NHR", 1), ("NB", -1)])
def test_contributions_meet_in_the_order_that_the_record_says(name, direction, p):
    def combine(left, right):
        return 3 * left + 5 * right  # neither associative nor commutative

    op = Reduction("ordered", lambda left, right: lax.add(3 * left, 5 * right))
    x = np.random.default_rng(p).integers(-9, 9, (p, p, 2)).astype(np.int32)
    wanted = [meet([x[(b + direction * i) % p, b] for i in range(p)], combine) for b in range(p)]
    np.testing.assert_array_equal(on_ranks(name, "reduce_scatter", x, op), wanted)
