"""What looks odd as ranks, roots, pairs, groups or sizes, and is right: whatever is an int, in whatever iterable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax import Group, Topology

P = 4
ROWS = jnp.arange(P * P * 2.0).reshape(P, P, 2)
PAIRS = [(0, 1), (2, 0)]
SENT = np.stack([ROWS[2], ROWS[0], np.zeros_like(ROWS[0]), np.zeros_like(ROWS[0])])


@pytest.mark.parametrize(
    "pairs",
    [
        lambda: ((s, d) for s, d in PAIRS),
        lambda: np.array(PAIRS),
        lambda: np.array(PAIRS, np.uint8),
        lambda: [[np.int64(0), np.int32(1)], (np.int8(2), 0)],
        lambda: [iter(pair) for pair in PAIRS],
        lambda: dict(PAIRS).items(),
        lambda: frozenset(PAIRS),
    ],
    ids=["generator", "array", "bytes", "numpy-ints", "iterators", "items", "set"],
)
def test_pairs_may_be_any_iterables_of_ints(pairs):
    sent = jax.vmap(lambda x: hccljax.send_recv(x, "rank", pairs()), axis_name="rank")(ROWS)
    np.testing.assert_array_equal(sent, SENT)
    np.testing.assert_array_equal(hccljax.Communicator(P, executor="virtual").send_recv(ROWS, pairs()), SENT)


def test_without_pairs_everybody_gets_zeros():
    np.testing.assert_array_equal(hccljax.Communicator(P, executor="virtual").send_recv(ROWS, []), np.zeros_like(ROWS))
    np.testing.assert_array_equal(
        jax.vmap(lambda x: Group("rank").permute(x, ()), axis_name="rank")(ROWS), np.zeros_like(ROWS)
    )
    assert jax.vmap(lambda x: hccljax.batch_send_recv([], "rank"), axis_name="rank")(ROWS) == []


@pytest.mark.parametrize("root", [np.int64(1), np.uint8(1), np.array(1), True])
def test_a_root_may_be_anything_that_is_an_index(root):
    rows = jax.vmap(lambda x: hccljax.broadcast(x, "rank", root), axis_name="rank")(ROWS)
    np.testing.assert_array_equal(rows, np.broadcast_to(ROWS[1], ROWS.shape))


@pytest.mark.parametrize(
    "groups",
    [
        np.array([[0, 2], [1, 3]]),
        (iter(group) for group in ([0, 2], [1, 3])),
        [[False, 2], [True, 3]],
        [range(0, 4, 2), (1, 3)],
    ],
    ids=["array", "generator", "bools", "ranges"],
)
def test_groups_may_be_any_iterables_of_ints(groups):
    assert Group("rank", groups) == Group("rank", [[0, 2], [1, 3]])


def test_a_topology_takes_numpy_ints_and_lists_as_it_takes_ints():
    assert Topology((np.int64(2), 4)) == Topology([2, 4]) == Topology((2, 4))
    assert hash(Topology([2, 4])) == hash(Topology((2, 4)))


def test_none_is_an_empty_pytree():
    nothing, total = jax.vmap(lambda x: hccljax.all_reduce((None, x), "rank"), axis_name="rank")(ROWS)
    assert nothing is None
    np.testing.assert_array_equal(total, np.broadcast_to(ROWS.sum(0), ROWS.shape))
