"""Every linear collective has the values and the derivatives of its jax.lax twin, in every mode."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hccljax

P, ROOT, AXIS = 4, 2, "i"
PAIRS = [(0, 2), (2, 3), (3, 1)]


def from_root(x):
    return lax.psum(jnp.where(lax.axis_index(AXIS) == ROOT, x, jnp.zeros_like(x)), AXIS)


def on_root(x):
    return jnp.where(lax.axis_index(AXIS) == ROOT, x, jnp.zeros_like(x))


def received(x):
    """The twin of a partial send_recv; lax.ppermute under vmap takes full permutations only."""
    source = jnp.array([-1, 3, 0, 2])[lax.axis_index(AXIS)]
    return jnp.where(source >= 0, lax.all_gather(x, AXIS)[source], jnp.zeros_like(x))


def blocks_for_me(x):
    """The twin of an untiled all_to_all; lax.all_to_all itself (jax 0.10.2) gives tangents that vmap has not batched a
    wrong shape, and its transpose fails where split_axis and concat_axis differ."""
    return lax.all_gather(x, AXIS)[:, lax.axis_index(AXIS)]


# name: (hccljax, its jax.lax twin, shape on one rank)
THE_FOUR = {
    "all_reduce": (lambda x: hccljax.all_reduce(x, AXIS, algorithm="ring"), lambda x: lax.psum(x, AXIS), (4, 1)),
    "all_gather": (lambda x: hccljax.all_gather(x, AXIS, algorithm="ring"), lambda x: lax.all_gather(x, AXIS), (3,)),
    "broadcast": (lambda x: hccljax.broadcast(x, AXIS, ROOT, algorithm="ring"), from_root, (3, 1)),
    "all_to_all": (lambda x: hccljax.all_to_all(x, AXIS, 0, 0, algorithm="pairwise"), blocks_for_me, (4, 1)),
}
EVERY_OTHER = {
    "all_reduce mean": (
        lambda x: hccljax.all_reduce(x, AXIS, "mean", algorithm="ring"),
        lambda x: lax.pmean(x, AXIS),
        (5,),
    ),
    "all_gather tiled": (
        lambda x: hccljax.all_gather(x, AXIS, axis=1, tiled=True, algorithm="ring"),
        lambda x: lax.all_gather(x, AXIS, axis=1, tiled=True),
        (3, 2),
    ),
    "reduce_scatter": (
        lambda x: hccljax.reduce_scatter(x, AXIS, scatter_dimension=1, algorithm="ring"),
        lambda x: lax.psum_scatter(x, AXIS, scatter_dimension=1),
        (1, 4),
    ),
    "reduce_scatter tiled mean": (
        lambda x: hccljax.reduce_scatter(x, AXIS, "mean", tiled=True, algorithm="ring"),
        lambda x: lax.psum_scatter(x, AXIS, tiled=True) / P,
        (8,),
    ),
    "all_reduce mean, accumulating": (
        lambda x: hccljax.all_reduce(x, AXIS, "mean", algorithm="ring", accumulate_dtype=x.dtype),
        lambda x: lax.pmean(x, AXIS),
        (5,),
    ),
    "reduce_scatter mean, accumulating": (
        lambda x: hccljax.reduce_scatter(x, AXIS, "mean", algorithm="ring", accumulate_dtype=x.dtype),
        lambda x: lax.psum_scatter(x, AXIS) / P,
        (4, 1),
    ),
    "reduce mean, accumulating": (
        lambda x: hccljax.reduce(x, AXIS, "mean", ROOT, algorithm="ring", accumulate_dtype=x.dtype),
        lambda x: on_root(lax.pmean(x, AXIS)),
        (5,),
    ),
    "reduce": (
        lambda x: hccljax.reduce(x, AXIS, root=ROOT, algorithm="ring"),
        lambda x: on_root(lax.psum(x, AXIS)),
        (5,),
    ),
    "scatter": (
        lambda x: hccljax.scatter(x, AXIS, ROOT, algorithm="ring"),
        lambda x: from_root(x)[lax.axis_index(AXIS)],
        (4, 1),
    ),
    "gather": (
        lambda x: hccljax.gather(x, AXIS, ROOT, axis=1, algorithm="ring"),
        lambda x: on_root(lax.all_gather(x, AXIS, axis=1)),
        (3,),
    ),
    "all_to_all to another axis": (
        lambda x: hccljax.all_to_all(x, AXIS, 0, 1, algorithm="pairwise"),
        lambda x: jnp.moveaxis(blocks_for_me(x), 0, 1),
        (4, 2),
    ),
    "all_to_all tiled": (
        lambda x: hccljax.all_to_all(x, AXIS, 1, 0, tiled=True, algorithm="pairwise"),
        lambda x: lax.all_to_all(x, AXIS, 1, 0, tiled=True),
        (1, 8),
    ),
    "send_recv": (lambda x: hccljax.send_recv(x, AXIS, PAIRS), received, (3,)),
    "barrier": (lambda x: hccljax.barrier(x, AXIS), lambda x: x, (3,)),
}


@pytest.mark.parametrize("name", THE_FOUR)
def test_every_transformation_inside_the_mapped_function(mode, name, transformations, data, same):
    ours, twin, shape = THE_FOUR[name]
    both = mode.map(lambda x: (transformations.inside(ours, x), transformations.inside(twin, x)))
    same(*jax.jit(both)(data((P, *shape))))


@pytest.mark.parametrize("name", THE_FOUR)
def test_every_transformation_around_the_mapped_function(mode, name, transformations, data, same):
    ours, twin, shape = THE_FOUR[name]

    @jax.jit
    def both(xs):
        return transformations.outside(mode, ours, xs), transformations.outside(mode, twin, xs)

    same(*both(data((P, *shape), seed=1)))


@pytest.mark.parametrize("name", EVERY_OTHER)
def test_gradients_of_both_orders_in_both_places(mode, name, transformations, data, same):
    ours, twin, shape = EVERY_OTHER[name]

    @jax.jit
    def both(xs):
        return transformations.some(mode, ours, xs), transformations.some(mode, twin, xs)

    same(*both(data((P, *shape), seed=2)))


@pytest.mark.parametrize("name", ["checked", "unchecked", "vmap"])
def test_a_replicated_all_gather(name, transformations, make_mode, data, same):
    """Where types are checked it is the twin's; elsewhere its gradient sums over ranks as a plain all_gather's does."""
    to = "invarying" if name == "checked" else "varying"

    @jax.jit
    def both(xs):
        mode = make_mode(name)
        return (
            transformations.some(mode, lambda x: hccljax.all_gather(x, AXIS, to="invarying", algorithm="ring"), xs),
            transformations.some(mode, lambda x: lax.all_gather(x, AXIS, to=to), xs),
        )

    same(*both(data((P, 3))))


def test_all_to_all_has_the_values_of_lax(mode, data, same):
    x = data((P, 4, 2))

    def both(x):
        return (
            (hccljax.all_to_all(x, AXIS, 0, 1), hccljax.all_to_all(x, AXIS, 0, 0)),
            (lax.all_to_all(x, AXIS, 0, 1), lax.all_to_all(x, AXIS, 0, 0)),
        )

    same(*jax.jit(mode.map(both))(x))


def test_without_jit(mode, data, same):
    """One collective only: every operation of an eager shard_map is compiled on its own."""
    ours, twin, shape = THE_FOUR["all_reduce"]
    xs = data((P, *shape), seed=3)

    def eagerly(collective):
        mapped = mode.map(collective)
        out, pull = jax.vjp(mapped, xs)
        return out, pull(out), jax.jvp(mapped, (xs,), (xs + 1,))

    same(eagerly(ours), eagerly(twin))
