"""The two trees: complementary, as shallow as can be, in rounds without collisions; and their segments."""

from __future__ import annotations

import sys

import jax
import numpy as np
import pytest

from hccljax.algorithm import registered, run
from hccljax.algorithm.double_tree_plan import first_tree, plan, rounds_of, second_tree
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule import count

RANKS = range(2, 65)
double_tree = sys.modules["hccljax.algorithm.double_tree"]


def inner(parents):
    return {parent for parent in parents if parent >= 0}


def depths(parents):
    """Edges between each rank and the root; a cycle would not end in the root within p of them."""

    def to_root(rank, hops=0):
        assert hops <= len(parents)
        return hops if parents[rank] < 0 else to_root(parents[rank], hops + 1)

    return [to_root(rank) for rank in range(len(parents))]


@pytest.mark.parametrize("p", RANKS)
def test_each_is_one_binary_tree_of_all_ranks_and_of_least_depth(p):
    for parents in (first_tree(p), second_tree(p)):
        assert parents.count(-1) == 1
        assert max(depths(parents)) == (p - 1).bit_length()
        assert max(np.bincount([parent for parent in parents if parent >= 0])) <= 2
    assert first_tree(p)[0] == -1
    assert plan(p).second_root == second_tree(p).index(-1)
    assert plan(p).depth == (p - 1).bit_length()


@pytest.mark.parametrize("p", RANKS)
def test_inner_nodes_are_complementary(p):
    first, second = inner(first_tree(p)), inner(second_tree(p))
    assert first | second == set(range(p))
    assert first & second == (set() if p % 2 == 0 else {0})


@pytest.mark.parametrize("p", RANKS)
def test_rounds_hold_every_edge_once_and_no_rank_twice(p):
    for flow, upwards in ((plan(p).up, True), (plan(p).down, False)):
        for edges in flow.rounds:
            assert len({edge.source for edge in edges}) == len(edges)
            assert len({edge.destination for edge in edges}) == len(edges)
        assert 1 <= len(flow.rounds) <= (2 if p % 2 == 0 else 3)
        moves = [(edge.tree, edge.source, edge.destination) for edges in flow.rounds for edge in edges]
        trees = enumerate((first_tree(p), second_tree(p)))
        wanted = [(tree, rank, parent) for tree, parents in trees for rank, parent in enumerate(parents) if parent >= 0]
        assert sorted(moves) == sorted(wanted if upwards else [(tree, d, s) for tree, s, d in wanted])


@pytest.mark.parametrize("p", RANKS)
def test_edges_at_one_depth_wait_for_the_depth_before(p):
    up, down = plan(p).up, plan(p).down
    assert list(up.starts[1:]) == list(range(plan(p).depth - 1, -1, -1))
    assert list(down.starts[1:]) == list(range(plan(p).depth))
    for tree, parents in enumerate((first_tree(p), second_tree(p))):
        for rank, depth in enumerate(depths(parents)):
            assert up.first_tick[tree, rank] == plan(p).depth - depth
            assert down.first_tick[tree, rank] == depth


def test_as_many_rounds_as_the_busiest_end_has_edges():
    edges = [edge for one in plan(37).up.rounds for edge in one]
    busiest = max(np.bincount([edge.source for edge in edges]).max(), np.bincount([e.destination for e in edges]).max())
    assert len(rounds_of(edges[::-1])) == busiest


def test_segments_by_size(monkeypatch):
    monkeypatch.setattr(double_tree, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(double_tree, "MOST_SEGMENTS", 16)
    assert [double_tree.segments(n) for n in (0, 1, 399, 400, 600, 100_000)] == [1, 1, 1, 2, 3, 16]


@pytest.mark.parametrize(("p", "count_of_segments"), [(2, 3), (3, 16), (4, 7), (5, 2), (8, 3), (8, 16), (11, 4)])
def test_a_segmented_message_is_reduced_and_spread(monkeypatch, p, count_of_segments):
    elements = 8 * count_of_segments + 3  # the last segments are shorter than the others
    monkeypatch.setattr(double_tree, "SEGMENT_BYTES", 16)
    monkeypatch.setattr(double_tree, "MOST_SEGMENTS", 16)
    assert double_tree.segments(4 * elements) == count_of_segments
    x = np.random.default_rng(p).integers(-99, 99, (p, elements)).astype(np.int32)
    total = x.sum(0)
    root, group = p - 1, Group("r")

    def fn(row):
        return {
            operator: run(registered("double_tree"), operator, row, group, reduction("sum"), root)
            for operator in ("all_reduce", "reduce", "broadcast")
        }

    out = jax.jit(jax.vmap(fn, axis_name="r"))(x)
    np.testing.assert_array_equal(out["all_reduce"], np.broadcast_to(total, x.shape))
    np.testing.assert_array_equal(out["reduce"][root], total)
    np.testing.assert_array_equal(out["broadcast"], np.broadcast_to(x[root], x.shape))


@pytest.mark.parametrize("p", [2, 3, 8, 9])
@pytest.mark.parametrize("operator", ["all_reduce", "reduce", "broadcast"])
def test_every_further_segment_costs_one_step_a_pass(p, operator):
    group, depth = Group("r"), (p - 1).bit_length()
    for segments in (1, 2, 5, 16):
        x = jax.ShapeDtypeStruct((segments * 2 * double_tree.SEGMENT_BYTES // 4,), np.float32)

        def fn(row):
            return run(registered("double_tree"), operator, row, group, reduction("sum"))

        one_way = depth + segments - 1
        steps = count(fn, x, axis_sizes={"r": p}).steps
        assert steps == (2 * one_way if operator == "all_reduce" else one_way + 1)
        assert steps == registered("double_tree").steps(operator, p, 4 * x.size)
