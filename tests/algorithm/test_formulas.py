"""The formulas of every algorithm against what its kernels communicate, by tracing them."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import hccljax
from hccljax.algorithm import hierarchy, registered, run
from hccljax.algorithm.base import OPERATORS
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule import count

RANKS = [*range(2, 18), 31, 32, 33, 64]
SEGMENTED = [2, 5, 8, 17, 32]  # of the double tree: 32 segments take long to count
PAIRS = [
    (name, operator)
    for name in hccljax.algorithms()
    if name != "hierarchical"
    for operator in OPERATORS
    if registered(name).supports(operator)
]
ROOTED = ("broadcast", "reduce", "scatter", "gather")
BLOCK = 64
"""Elements of a block: with p ranks, p · 64 elements can be cut into p, into 2 and into any power of two up to 64."""
LONG = 1 << 19
"""Elements of a block whose messages are above every size at which an algorithm changes its form; nothing runs."""


def counted(algorithm, operator, p, group, block=BLOCK):
    shape = {
        "all_gather": (block,), "gather": (block,),
        "reduce_scatter": (p, block), "scatter": (p, block), "all_to_all": (p, block),
    }.get(operator, (p * block,))  # fmt: skip
    x = jax.ShapeDtypeStruct(shape, np.float32)
    return count(lambda x: run(algorithm, operator, x, group, reduction("sum")), x, axis_sizes={"r": p})


@pytest.mark.parametrize("block", [BLOCK, LONG])
@pytest.mark.parametrize(("name", "operator"), PAIRS)
def test_steps_and_bytes(name, operator, block):
    algorithm = registered(name)
    for p in SEGMENTED if (name, block) == ("double_tree", LONG) else RANKS:
        counts, nbytes = counted(algorithm, operator, p, Group("r"), block), 4 * p * block
        assert counts.steps == algorithm.steps(operator, p, nbytes), p
        if name != "native":  # what XLA sends is not visible
            assert counts.bytes_sent == algorithm.bytes_sent(operator, p, nbytes), p


@pytest.mark.parametrize(("name", "operator"), [pair for pair in PAIRS if pair[1] in ROOTED])
def test_a_root_changes_no_count(name, operator):
    algorithm, group = registered(name), Group("r")
    x = jax.ShapeDtypeStruct((6, 8) if operator == "scatter" else (48,), np.float32)
    counts = [
        count(lambda x, root=root: run(algorithm, operator, x, group, reduction("sum"), root), x, axis_sizes={"r": 6})
        for root in (0, 1, 5)
    ]
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("sizes", [(4, 2), (2, 2, 4), (3, 5)])
@pytest.mark.parametrize(
    "names", [("ring", "tree"), ("ring", "H-D_R"), ("tree", "H-D_R"), ("mesh", "ring"), ("pairwise", "mesh")]
)
def test_steps_of_a_hierarchy(names, sizes):
    levels = tuple(registered(names[min(k, 1)]) for k in range(len(sizes)))
    algorithm, p = hierarchy(levels, sizes), int(np.prod(sizes))
    operators = [operator for operator in OPERATORS if algorithm.has(operator)]
    for operator in operators:
        counts = counted(algorithm, operator, p, Group("r", levels=sizes))
        assert counts.steps == algorithm.steps(operator, p, 4 * p * BLOCK), operator
    assert len(operators) == {"tree": 3, "H-D_R": 3 if names[0] == "tree" else 7, "ring": 7, "mesh": 1}[names[1]]
