"""Up to 64 ranks on one device: every number of ranks for every algorithm, every operator at the awkward numbers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from hccljax.algorithm import algorithms, registered, run
from hccljax.algorithm.base import OPERATORS
from hccljax.group import Group
from hccljax.reduction import reduction

# all_reduce of the double tree takes longest to compile; its way down is its way up turned round (broadcast, below).
MAIN = {"double_tree": "reduce", "star": "reduce"}
REDUCING = [
    name for name in algorithms() if registered(name).supports("reduce") or registered(name).supports("all_reduce")
]
AWKWARD = [9, 12, 16, 17, 31, 33, 63, 64]


def turns(names, numbers, each):
    """(name, number): ``each`` of the numbers for every name, taking turns, so that every number has its names."""
    return [(name, numbers[(i + k * len(names)) % len(numbers)]) for i, name in enumerate(names) for k in range(each)]


# Proofs cover every number of ranks of every algorithm; compiled programs take turns. test_devices has those up to 8.
@pytest.mark.parametrize(("name", "p"), [(REDUCING[p % len(REDUCING)], p) for p in range(9, 65)])
def test_every_number_of_ranks(name, p, ranks):
    operator, group = MAIN.get(name, "all_reduce"), Group(ranks.axis)
    x = np.random.default_rng(p).integers(-99, 99, (p, 3)).astype(np.int32)
    out = ranks.virtual(lambda row: run(registered(name), operator, row, group, reduction("sum")), x)
    if operator == "reduce":
        ranks.same(out[0], x.sum(0, dtype=np.int32))
    else:
        ranks.same(out, ranks.expected(operator, x))


def all_calls(algorithm, p, ranks):
    """Every operator with the roots that matter and ops in turn: (operator, op, root)."""
    ops = ("sum", "max") if algorithm == "native" else ("sum", "max", "prod", "min")
    calls = []
    for i, operator in enumerate(OPERATORS):
        if not registered(algorithm).supports(operator):
            continue
        roots = (0, 1, p - 1) if operator in ranks.rooted and p == 12 else ((0, 1, p - 1)[p % 3],)
        for k, root in enumerate(roots):
            op = "sum" if algorithm == "native" and operator == "reduce_scatter" else ops[(p + i + k) % len(ops)]
            calls.append((operator, op, root))
    return calls


@pytest.mark.parametrize(("algorithm", "p"), turns(REDUCING, AWKWARD, 3))
def test_every_operator(algorithm, p, ranks):
    rng = np.random.default_rng(p)
    calls = all_calls(algorithm, p, ranks)
    x = [rng.integers(-2, 3, ranks.rows_of(operator, p, (2,))).astype(np.int32) for operator, _, _ in calls]

    def fn(rows):
        return [
            ranks.call(operator, row, op, root, algorithm=algorithm)
            for row, (operator, op, root) in zip(rows, calls, strict=True)
        ]

    out = ranks.virtual(fn, x)
    for actual, operand, (operator, op, root) in zip(out, x, calls, strict=True):
        ranks.same(actual, ranks.expected(operator, operand, op, root), (operator, op, root))


# A step of pairwise takes 0.06 s to compile and there are p - 1.
@pytest.mark.parametrize("p", [*range(1, 10), 12, 16, 17, 33, 64])
@pytest.mark.parametrize("algorithm", ["pairwise", "bruck"])
def test_all_to_all(algorithm, p, ranks):
    x = np.arange(p * p * 2, dtype=np.int32).reshape(p, p, 2)
    out = ranks.virtual(lambda row: ranks.call("all_to_all", row, algorithm=algorithm), x)
    ranks.same(out, ranks.expected("all_to_all", x))


@pytest.mark.parametrize("algorithm", ["ring", "tree", "H-D_R", "mesh"])
def test_more_ranks_than_unrolled_additions(algorithm, ranks):
    x = np.random.default_rng(0).integers(-99, 99, (100, 101)).astype(np.int32)
    ranks.same(
        ranks.virtual(lambda row: ranks.call("all_reduce", row, algorithm=algorithm), x),
        ranks.fold("sum", x)[None].repeat(100, 0),
    )


def test_results_that_are_the_same_everywhere_leave_vmap_unmapped(ranks):
    x = np.arange(12, dtype=np.int32).reshape(6, 2)

    def fn(row):
        return [ranks.call(operator, row, root=2) for operator in ("all_reduce", "broadcast", "all_gather")]

    out = jax.vmap(fn, axis_name=ranks.axis, out_axes=None)(x)
    for actual, wanted in zip(out, (x.sum(0), x[2], x), strict=True):
        np.testing.assert_array_equal(actual, wanted)
