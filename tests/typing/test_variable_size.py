"""The operators whose blocks differ in size: replication types and derivatives in every mode."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import hccljax

AXIS = "i"
COUNTS = (2, 0, 3, 1)
MATRIX = ((1, 0, 2, 0), (0, 0, 0, 3), (2, 1, 1, 0), (0, 0, 0, 0))


def all_to_all_v(x):
    """The block form, with counts that differ from rank to rank and one that is too large; floats only."""
    counts = (lax.axis_index(AXIS) + jnp.arange(4, dtype=jnp.int32) * 2) % 5
    return hccljax.all_to_all_v(x, AXIS, counts)[0]


def rows_to_all(x):
    """The form with offsets, whose rows overlap and run over the end."""
    counts = (lax.axis_index(AXIS) + jnp.arange(4, dtype=jnp.int32)) % 4
    return hccljax.all_to_all_v(x, AXIS, counts, capacity=2, send_offsets=counts * 2)[0]


OPERATORS = {
    # (function of one rank's x, the shape of x)
    "all_gather_v": (lambda x, **o: hccljax.all_gather_v(x, AXIS, COUNTS, **o), (4, 2)),
    "reduce_scatter_v": (lambda x, **o: hccljax.reduce_scatter_v(x, AXIS, COUNTS, **o), (6, 2)),
    "reduce_scatter_v mean": (lambda x, **o: hccljax.reduce_scatter_v(x, AXIS, COUNTS, "mean", **o), (6,)),
    "all_to_all_v": (all_to_all_v, (4, 3)),
    "rows of all_to_all_v": (rows_to_all, (7, 2)),
    "all_to_all_vc": (lambda x, **o: hccljax.all_to_all_vc(x, AXIS, MATRIX, **o), (5, 2)),
    "all_to_all_vc by mesh": (lambda x: hccljax.all_to_all_vc(x, AXIS, MATRIX, algorithm="mesh"), (5,)),
}


# All at once: one program takes a third of the time that one for each of them does.
def test_derivatives_equal_finite_differences(mode, data):
    def loss(xs):
        weight = lax.axis_index(AXIS).astype(jnp.float32) + 1
        return {name: OPERATORS[name][0](x * x) * weight for name, x in xs.items()}

    xs = {name: data((4, *shape), seed) for seed, (name, (_, shape)) in enumerate(OPERATORS.items())}
    check_grads(jax.jit(mode.map(loss)), (xs,), order=1, modes=["fwd", "rev"], rtol=1e-2, atol=1e-2)


# all_to_all_vc is the one with a linear call of its own.
def test_the_modes_agree_on_second_derivatives_inside_and_outside(make_mode, transformations, data, same):
    fun, shape = OPERATORS["all_to_all_vc"]
    xs = data((4, *shape))
    same(*(jax.jit(partial(transformations.some, make_mode(name), fun))(xs) for name in ("checked", "vmap")))


def test_a_gathered_result_is_replicated_where_it_is_asked_for(mode, data):
    xs = data((4, 3, 2))
    whole = np.concatenate([np.asarray(rows)[:n] for rows, n in zip(xs, COUNTS, strict=True)])

    def gather(x):
        return hccljax.all_gather_v(x, AXIS, COUNTS, to="invarying")

    def both(xs):
        out, back = jax.vjp(mode.once(gather), xs)
        return out, *back(out)

    out, cotangent = jax.jit(both)(xs)
    np.testing.assert_array_equal(out, whole)
    for rows, row, n in zip(cotangent, xs, COUNTS, strict=True):
        np.testing.assert_array_equal(rows, np.where(np.arange(3)[:, None] < n, row, 0))


def test_replicated_counts_and_rows_are_taken_in_a_checked_shard_map(make_mesh):
    def fn(x, counts):
        return hccljax.all_to_all_v(x, AXIS, counts, capacity=2, send_offsets=counts)

    mapped = jax.shard_map(fn, mesh=make_mesh(i=4), in_specs=P(), out_specs=P(AXIS))
    blocks, received, dropped = jax.jit(mapped)(jnp.arange(5.0), jnp.array([1, 0, 2, 3]))
    rows = {0: [1, 0], 1: [0, 0], 2: [2, 3], 3: [3, 4]}
    np.testing.assert_array_equal(blocks.reshape(4, 4, 2), [[rows[r]] * 4 for r in range(4)])
    np.testing.assert_array_equal(received.reshape(4, 4), [[r] * 4 for r in (1, 0, 2, 2)])
    np.testing.assert_array_equal(dropped.reshape(4, 4), [[0, 0, 0, 1]] * 4)


def test_tuples_of_axes_and_batches(make_mesh):
    xs = jnp.arange(4 * 3 * 5.0).reshape(4, 3, 5)

    def fn(x):
        def one(row):
            return (
                hccljax.all_to_all_vc(row, ("a", "b"), MATRIX),
                hccljax.all_to_all_v(row, ("a", "b"), jnp.array([1, 0, 2, 2]), capacity=2, send_offsets=jnp.arange(4))[
                    0
                ],
                hccljax.all_gather_v(row, ("a", "b"), COUNTS),
            )

        return jax.tree.map(lambda out: out[None], jax.vmap(one)(x[0]))

    mapped = jax.shard_map(fn, mesh=make_mesh(a=2, b=2), in_specs=P(("a", "b")), out_specs=P(("a", "b")))

    def one(x):
        return (
            hccljax.all_to_all_vc(x, AXIS, MATRIX),
            hccljax.all_to_all_v(x, AXIS, jnp.array([1, 0, 2, 2]), capacity=2, send_offsets=jnp.arange(4))[0],
            hccljax.all_gather_v(x, AXIS, COUNTS),
        )

    wanted = jax.jit(jax.vmap(jax.vmap(one, axis_name=AXIS), 1, 1))(xs)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(mapped)(xs), wanted)


def test_strict_callers(same):
    def fn(x):
        counts = (jax.lax.axis_index(AXIS) + jnp.arange(4, dtype=jnp.int32)).astype(jnp.int16)
        return (
            hccljax.all_gather_v(x, AXIS, np.array(COUNTS)),
            hccljax.reduce_scatter_v(x, AXIS, COUNTS),
            hccljax.all_to_all_v(x, AXIS, counts, capacity=3, send_offsets=counts),
            hccljax.all_to_all_vc(x, AXIS, np.array(MATRIX)),
            hccljax.all_to_all_vc(x, AXIS, MATRIX, algorithm="mesh"),
        )

    x = jnp.arange(4 * 6 * 2, dtype=jnp.float32).reshape(4, 6, 2)
    wanted = jax.jit(jax.vmap(fn, axis_name=AXIS))(x)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        out = jax.jit(jax.vmap(fn, axis_name=AXIS))(x)
    same(out, wanted)
