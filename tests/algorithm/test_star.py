"""Star: one step from any root to everybody, or back; sums in rank order whatever the root."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from hccljax.algorithm import registered, run
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule import count

OPERATORS = ("broadcast", "reduce", "scatter", "gather")
STAR, GROUP, SUM = registered("star"), Group("r"), reduction("sum")


def on_ranks(operator, x, root, op=SUM, group=GROUP):
    return np.asarray(jax.jit(jax.vmap(lambda row: run(STAR, operator, row, group, op, root), axis_name="r"))(x))


@pytest.mark.parametrize("p", [1, 2, 3, 6])
def test_every_root(p):
    x = np.random.default_rng(p).permutation(p * p * 2).reshape(p, p, 2).astype(np.int32)
    for root in range(p):
        np.testing.assert_array_equal(on_ranks("broadcast", x, root), np.broadcast_to(x[root], x.shape))
        np.testing.assert_array_equal(on_ranks("reduce", x, root)[root], x.sum(0))
        np.testing.assert_array_equal(on_ranks("scatter", x, root), x[root])
        np.testing.assert_array_equal(on_ranks("gather", x, root)[root], x)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("root", [0, 4])
def test_all_messages_have_the_root_at_one_end_and_travel_at_once(operator, root):
    p, x = 5, jax.ShapeDtypeStruct((5, 8), np.float32)

    def fn(row):
        return run(STAR, operator, row, GROUP, SUM, root)

    counts = count(fn, x, axis_sizes={"r": p})
    assert (counts.steps, counts.permutes, counts.exchanges) == (1, p - 1, 0)
    assert counts.rounds == p - 1  # the root has one port if the ports are counted
    text = str(jax.make_jaxpr(fn, axis_env=[("r", p)])(x))
    others = [r for r in range(p) if r != root]
    ends = [f"Pairs({root}→{r})" if operator in ("broadcast", "scatter") else f"Pairs({r}→{root})" for r in others]
    assert all(text.count(end) == 1 for end in ends)


def test_formulas_of_one_rank():
    assert all(STAR.steps(operator, 1, 64) == STAR.bytes_sent(operator, 1, 64) == 0 for operator in OPERATORS)


def test_sums_have_the_same_bits_at_every_root():
    x = np.random.default_rng(0).standard_normal((7, 11)).astype(np.float32)
    wanted = x[0]
    for row in x[1:]:
        wanted = wanted + row
    for root in (0, 3, 6):
        assert on_ranks("reduce", x, root)[root].tobytes() == wanted.tobytes()


def test_zero_is_not_taken_for_a_contribution():
    x = -np.arange(1, 6, dtype=np.int32)[:, None]
    assert on_ranks("reduce", x, 2, reduction("max"))[2] == -1
    assert on_ranks("reduce", x, 2, reduction("prod"))[2] == -120


def test_two_stars_at_the_same_time():
    x, groups = np.arange(6, dtype=np.int32), [[5, 0, 2], [1, 4, 3]]
    out = on_ranks("broadcast", x, 1, group=Group("r", groups))
    np.testing.assert_array_equal(out, [0, 4, 0, 4, 4, 0])
