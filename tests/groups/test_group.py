"""What a Group says to its ranks, against NumPy: on devices, checked and unchecked, and on virtual ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccljax
from hccljax import ArgumentError, Group

P = 8
X = np.arange(1, P * 3 + 1, dtype=np.int32).reshape(P, 3)
BLOCKS = np.arange(1, P * P + 1, dtype=np.int32).reshape(P, P)
PARTITIONS = {
    "whole": [list(range(P))],
    "turned": [[3, 1, 4, 0, 5, 7, 2, 6]],
    "halves": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "stripes": [[0, 2, 4, 6], [1, 3, 5, 7]],
    "crossed": [[6, 0, 3, 5], [1, 7, 2, 4]],
    "pairs": [[7, 0], [6, 1], [5, 2], [4, 3]],
    "alone": [[r] for r in range(P)],
}


def permuted(x, groups, pairs):
    """out[d] = x[s] for each pair in each group, zeros elsewhere."""
    out = np.zeros_like(x)
    for group in groups:
        for s, d in pairs:
            out[group[d]] = x[group[s]]
    return out


def placed(groups):
    """(group of each rank, rank inside it)."""
    return {rank: (group, group.index(rank)) for group in groups for rank in group}


@pytest.mark.parametrize("name", PARTITIONS)
def test_everything_a_group_sends_stays_in_its_communicators(on_ranks, name):
    groups = PARTITIONS[name]
    group, p = Group("rank", groups), len(groups[0])
    pairs = [(s, (s * 3 + 1) % p) for s in range(0, p, 2)] if p > 1 else []
    if len({d for _, d in pairs}) < len(pairs):
        pairs = pairs[:1]

    def body(x):
        blocks = x[:p]
        return {
            "size": jnp.int32(group.size),
            "rank": group.rank,
            "permute": group.permute(x, pairs),
            "shift": group.shift(x, 1),
            "back": group.shift(x, -3),
            "exchange": group.exchange(x, 1),
            "mesh_exchange": group.mesh_exchange(blocks),
            "mesh_gather": group.mesh_gather(blocks),
        }

    out = on_ranks(body, BLOCKS)
    np.testing.assert_array_equal(out["size"], [p] * P)
    for rank, (members, place) in placed(groups).items():
        assert out["rank"][rank] == place
        np.testing.assert_array_equal(out["mesh_gather"][rank], BLOCKS[members, :p])
        np.testing.assert_array_equal(out["mesh_exchange"][rank], BLOCKS[members, place])
    np.testing.assert_array_equal(out["permute"], permuted(BLOCKS, groups, pairs))
    np.testing.assert_array_equal(out["shift"], permuted(BLOCKS, groups, [(r, (r + 1) % p) for r in range(p)]))
    np.testing.assert_array_equal(out["back"], permuted(BLOCKS, groups, [(r, (r - 3) % p) for r in range(p)]))
    swaps = [(r, r ^ 1) for r in range(p) if r ^ 1 < p]
    np.testing.assert_array_equal(out["exchange"], permuted(BLOCKS, groups, swaps))


def test_levels_join_the_ranks_that_differ_in_one_coordinate(virtual):
    # 24 ranks: 3 super pods of 2 servers of 4, inner coordinate first.
    group, ranks = Group("rank", levels=(4, 2, 3)), np.arange(24).reshape(3, 2, 4)

    def body(x):
        parts = [group.level(0), group.level(1), group.level(2), group.above(), group.above().level(1)]
        return [(jnp.int32(part.size), part.rank, part.mesh_gather(x)) for part in parts]

    inside, servers, pods, above, above_pods = virtual(body, np.arange(24))
    for pod, server, place in np.ndindex(3, 2, 4):
        rank = ranks[pod, server, place]
        for (size, own, members), expected, coordinate in (
            (inside, ranks[pod, server, :], place),
            (servers, ranks[pod, :, place], server),
            (pods, ranks[:, server, place], pod),
            (above, ranks[:, :, place].reshape(-1), pod * 2 + server),
            (above_pods, ranks[:, server, place], pod),
        ):
            assert (size[rank], own[rank]) == (len(expected), coordinate)
            np.testing.assert_array_equal(members[rank], expected)


def test_levels_of_a_partition_stay_inside_it(on_ranks):
    group = Group("rank", PARTITIONS["crossed"], levels=(2, 2))
    inside, above = on_ranks(lambda x: (group.level(0).mesh_gather(x), group.level(1).mesh_gather(x)), X)
    for rank, (members, place) in placed(PARTITIONS["crossed"]).items():
        server, seat = divmod(place, 2)
        np.testing.assert_array_equal(inside[rank], X[[members[2 * server], members[2 * server + 1]]])
        np.testing.assert_array_equal(above[rank], X[[members[seat], members[seat + 2]]])


def test_tiers_must_multiply_to_the_size():
    flat = Group("rank", [range(4)])
    assert flat.with_levels((2, 2)).levels == (2, 2)
    assert flat.with_levels((2, 2)).with_levels(None) == flat
    with pytest.raises(ArgumentError, match="topology 3x2 has 6 ranks, but the group has 4"):
        flat.with_levels((2, 3))


def test_a_partition_is_split_turned_and_tiered_without_a_mapped_axis():
    # Everything is known from the groups, so a program can make its groups before it maps anything.
    halves = Group("rank", [[4, 5, 6, 7], [3, 2, 1, 0]])
    assert halves.split([[0, 2], [3, 1]]) == Group("rank", [[4, 6], [7, 5], [3, 1], [0, 2]])
    assert halves.rotated(1) == Group("rank", [[5, 6, 7, 4], [2, 1, 0, 3]])
    assert halves.level(0) == halves
    assert halves.with_levels((2, 2)).level(1) == Group("rank", [[4, 6], [5, 7], [3, 1], [2, 0]])
    assert halves.is_whole is False


def test_split_counts_ranks_inside_each_communicator(on_ranks):
    halves = Group("rank", [[4, 5, 6, 7], [3, 2, 1, 0]])
    total = on_ranks(lambda x: hccljax.all_reduce(x, halves.split([[0, 2], [3, 1]])), X)
    for members in ([4, 6], [7, 5], [3, 1], [0, 2]):
        np.testing.assert_array_equal(total[members], np.broadcast_to(X[members].sum(0), (2, 3)))


def test_split_of_a_whole_axis_is_a_partition_of_it(virtual):
    seen = []

    def body(x):
        seen.append(Group("rank").split([[0, 3], [2, 1]]))
        return seen[0].rank

    np.testing.assert_array_equal(virtual(body, np.arange(4)), [0, 1, 0, 1])
    assert seen[0] == Group("rank", [[0, 3], [2, 1]])


@pytest.mark.parametrize("root", range(4))
def test_rotated_counts_from_the_root(on_ranks, root):
    groups = PARTITIONS["crossed"]
    group = Group("rank", groups)
    turned = [members[root:] + members[:root] for members in groups]
    rank, sent = on_ranks(lambda x: (group.rotated(root).rank, group.rotated(root).permute(x, [(0, 3)])), X)
    for members in turned:
        np.testing.assert_array_equal(rank[members], range(4))
    np.testing.assert_array_equal(sent, permuted(X, turned, [(0, 3)]))


def test_groups_are_equal_by_value_and_hashable():
    one = Group("rank", [[0, 1], [2, 3]], levels=(2,))
    same = Group(("rank",), np.array([[0, 1], [2, 3]]), levels=[np.int64(2)])
    assert one == same
    assert hash(one) == hash(same)
    different = [Group("rank"), Group("rank", [[0, 1], [2, 3]]), Group("rank", [[0, 1], [3, 2]], levels=(2,))]
    assert len({one, same, *different, Group("other", [[0, 1], [2, 3]], levels=(2,))}) == 5


def test_a_group_over_two_axes_counts_in_the_order_given():
    rows = np.arange(12).reshape(3, 4)

    def body(x):
        inner_fast, inner_slow = Group(("node", "rank")), Group(("rank", "node"))
        return inner_fast.rank, inner_slow.rank, inner_fast.shift(x, 1), inner_slow.shift(x, 1)

    mapped = jax.vmap(jax.vmap(body, axis_name="rank"), axis_name="node")
    fast, slow, along, across = map(np.asarray, jax.jit(mapped)(rows))
    np.testing.assert_array_equal(fast, rows)
    np.testing.assert_array_equal(slow, np.arange(12).reshape(4, 3).T)
    np.testing.assert_array_equal(along, np.roll(rows.reshape(-1), 1).reshape(3, 4))
    np.testing.assert_array_equal(across, np.roll(rows.T.reshape(-1), 1).reshape(4, 3).T)


@st.composite
def partitions(draw, n=12):
    """(groups of equal size that cover n ranks in any order, pairs among their ranks)."""
    order, p = draw(st.permutations(range(n))), draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    sources, targets = draw(st.permutations(range(p))), draw(st.permutations(range(p)))
    kept = draw(st.integers(0, p))
    return [list(order[i : i + p]) for i in range(0, n, p)], list(zip(sources, targets, strict=True))[:kept]


@settings(deadline=None, max_examples=15)
@given(partitions(), st.integers(-30, 30), st.integers(0, 15))
def test_any_partition_sends_inside_its_communicators(partition, k, mask):
    groups, pairs = partition
    group, p, x = Group("rank", groups), len(groups[0]), np.arange(1, 13)

    def body(x):
        return group.permute(x, pairs), group.shift(x, k), group.exchange(x, mask), group.mesh_gather(x)

    sent, shifted, exchanged, gathered = map(np.asarray, jax.vmap(body, axis_name="rank")(x))
    np.testing.assert_array_equal(sent, permuted(x, groups, pairs))
    np.testing.assert_array_equal(shifted, permuted(x, groups, [(r, (r + k) % p) for r in range(p)]))
    np.testing.assert_array_equal(exchanged, permuted(x, groups, [(r, r ^ mask) for r in range(p) if r ^ mask < p]))
    for rank, (members, _) in placed(groups).items():
        np.testing.assert_array_equal(gathered[rank], x[members])


@settings(deadline=None, max_examples=4)
@given(partitions(), st.data())
def test_collectives_over_any_partition_are_those_of_each_group(partition, data):
    groups, p = partition[0], len(partition[0][0])
    group, root = Group("rank", groups), data.draw(st.integers(0, p - 1))
    x = np.arange(1, 12 * p + 1, dtype=np.int32).reshape(12, p)

    def body(x):
        return (
            hccljax.all_reduce(x, group, "max"),
            hccljax.broadcast(x, group, root),
            hccljax.reduce_scatter(x, group),
            hccljax.all_to_all(x, group, 0, 0),
        )

    largest, sent, scattered, exchanged = map(np.asarray, jax.jit(jax.vmap(body, axis_name="rank"))(x))
    for rank, (members, place) in placed(groups).items():
        np.testing.assert_array_equal(largest[rank], x[members].max(0))
        np.testing.assert_array_equal(sent[rank], x[members[root]])
        np.testing.assert_array_equal(scattered[rank], x[members].sum(0)[place])
        np.testing.assert_array_equal(exchanged[rank], x[members, place])
