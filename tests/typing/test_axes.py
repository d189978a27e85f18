"""Tuples of axes in both orders, one axis of a bigger mesh, nested vmaps, vmap and shard_map at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import hccljax

OUTER, INNER = 2, 4
RANKS = OUTER * INNER
ORDERS = [("o", "i"), ("i", "o")]
both_orders = pytest.mark.parametrize("axes", ORDERS, ids=["mesh order", "other order"])
X = np.random.default_rng(3).integers(-3, 4, (OUTER, INNER, RANKS, 2)).astype(np.float32)


def ranked(x, axes):
    """[o, i, …] → [p, …] in the order of axes."""
    return (x if axes == ("o", "i") else x.swapaxes(0, 1)).reshape(RANKS, *x.shape[2:])


def unranked(x, axes):
    """[p, …] → [o, i, …]."""
    if axes == ("o", "i"):
        return x.reshape(OUTER, INNER, *x.shape[1:])
    return x.reshape(INNER, OUTER, *x.shape[1:]).swapaxes(0, 1)


def squared(collective, axes):
    """(value, gradient of a loss that weighs every rank differently), on one rank."""

    def both(x):
        weight = lax.axis_index(axes).astype(x.dtype) + 1
        return collective(x), jax.grad(lambda x: jnp.sum(collective(x) ** 2 * weight))(x)

    return both


@pytest.fixture(
    params=["checked", "unchecked", "vmap", "vmap in checked", "vmap in unchecked", "checked in vmap"],
)
def over_both(request, make_mesh):
    """fun of one rank's array over the axes o and i, mapped in one of six ways: [o, i, …] → [o, i, …]."""
    kind = request.param

    def run(fun):
        if kind == "vmap":
            return jax.vmap(jax.vmap(fun, axis_name="i"), axis_name="o")
        if kind.startswith("vmap in"):
            rows = jax.vmap(fun, axis_name="i")
            body = lambda x: jax.tree.map(lambda out: out[None], rows(x[0]))  # noqa: E731
            return jax.shard_map(
                body, mesh=make_mesh(o=OUTER), in_specs=P("o"), out_specs=P("o"), check_vma=kind == "vmap in checked"
            )
        body = lambda x: jax.tree.map(lambda out: out[None, None], fun(x[0, 0]))  # noqa: E731
        if kind == "checked in vmap":
            row = lambda x: jax.tree.map(lambda out: out[None], fun(x[0]))  # noqa: E731
            mapped = jax.shard_map(row, mesh=make_mesh(i=INNER), in_specs=P("i"), out_specs=P("i"))
            return jax.vmap(mapped, axis_name="o")
        mesh, spec = make_mesh(o=OUTER, i=INNER), P("o", "i")
        return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=kind == "checked")

    return lambda fun: jax.jit(run(fun))


LINEAR = {
    # name: (collective, its Jacobian applied to [p, p, 2] in rank order)
    "all_reduce": (
        lambda x, axes: hccljax.all_reduce(x, axes, algorithm="ring"),
        lambda x: np.broadcast_to(x.sum(0), x.shape),
    ),
    "all_gather": (
        lambda x, axes: hccljax.all_gather(x, axes, algorithm="ring"),
        lambda x: np.broadcast_to(x, (RANKS, *x.shape)),
    ),
    "reduce_scatter": (lambda x, axes: hccljax.reduce_scatter(x, axes, algorithm="ring"), lambda x: x.sum(0)),
    "broadcast": (
        lambda x, axes: hccljax.broadcast(x, axes, 5, algorithm="tree"),
        lambda x: np.broadcast_to(x[5], x.shape),
    ),
    "all_to_all": (lambda x, axes: hccljax.all_to_all(x, axes, 0, 0), lambda x: x.swapaxes(0, 1)),
    "all_to_all mesh": (
        lambda x, axes: hccljax.all_to_all(x, axes, 0, 0, algorithm="mesh"),
        lambda x: x.swapaxes(0, 1),
    ),
    "all_gather mesh": (
        lambda x, axes: hccljax.all_gather(x, axes, algorithm="mesh"),
        lambda x: np.broadcast_to(x, (RANKS, *x.shape)),
    ),
    "send_recv": (
        lambda x, axes: hccljax.send_recv(x, axes, [(0, 1), (1, 6), (6, 3)]),
        lambda x: np.stack([x[s] if s >= 0 else 0 * x[0] for s in [-1, 0, -1, 6, -1, -1, 1, -1]]),
    ),
}


def gradient_of(map_all, x):
    """The gradient of Σ_r (r + 1) Σ map(x)_r² by the Jacobian, column by column."""
    weights = np.arange(1, RANKS + 1)
    out = map_all(x)
    cotangent = 2 * out * weights.reshape(-1, *[1] * (out.ndim - 1))
    columns = np.zeros_like(x)
    for index in np.ndindex(*x.shape[:-1]):
        unit = np.zeros_like(x)
        unit[index] = 1
        columns[index] = (map_all(unit) * cotangent).sum(tuple(range(out.ndim - 1)))
    return columns


@both_orders
def test_ranks_of_a_tuple_are_numbered_in_the_order_given(over_both, axes):
    names = LINEAR if axes != ("o", "i") else ("all_reduce", "all_gather", "all_to_all mesh")

    def every(x):
        return {name: squared(lambda x, c=c: c(x, axes), axes)(x) for name, (c, _) in LINEAR.items() if name in names}

    x = ranked(X, axes)
    for name, (value, gradient) in over_both(every)(X).items():
        map_all = LINEAR[name][1]
        np.testing.assert_array_equal(ranked(np.asarray(value), axes), map_all(x), err_msg=name)
        np.testing.assert_array_equal(ranked(np.asarray(gradient), axes), gradient_of(map_all, x), err_msg=name)


@both_orders
def test_a_tuple_of_axes_means_what_it_means_to_lax(make_mesh, same, axes):
    def ours(x):
        return (
            hccljax.all_gather(x, axes), hccljax.reduce_scatter(x, axes), hccljax.all_to_all(x, axes, 0, 0),
            hccljax.all_reduce(x, axes), hccljax.Group(axes).rank,
        )  # fmt: skip

    def twins(x):
        return (
            lax.all_gather(x, axes), lax.psum_scatter(x, axes), lax.all_to_all(x, axes, 0, 0),
            lax.psum(x, axes), lax.axis_index(axes),
        )  # fmt: skip

    def body(x):
        return jax.tree.map(lambda out: out[None, None], (ours(x[0, 0]), twins(x[0, 0])))

    mesh, spec = make_mesh(o=OUTER, i=INNER), P("o", "i")
    same(*jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))(X))


def test_lax_ppermute_numbers_ranks_in_mesh_order_and_send_recv_in_the_order_given(make_mesh):
    """If this fails, JAX has changed: ``mesh_order`` in hccljax and what its documentation says go with it."""
    axes, pairs = ("i", "o"), [(r, (r + 1) % RANKS) for r in range(RANKS)]

    def body(rank):
        return lax.ppermute(rank, axes, pairs), hccljax.send_recv(rank, axes, pairs)

    mesh, spec = make_mesh(o=OUTER, i=INNER), P("o", "i")
    numbers = np.arange(RANKS, dtype=np.int32).reshape(OUTER, INNER)
    by_lax, ours = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))(numbers)
    np.testing.assert_array_equal(by_lax, unranked(np.roll(ranked(numbers, ("o", "i")), 1), ("o", "i")))
    np.testing.assert_array_equal(ours, unranked(np.roll(ranked(numbers, axes), 1), axes))


@pytest.mark.parametrize("axis", ["o", "i"])
def test_one_axis_of_a_bigger_mesh(over_both, axis):
    position = ("o", "i").index(axis)

    def body(x):
        weight = lax.axis_index(("o", "i")).astype(x.dtype) + 1
        total = lambda x: hccljax.all_reduce(x, axis, algorithm="ring")  # noqa: E731
        gathered = hccljax.all_gather(x, axis, algorithm="ring")
        return total(x), gathered, jax.grad(lambda x: jnp.sum(total(x) ** 2 * weight))(x)

    total, gathered, gradient = over_both(body)(X)
    expected = np.broadcast_to(X.sum(position, keepdims=True), X.shape)
    np.testing.assert_array_equal(total, expected)
    rows = X if axis == "i" else X.swapaxes(0, 1)  # [other, axis, …]
    everywhere = np.broadcast_to(rows[:, None], (rows.shape[0], rows.shape[1], *rows.shape[1:]))
    np.testing.assert_array_equal(gathered, everywhere if axis == "i" else everywhere.swapaxes(0, 1))
    weights = np.arange(1, RANKS + 1).reshape(OUTER, INNER, 1, 1)
    weighted = (2 * expected * weights).sum(position, keepdims=True)
    np.testing.assert_array_equal(gradient, np.broadcast_to(weighted, X.shape))


def test_the_result_over_one_axis_still_varies_over_the_other(make_mesh):
    mesh = make_mesh(o=OUTER, i=INNER)

    def total(out_specs):
        fun = lambda x: hccljax.all_reduce(x[0, 0], "i")  # noqa: E731
        return jax.shard_map(lambda x: fun(x)[None], mesh=mesh, in_specs=P("o", "i"), out_specs=out_specs)

    np.testing.assert_array_equal(jax.jit(total(P("o")))(X), X.sum(1))
    with pytest.raises(ValueError, match=r"out_specs.*replicat"):
        jax.eval_shape(total(P()), X)


def test_a_replicated_result_over_a_tuple_of_vmap_and_shard_map(make_mesh):
    """The sum is one array for both axes: it leaves vmap by out_axes=None and shard_map by P()."""

    def body(x):
        return jax.vmap(lambda x: hccljax.all_reduce(x, ("o", "i")), axis_name="i", out_axes=None)(x[0])

    mapped = jax.shard_map(body, mesh=make_mesh(o=OUTER), in_specs=P("o"), out_specs=P())
    np.testing.assert_array_equal(jax.jit(mapped)(X), X.sum((0, 1)))
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(mapped(x) ** 2)))(X)
    np.testing.assert_array_equal(gradient, np.broadcast_to(2 * X.sum((0, 1)), X.shape))


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
def test_a_shard_map_that_is_manual_over_one_axis_only(make_mesh, checked):
    mesh = make_mesh(o=OUTER, i=INNER)

    def body(x):
        total = lambda x: hccljax.all_reduce(x, "i", algorithm="ring")  # noqa: E731
        weight = lax.axis_index("i").astype(x.dtype) + 1
        gathered = hccljax.all_gather(x, "i", algorithm="ring")
        return total(x), gathered, jax.grad(lambda x: jnp.sum(total(x) ** 2 * weight))(x)

    rows = X[0]
    out_specs = (P(), P("i"), P("i"))
    mapped = jax.shard_map(
        lambda x: (lambda total, gathered, gradient: (total, gathered[None], gradient[None]))(*body(x[0])),
        mesh=mesh, axis_names={"i"}, in_specs=P("i"), out_specs=out_specs, check_vma=checked,
    )  # fmt: skip
    total, gathered, gradient = jax.jit(mapped)(rows)
    np.testing.assert_array_equal(total, rows.sum(0))
    np.testing.assert_array_equal(gathered, np.broadcast_to(rows, (INNER, *rows.shape)))
    np.testing.assert_array_equal(gradient, np.broadcast_to(rows.sum(0) * 2 * 10, rows.shape))
