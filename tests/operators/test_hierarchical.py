"""Hierarchies: every pair of level algorithms, every operator, results in rank order."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import hccljax
from hccljax.algorithm import hierarchy, registered, run
from hccljax.algorithm.base import OPERATORS
from hccljax.group import Group
from hccljax.reduction import reduction

LEVELS = ["ring", "tree", "double_tree", "H-D_R", "mesh"]
PAIRS = [*product(LEVELS, LEVELS), ("pairwise", "pairwise"), ("mesh", "pairwise"), ("pairwise", "mesh")]
PAIRS += [("NHR", "NB"), ("ring", "NHR"), ("NB", "tree"), ("bruck", "bruck")]


def operands(operators, p, ranks):
    """One operand an operator; all numbers in it differ, so that a block out of order shows."""
    x = []
    for operator in operators:
        shape = ranks.rows_of(operator, p, (3,))
        x.append(np.random.default_rng(p).permutation(np.prod(shape)).reshape(shape).astype(np.int32))
    return x


def checked(ranks, fn, operators, p, root, execute):
    x = operands(operators, p, ranks)
    out = execute(lambda rows: [fn(operator, row, root) for operator, row in zip(operators, rows, strict=True)], x)
    for operator, operand, actual in zip(operators, x, out, strict=True):
        if operator in ("reduce", "gather"):
            actual = np.where((np.arange(p) == root).reshape(p, *[1] * (actual.ndim - 1)), actual, 0)
        ranks.same(actual.astype(np.int32), ranks.expected(operator, operand, root=root), operator)


@pytest.mark.parametrize("sizes", [(4, 2), (5, 3)], ids=["2x4", "3x5"])
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_every_pair_of_algorithms(names, sizes, ranks):
    algorithm, group = hierarchy(tuple(map(registered, names)), sizes), Group(ranks.axis, levels=sizes)
    p, turn = sizes[0] * sizes[1], PAIRS.index(names)
    operators = [operator for operator in OPERATORS if algorithm.has(operator)]
    assert operators == ["all_to_all"] or set(operators) >= {"all_reduce", "broadcast"}
    if sizes == (5, 3):  # every other operator: compiling is what takes the time
        operators = operators[turn % 2 :: 2] or operators

    def fn(operator, row, root):
        return run(algorithm, operator, row, group, reduction("sum"), root)

    root = (0, 1, p - 1)[turn % 3]
    checked(ranks, fn, operators, p, root, ranks.virtual)


@pytest.mark.parametrize("root", [0, 1, 15])
@pytest.mark.parametrize("names", [("ring", "mesh", "ring"), ("mesh", "ring", "mesh")], ids="-".join)
def test_three_tiers(names, root, ranks):
    operators = ["broadcast", "reduce", "scatter", "gather"] + ["all_reduce", "all_gather", "reduce_scatter"] * (
        not root
    )
    text = ";".join(f"level{k}:{name}" for k, name in enumerate(names))

    def fn(operator, row, root):
        return ranks.call(operator, row, root=root, algorithm=text, topology="2x2x4")

    checked(ranks, fn, operators, 16, root, ranks.virtual)


def test_all_to_all_on_three_tiers(ranks):
    def fn(operator, row, root):
        return ranks.call(operator, row, algorithm="hierarchical", topology="2x3x2")

    checked(ranks, fn, ["all_to_all"], 12, 0, ranks.virtual)


@pytest.mark.parametrize("root", [0, 1, 7])
@pytest.mark.parametrize("text", ["level0:ring;level1:tree", "level0:mesh;level1:H-D_R"])
def test_on_devices(text, root, ranks):
    operators = ["broadcast", "reduce"] + ["all_reduce"] * (root == 1)
    if text == "level0:mesh;level1:H-D_R" and root == 0:
        operators += ["all_gather", "reduce_scatter"]

    def fn(operator, row, root):
        return ranks.call(operator, row, root=root, algorithm=text, topology="2x4")

    checked(ranks, fn, operators, 8, root, lambda fn, x: ranks.devices(fn, x, 8))


def test_devices_and_virtual_ranks_agree_to_the_last_bit(ranks):
    x = {dtype: np.random.default_rng(0).standard_normal((8, 9)).astype(dtype) for dtype in ("float32", "float16")}

    def fn(rows):
        return {
            dtype: ranks.call("all_reduce", row, algorithm="level0:ring;level1:H-D_R", topology="4x2")
            for dtype, row in rows.items()
        }

    on_devices, on_one = ranks.devices(fn, x, 8), ranks.virtual(fn, x)
    for dtype in x:
        ranks.same_bits(on_devices[dtype], on_one[dtype], dtype)


def test_a_group_has_its_own_tiers(ranks):
    x = np.arange(24, dtype=np.int32).reshape(12, 2)
    groups = [[0, 2, 4, 6, 8, 10], [11, 9, 7, 5, 3, 1]]
    group = Group(ranks.axis, groups, levels=(3, 2))
    assert hccljax.explain("all_reduce", 8, group, "2x3", "level0:ring;level1:tree").tiers == (3, 2)
    out = ranks.virtual(
        lambda row: [
            ranks.call("all_reduce", row, axis=group, algorithm="level0:ring;level1:tree"),
            ranks.call("all_gather", row, axis=group, algorithm="level0:ring;level1:mesh"),
        ],
        x,
    )
    for members in groups:
        ranks.same(out[0][members], ranks.expected("all_reduce", x[members]))
        ranks.same(out[1][members], ranks.expected("all_gather", x[members]))


def test_an_empty_message(ranks):
    x = np.zeros((8, 0, 3), np.float32)
    for operator in ("all_reduce", "all_gather", "broadcast", "gather", "reduce"):
        out = ranks.virtual(
            lambda row, operator=operator: ranks.call(
                operator, row, algorithm="level0:ring;level1:ring", topology="2x4"
            ),
            x,
        )
        ranks.same(out, ranks.expected(operator, x), operator)
