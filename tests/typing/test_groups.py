"""Partitions of an axis: values and gradients stay inside each communicator, in every mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax

RANKS, AXIS = 8, "i"
X = np.random.default_rng(5).integers(-3, 4, (RANKS, 4, 1)).astype(np.float32)
PARTITIONS = {
    "neighbours": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "interleaved, out of order": [[6, 0, 4, 2], [1, 3, 7, 5]],
    "one, reversed": [[7, 6, 5, 4, 3, 2, 1, 0]],
}
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv")


def collectives(group):
    return {
        "all_reduce": lambda x: hccljax.all_reduce(x, group),
        "all_gather": lambda x: hccljax.all_gather(x, group),
        "reduce_scatter": lambda x: hccljax.reduce_scatter(x, group),
        "broadcast": lambda x: hccljax.broadcast(x, group, 1),
        "reduce": lambda x: hccljax.reduce(x, group, root=3),
        "all_to_all": lambda x: hccljax.all_to_all(x, group, 0, 0),
        "send_recv": lambda x: hccljax.send_recv(x, group, [(0, 2), (3, 1)]),
    }


def within(name, x):
    """One communicator's arrays [p, …] in rank order → its results, by NumPy."""
    p = x.shape[0]
    if name == "all_reduce":
        return np.broadcast_to(x.sum(0), x.shape)
    if name == "all_gather":
        return np.broadcast_to(x, (p, *x.shape))
    if name == "reduce_scatter":
        return x.sum(0)
    if name == "broadcast":
        return np.broadcast_to(x[1], x.shape)
    out = np.zeros_like(x)
    if name == "reduce":
        out[3] = x.sum(0)
    if name == "send_recv":
        out[2], out[1] = x[0], x[3]
    return x.swapaxes(0, 1) if name == "all_to_all" else out


def by_numpy(name, x, groups):
    parts = {rank: row for members in groups for rank, row in zip(members, within(name, x[members]), strict=True)}
    return np.stack([parts[rank] for rank in range(RANKS)])


def gradient_by_numpy(name, x, groups):
    """Of Σ_r (r + 1) Σ out_r², column by column: the operator is linear."""
    out = by_numpy(name, x, groups)
    cotangent = 2 * out * np.arange(1, RANKS + 1).reshape(-1, *[1] * (out.ndim - 1))
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        unit = np.zeros_like(x)
        unit[index] = 1
        gradient[index] = (by_numpy(name, unit, groups) * cotangent).sum()
    return gradient


@pytest.mark.parametrize("partition", PARTITIONS)
def test_values_and_gradients_in_groups(mode, partition):
    groups = PARTITIONS[partition]
    x = np.tile(X, (1, 2, 1)) if len(groups) == 1 else X
    names = NAMES if len(groups) > 1 else ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv")

    def on_rank(x):
        weight = lax.axis_index(AXIS).astype(x.dtype) + 1
        found = {}
        for name in names:
            collective = collectives(hccljax.Group(AXIS, groups))[name]
            gradient = jax.grad(lambda x, c=collective: jnp.sum(c(x) ** 2 * weight))(x)
            found[name] = collective(x), gradient
        return found

    for name, (value, gradient) in jax.jit(mode.map(on_rank, RANKS))(x).items():
        np.testing.assert_array_equal(value, by_numpy(name, x, groups), err_msg=name)
        np.testing.assert_array_equal(gradient, gradient_by_numpy(name, x, groups), err_msg=name)


def test_gradients_taken_outside_stay_inside_the_groups(mode):
    groups = PARTITIONS["interleaved, out of order"]
    mapped = mode.map(lambda x: hccljax.all_reduce(x, hccljax.Group(AXIS, groups)), RANKS)
    weights = np.arange(1, RANKS + 1, dtype=np.float32).reshape(RANKS, 1, 1)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(mapped(x) ** 2 * weights)))(X)
    np.testing.assert_array_equal(gradient, gradient_by_numpy("all_reduce", X, groups))


def test_the_max_of_groups(mode):
    groups = PARTITIONS["interleaved, out of order"]
    found = jax.jit(mode.map(lambda x: hccljax.all_reduce(x, hccljax.Group(AXIS, groups), "max"), RANKS))(X)
    for members in groups:
        np.testing.assert_array_equal(found[np.array(members)], np.broadcast_to(X[members].max(0), X[members].shape))


def test_a_partition_of_one_group_is_typed_as_replicated(mode):
    group = hccljax.Group(AXIS, PARTITIONS["one, reversed"])
    total, gathered, sent = jax.jit(
        mode.once(
            lambda x: (
                hccljax.all_reduce(x, group),
                hccljax.all_gather(x, group, to="invarying"),
                hccljax.broadcast(x, group, 0),
            ),
            RANKS,
        )
    )(X)
    np.testing.assert_array_equal(total, X.sum(0))
    np.testing.assert_array_equal(gathered, X[::-1])
    np.testing.assert_array_equal(sent, X[7])


def test_a_partition_has_no_replicated_all_gather():
    group = hccljax.Group(AXIS, PARTITIONS["neighbours"])
    with pytest.raises(hccljax.ArgumentError, match="invarying"):
        jax.vmap(lambda x: hccljax.all_gather(x, group, to="invarying"), axis_name=AXIS)(X)
