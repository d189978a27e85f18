"""Steps of every shape that JAX has: the bytes that a rank sends over each set of axes are what they should be."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hccljax
from hccljax.errors import ArgumentError

SIZES = {"r": 4, "q": 2}
P = jax.sharding.PartitionSpec
MESH = jax.sharding.AbstractMesh((4, 2), ("r", "q"))


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


X = shape(16)


def ring(nbytes, p=4):
    """Bytes that a rank sends in an all-reduce by ring."""
    return 2 * (p - 1) * nbytes // p


ONE = ring(64)


def psum(x):
    return lax.psum(x, "r")


def sent(step, *args, **options):
    """Bytes of the busiest sender over each set of axes."""
    options = {"axis_sizes": SIZES, "topology": "atlas-800t-a2:8", "algorithm": "ring", **options}
    found = {}
    for event in hccljax.predict(step, *args, **options).schedule:
        if event.is_communication:
            axes = ",".join(event.axes)
            found[axes] = found.get(axes, 0) + int(event.sends.max()) * event.nbytes * event.trips
    return found


@jax.custom_vjp
def other_way_back(x):
    return psum(x)


other_way_back.defvjp(lambda x: (psum(x), None), lambda _, g: (lax.psum(g, "q"),))


def scan(body, x, length):
    return lax.scan(lambda c, _: (body(c), None), x, None, length=length)[0]


@pytest.mark.parametrize(
    ("step", "args", "expected"),
    [
        (lambda x: scan(psum, x, 5), [X], {"r": 5 * ONE}),
        (lambda x: scan(lambda c: scan(psum, c, 3), x, 4), [X], {"r": 12 * ONE}),
        (lambda x: scan(psum, x, 0), [X], {}),
        (lambda x: lax.scan(lambda c, v: (c, psum(v)), 0, x)[1], [shape(3, 16)], {"r": 3 * ONE}),
        (lambda x: lax.map(psum, x), [shape(3, 16)], {"r": 3 * ONE}),
        (jax.grad(lambda x: scan(lambda c: jnp.tanh(psum(c)), x, 5).sum()), [X], {"r": 10 * ONE}),
        (lambda x: lax.fori_loop(0, 7, lambda i, c: psum(c), x), [X], {"r": 7 * ONE}),
        (lambda x: lax.cond(x[0] > 0, psum, lambda x: psum(2 * x), x), [X], {"r": ONE}),
        (lambda i, x: lax.switch(i, [psum] * 3, x), [shape(dtype="int32"), X], {"r": ONE}),
        # The value is not asked for: one psum is computed again, one is its transpose.
        (jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(psum(x)))(x).sum()), [X], {"r": 2 * ONE}),
        (jax.grad(lambda x: (other_way_back(x) ** 2).sum()), [X], {"r": ONE, "q": ring(64, 2)}),
        (lambda x: jax.jvp(psum, (x,), (x,)), [X], {"r": 2 * ONE}),
        (jax.jit(lambda x: jax.jit(psum)(x) + 1), [X], {"r": ONE}),
        (jax.jit(psum, donate_argnums=0), [X], {"r": ONE}),
        (lambda x: (jax.debug.print("{}", psum(x)), x)[1], [X], {"r": ONE}),
        (lambda x: (psum(x), x)[1], [X], {}),
        (jax.vmap(psum), [shape(3, 16)], {"r": 3 * ONE}),
        (jax.vmap(lambda v: lax.psum(v, ("b", "r")), axis_name="b"), [shape(3, 16)], {"r": ONE}),
        (jax.vmap(lambda v: lax.psum(v, ("b", "r")), axis_name="b"), [shape(3, 16, dtype="int8")], {"r": ring(16)}),
        (jax.vmap(lambda v: lax.psum(v, "b"), axis_name="b"), [shape(3, 16)], {}),
        (lambda x: lax.psum(x, ("r", "q")), [X], {"r,q": ring(64, 8)}),
        (lambda x: lax.psum(x, ("q", "r")), [X], {"q,r": ring(64, 8)}),
        (lambda x: lax.psum(x, "r", axis_index_groups=[[0, 3], [1, 2]]), [X], {"r": ring(64, 2)}),
        (lambda x: lax.all_gather(x, "r", tiled=True), [X], {"r": 3 * 64}),
        (lambda x: lax.all_gather(x, ("r", "q"), axis=1), [shape(4, 4)], {"r,q": 7 * 64}),
        (lambda x: lax.psum_scatter(x, "r", scatter_dimension=1, tiled=True), [shape(2, 8)], {"r": 3 * 16}),
        (lambda x: lax.psum_scatter(x, "r"), [shape(4, 4)], {"r": 3 * 16}),
        (lambda x: lax.ppermute(x, "r", [(0, 1), (2, 3)]), [X], {"r": 64}),
        (lambda x: lax.all_to_all(x, "r", 1, 0, tiled=True), [shape(4, 4)], {"r": 3 * 16}),
        (lambda t: psum(t), [{"a": X, "b": (X, shape(8), None)}], {"r": 2 * ONE + ring(32)}),
        (psum, [shape(16, dtype="int32")], {"r": ONE}),
        (psum, [shape(16, dtype="int8")], {"r": ring(16)}),
        (psum, [shape(16, dtype="bool")], {"r": ONE}),  # as int32
        (psum, [shape(16, dtype="bfloat16")], {"r": ring(32)}),
        (psum, [shape(16, dtype="complex64")], {"r": ring(128)}),
        (lambda x: lax.pmean(x, "r"), [shape(16, dtype="int32")], {"r": ONE}),
        (psum, [shape(0)], {"r": 0}),
        (psum, [shape()], {"r": ring(16)}),  # padded to a block of one element a rank
        (lambda: psum(1.5 * lax.axis_index("r")), [], {"r": ring(16)}),  # weakly typed
        (psum, [3.0], {"r": ring(16)}),
        (lambda: psum(1), [], {}),  # known while tracing
    ],
)
@pytest.mark.filterwarnings("ignore:all_to_all of 4 ranks. 'ring' has no all_to_all")
def test_bytes_over_each_axis(step, args, expected):
    assert sent(step, *args) == expected


@pytest.mark.parametrize("outside", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("inside", "spec", "options", "expected"),
    [
        (psum, P("r"), {}, {"r": ONE}),
        (psum, P("r"), {"check_vma": False}, {"r": ONE}),
        (lambda x: lax.psum(x, ("r", "q")), P("r"), {"check_vma": False}, {"r,q": ring(64, 8)}),
        (lambda x: lax.psum(lax.psum(x, "r"), "q"), P(("r", "q")), {}, {"r": ring(32), "q": ring(32, 2)}),
        (lambda x: scan(lambda c: lax.pcast(psum(c), "r", to="varying"), x, 3), P("r"), {"out_specs": P("r")},
         {"r": 3 * ONE}),
    ],
)  # fmt: skip
def test_shard_map_inside(outside, inside, spec, options, expected):
    mapped = jax.shard_map(inside, mesh=MESH, **{"in_specs": spec, "out_specs": P(), **options})
    assert sent(outside(mapped), shape(64), axis_sizes={}) == expected


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda x: lax.cond(x[0] > 0, psum, lambda x: lax.psum(x, "q"), x), "branches that do not communicate alike"),
        (lambda x: lax.cond(x[0] > 0, psum, lambda x: x, x), "branches that do not communicate alike"),
        (lambda x: lax.while_loop(lambda c: c[0] < 3, psum, x), "how often it runs is unknown"),
        (lambda x: lax.fori_loop(0, x[0].astype(int), lambda i, c: psum(c), x), "how often it runs is unknown"),
    ],
)
def test_what_is_not_known_while_tracing(step, message):
    with pytest.raises(ArgumentError, match=rf"test_steps\.py:\d+ in <lambda>: .*{message}"):
        sent(step, X)


def test_of_several_axes_some_are_mapped_inside():
    mapped = partial(jax.shard_map, mesh=MESH, in_specs=P("r"), out_specs=P(), axis_names={"r"})
    assert sent(mapped(psum), shape(64), axis_sizes={}, topology="atlas-800t-a2:4") == {"r": ONE}
