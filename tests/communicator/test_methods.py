"""Every method of a Communicator against NumPy, on devices and on virtual ranks, whole and split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax import Communicator

P = 8
ROWS = np.random.default_rng(1).integers(-9, 10, (P, P, 3)).astype(np.int32)
PARTITIONS = {
    "whole": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "crossed": [[6, 0, 3, 5], [1, 7, 2, 4]],
    "pairs": [[7, 0], [6, 1], [5, 2], [4, 3]],
    "alone": [[r] for r in range(P)],
}

each_executor = pytest.mark.parametrize("executor", ["devices", "virtual"])


def made(executor, name="whole"):
    comm = Communicator(P, executor=executor)
    return comm if name == "whole" else comm.split(PARTITIONS[name])


def by_group(name, function, shape):
    """[P, *shape]: function(rows of one group [p, …]) → [p, *shape], for every group."""
    out = np.zeros((P, *shape), ROWS.dtype)
    for members in PARTITIONS[name]:
        out[members] = function(ROWS[members])
    return out


def only(row, value, p):
    """[p, …] of zeros, but for one row."""
    out = np.zeros((p, *value.shape), value.dtype)
    out[row] = value
    return out


def calls(comm, p, root):
    """(call on rows, what one group's rows become, the shape of a row) of every method."""
    return (
        (lambda x: comm.all_reduce(x), lambda x: np.broadcast_to(x.sum(0), x.shape), (P, 3)),
        (lambda x: comm.all_reduce(x, "min"), lambda x: np.broadcast_to(x.min(0), x.shape), (P, 3)),
        (lambda x: comm.all_gather(x), lambda x: np.broadcast_to(x, (p, *x.shape)), (p, P, 3)),
        (
            lambda x: comm.all_gather(x, axis=1, tiled=True),
            lambda x: np.stack([np.concatenate(x, 1)] * p),
            (P, 3 * p),
        ),
        (lambda x: comm.reduce_scatter(x[:, :p], "max"), lambda x: x[:, :p].max(0), (3,)),
        (
            lambda x: comm.reduce_scatter(x, tiled=True),
            lambda x: x.sum(0).reshape(p, P // p, 3),
            (P // p, 3),
        ),
        (lambda x: comm.broadcast(x, root), lambda x: np.broadcast_to(x[root], x.shape), (P, 3)),
        (lambda x: comm.reduce(x, "sum", root), lambda x: only(root, x.sum(0), p), (P, 3)),
        (lambda x: comm.scatter(x[:, :p], root), lambda x: x[root, :p], (3,)),
        (lambda x: comm.gather(x, root), lambda x: only(root, x, p), (p, P, 3)),
        (lambda x: comm.all_to_all(x[:, :p]), lambda x: x[:, :p].swapaxes(0, 1), (p, 3)),
        (lambda x: comm.send_recv(x, [(0, p - 1)]), lambda x: only(p - 1, x[0], p), (P, 3)),
        (lambda x: comm.barrier(x), lambda x: x, (P, 3)),
    )


@pytest.mark.parametrize(
    ("executor", "name"),
    [("devices", "whole"), ("devices", "crossed"), ("virtual", "pairs"), ("virtual", "alone")],
)
def test_every_method_is_that_of_numpy_in_each_group(executor, name):
    comm = made(executor, name)
    table = calls(comm, comm.group_size, comm.group_size - 1)
    # One program for all of them, since compiling thirteen takes longer.
    outputs = jax.jit(lambda x: [call(x) for call, _, _ in table])(ROWS)
    for out, (_, function, shape) in zip(outputs, table, strict=True):
        np.testing.assert_array_equal(out, by_group(name, function, shape))
        assert out.dtype == ROWS.dtype


@pytest.mark.parametrize(("executor", "name"), [("devices", "crossed"), ("virtual", "pairs")])
def test_blocks_that_differ_in_size_go_as_in_numpy_in_each_group(executor, name):
    comm = made(executor, name)
    p = comm.group_size
    counts, most = [3, *[1] * (p - 1)], 3
    sends = np.random.default_rng(0).integers(0, 4, (P, p))

    def joined(x):
        return np.concatenate([row[:n] for row, n in zip(x, counts, strict=True)])

    out = comm.all_gather_v(ROWS, np.array(counts))
    total = comm.reduce_scatter_v(ROWS[:, : 2 + p], counts, algorithm="ring")
    blocks, received, dropped = comm.all_to_all_v(ROWS[:, :p], sends)
    rows, *_ = comm.all_to_all_v(ROWS, sends, capacity=2, send_offsets=sends, algorithm="mesh")
    ring = np.eye(p, k=1, dtype=int) * 3
    passed = comm.all_to_all_vc(ROWS, ring)
    for members in PARTITIONS[name]:
        x, n = ROWS[members], sends[members]
        np.testing.assert_array_equal(out[np.array(members)], [joined(x)] * p)
        ends = np.cumsum(counts)
        for r, member in enumerate(members):
            block = np.zeros((most, 3), int)
            block[: counts[r]] = x[:, ends[r] - counts[r] : ends[r]].sum(0)
            np.testing.assert_array_equal(total[member], block)
            np.testing.assert_array_equal(received[member], np.minimum(n[:, r], 3))
            np.testing.assert_array_equal(dropped[member], np.maximum(n[r] - 3, 0))
            np.testing.assert_array_equal(passed[member], x[r - 1, :3] if r else np.zeros((3, 3)))
            for i in range(p):
                np.testing.assert_array_equal(blocks[member, i], np.where(np.arange(3) < n[i, r], x[i, r], 0))
                kept = np.arange(2)[:, None] < n[i, r]
                np.testing.assert_array_equal(rows[member, i], np.where(kept, x[i, n[i, r] :][:2], 0))


@each_executor
def test_split_of_a_split_counts_ranks_inside_each_group(executor):
    comm = made(executor, "crossed").split([[0, 2], [3, 1]])
    groups = [[6, 3], [5, 0], [1, 2], [4, 7]]
    assert (comm.size, comm.group_size, comm.executor) == (P, 2, executor)
    gathered = np.asarray(comm.all_gather(ROWS))
    for members in groups:
        for rank in members:
            np.testing.assert_array_equal(gathered[rank], ROWS[members])


def test_a_split_does_not_change_the_communicator_it_comes_from():
    comm = made("virtual")
    before = np.asarray(comm.all_reduce(ROWS))
    comm.split(PARTITIONS["crossed"]).all_reduce(ROWS)
    np.testing.assert_array_equal(comm.all_reduce(ROWS), before)
    assert comm.group_size == P


def test_a_split_of_a_split_into_ranks_that_a_group_lacks_is_refused():
    comm = made("virtual", "crossed")
    with pytest.raises(hccljax.ArgumentError, match="expected"):
        comm.split([range(8)])
    with pytest.raises(hccljax.ArgumentError):
        comm.split([[0, 1]])


@each_executor
def test_one_rank_keeps_its_own(executor):
    comm, x = Communicator(1, executor=executor), np.arange(3.0, dtype=np.float32)[None]
    same = [comm.all_reduce, comm.broadcast, lambda x: comm.reduce(x, "max"), comm.barrier]
    same += [lambda x: comm.send_recv(x, [(0, 0)]), lambda x: comm.scatter(x[:, None])]
    same += [lambda x: comm.reduce_scatter(x[:, None])]
    stacked = [comm.all_gather, comm.gather, lambda x: comm.all_to_all(x[:, None])]
    kept, dimension_more = jax.jit(lambda x: ([call(x) for call in same], [call(x) for call in stacked]))(x)
    for out in kept:
        np.testing.assert_array_equal(out, x)
    for out in dimension_more:
        np.testing.assert_array_equal(out, x[:, None])


def test_more_ranks_than_devices_run_on_virtual_ranks():
    comm = Communicator(96, algorithm="level0:ring;level1:tree", topology="12x8")
    assert comm.executor == "virtual"
    x = np.arange(96 * 7).reshape(96, 7)
    np.testing.assert_array_equal(comm.all_reduce(x), np.broadcast_to(x.sum(0), x.shape))


# What an array may be


@each_executor
def test_a_pytree_is_reduced_leaf_by_leaf(executor):
    comm = made(executor)
    tree = {"w": ROWS, "b": (ROWS[:, 0].astype(np.float32), None), "n": [np.arange(P) % 2 == 0]}
    out = comm.all_reduce(tree)
    assert jax.tree.structure(out) == jax.tree.structure(tree)
    np.testing.assert_array_equal(out["w"], np.broadcast_to(ROWS.sum(0), ROWS.shape))
    np.testing.assert_array_equal(out["b"][0], np.broadcast_to(ROWS[:, 0].sum(0), (P, 3)))
    np.testing.assert_array_equal(out["n"][0], np.full(P, 4))
    assert [leaf.dtype for leaf in jax.tree.leaves(out)] == [jnp.float32, jnp.int32, jnp.int32]


@each_executor
def test_keys_travel(executor):
    comm = made(executor)
    keys = jax.random.split(jax.random.key(7), P)
    data = np.asarray(jax.random.key_data(keys))
    gathered, sent = comm.all_gather(keys), comm.broadcast(keys, 3)
    np.testing.assert_array_equal(jax.random.key_data(gathered), np.broadcast_to(data, (P, *data.shape)))
    np.testing.assert_array_equal(jax.random.key_data(sent), np.broadcast_to(data[3], data.shape))
    assert jax.random.key_impl(sent) == jax.random.key_impl(keys)


@each_executor
@pytest.mark.parametrize("shape", [(P,), (P, 0), (P, 1, 2, 3)])
def test_rows_may_have_any_shape(executor, shape):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(made(executor).all_reduce(x), np.broadcast_to(x.sum(0), shape))


# Where arrays live


def test_put_places_row_r_on_the_device_of_rank_r():
    comm = Communicator(4, executor="devices", devices=jax.devices()[::-1])
    placed = comm.put({"x": ROWS[:4]})["x"]
    assert comm.devices == tuple(jax.devices()[:3:-1])
    for shard in placed.addressable_shards:
        rank = shard.index[0].start
        assert shard.device == comm.devices[rank]
        np.testing.assert_array_equal(shard.data[0], ROWS[rank])
    assert comm.put(placed) is placed
    np.testing.assert_array_equal(comm.broadcast(placed, 2), np.broadcast_to(ROWS[2], (4, P, 3)))


def test_results_stay_on_the_devices_of_their_ranks():
    comm = Communicator(4, executor="devices")
    out = comm.all_reduce(ROWS[:4])
    assert [shard.device for shard in out.addressable_shards] == jax.devices()[:4]


def test_virtual_ranks_run_on_the_device_that_was_given():
    device = jax.devices()[3]
    comm = Communicator(P, executor="virtual", devices=[device])
    assert comm.put(ROWS).devices() == {device}
    assert comm.all_reduce(ROWS).devices() == {device}


@each_executor
def test_put_works_while_tracing(executor):
    comm = made(executor)
    total = jax.jit(lambda x: comm.all_reduce(comm.put(x)))(ROWS)
    np.testing.assert_array_equal(total, np.broadcast_to(ROWS.sum(0), ROWS.shape))


def test_auto_takes_devices_where_there_are_enough():
    assert Communicator(P).executor == "devices"
    assert Communicator(3).executor == "devices"
    assert Communicator(P + 1).executor == "virtual"
    assert Communicator(2, devices=jax.devices()[:1]).executor == "virtual"
    assert Communicator().size == len(jax.devices())
    assert Communicator(np.int64(4)).size == 4


def test_a_communicator_prints_its_ranks_groups_and_executor():
    assert repr(Communicator(8)) == "Communicator(8 ranks, devices)"
    assert repr(made("virtual", "pairs")) == "Communicator(8 ranks, in groups of 2, virtual)"
