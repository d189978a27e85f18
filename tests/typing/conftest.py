"""The modes in which a per-device function runs, as fixtures, and the data and checks that these tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

AXIS = "i"


def mesh_of(**sizes: int) -> Mesh:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


@dataclass(frozen=True)
class Mode:
    """One way to run a function of one rank's arrays on all ranks: arrays come and go with a leading rank axis."""

    name: str

    @property
    def checked(self) -> bool:
        return self.name == "checked"

    def map(self, fun: Callable[..., Any], p: int = 4) -> Callable[..., Any]:
        """Every rank's result, stacked."""
        if self.name == "vmap":
            return jax.vmap(fun, axis_name=AXIS)

        def body(*rows: Any) -> Any:
            return jax.tree.map(lambda out: out[None], fun(*jax.tree.map(lambda row: row[0], rows)))

        return jax.shard_map(body, mesh=mesh_of(i=p), in_specs=P(AXIS), out_specs=P(AXIS), check_vma=self.checked)

    def once(self, fun: Callable[..., Any], p: int = 4) -> Callable[..., Any]:
        """The one result that the mode accepts as the same on every rank."""
        if self.name == "vmap":
            return jax.vmap(fun, axis_name=AXIS, out_axes=None)

        def body(*rows: Any) -> Any:
            return fun(*jax.tree.map(lambda row: row[0], rows))

        return jax.shard_map(body, mesh=mesh_of(i=p), in_specs=P(AXIS), out_specs=P(), check_vma=self.checked)


@pytest.fixture(params=["checked", "unchecked", "vmap"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return Mode(request.param)


@pytest.fixture
def make_mode() -> type[Mode]:
    return Mode


@pytest.fixture
def make_mesh() -> Callable[..., Mesh]:
    return mesh_of


def integers(shape: tuple[int, ...], seed: int = 0, low: int = -3, high: int = 4) -> jax.Array:
    """Small integers as float32: their sums, products and powers of two of them are exact."""
    return jnp.asarray(np.random.default_rng(seed).integers(low, high, shape), jnp.float32)


@pytest.fixture
def data() -> Callable[..., jax.Array]:
    return integers


def assert_same(actual: Any, desired: Any, **tolerance: float) -> None:
    """The two trees agree in structure, shapes, dtypes and (bit for bit, or within the tolerance) values."""
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    flat, wanted = jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(desired)
    for (path, one), other in zip(flat, wanted, strict=True):
        where = jax.tree_util.keystr(path)
        assert one.dtype == other.dtype, where
        if tolerance:
            np.testing.assert_allclose(one, other, err_msg=where, **tolerance)
        else:
            np.testing.assert_array_equal(one, other, err_msg=where, strict=True)


@pytest.fixture
def same() -> Callable[..., None]:
    return assert_same


# Transformations of one collective ---------------------------------------------------------------------------------


def weight(x: jax.Array) -> jax.Array:
    """A number that differs from rank to rank, so that a mixed-up rank shows in every gradient."""
    return lax.axis_index(AXIS).astype(x.dtype) + 1


def squared(collective: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """A loss whose second derivatives depend on x and whose first ones on every rank's weight, and the values."""

    def loss(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = collective(x * x)
        return jnp.sum(out**2 * weight(x)), out * weight(x)

    return loss


def inside(collective: Callable[[jax.Array], jax.Array], x: jax.Array) -> dict[str, Any]:
    """What the transformations inside the mapped function make of a collective, on one rank."""
    loss = squared(collective)
    batch = jnp.stack([x, x + weight(x)])
    linearized, tangent_map = jax.linearize(lambda x: loss(x)[1], x)
    return {
        "value and grad": jax.value_and_grad(loss, has_aux=True)(x),
        "grad of a loss without weights": jax.grad(lambda x: jnp.sum(collective(x * x) ** 2))(x),
        "linearize": (linearized, tangent_map(batch[1])),
        "hessian of remat": jax.hessian(jax.checkpoint(lambda x: loss(x)[0]))(x),
        "grad of vmap": jax.grad(lambda batch: jnp.sum(jax.vmap(loss)(batch)[0]))(batch),
    }


def outside(mode: Mode, collective: Callable[[jax.Array], jax.Array], xs: jax.Array) -> dict[str, Any]:
    """What the transformations around the mapped function make of a collective, on all ranks."""
    p = xs.shape[0]

    def loss(xs: jax.Array) -> tuple[jax.Array, jax.Array]:
        losses, values = mode.map(squared(collective), p)(xs)
        return jnp.sum(losses * jnp.arange(1, p + 1, dtype=xs.dtype)), values

    scalar = jax.checkpoint(lambda xs: loss(xs)[0])
    return {
        "second order of remat": jax.jvp(jax.grad(scalar), (xs,), (xs + 1,)),
        "vmap of grad": jax.vmap(jax.value_and_grad(loss, has_aux=True))(jnp.stack([xs, xs + 1])),
    }


def some(mode: Mode, collective: Callable[[jax.Array], jax.Array], xs: jax.Array) -> dict[str, Any]:
    """The few transformations that together need every rule of a collective: forward, tangent, transpose, batched."""
    p = xs.shape[0]
    loss = squared(collective)

    def within(x: jax.Array) -> Any:
        return jax.jvp(jax.value_and_grad(loss, has_aux=True), (x,), (x + weight(x),))

    def around(xs: jax.Array) -> jax.Array:
        return jnp.sum(mode.map(lambda x: loss(x)[0], p)(xs) * jnp.arange(1, p + 1, dtype=xs.dtype))

    return {
        "second order, grad inside": mode.map(within, p)(xs),
        "grad outside, with a batch": jax.vmap(jax.grad(around))(jnp.stack([xs, xs + 1])),
    }


@dataclass(frozen=True)
class Transformations:
    inside: Callable[..., dict[str, Any]] = inside
    outside: Callable[..., dict[str, Any]] = outside
    some: Callable[..., dict[str, Any]] = some
    squared: Callable[..., Any] = squared


@pytest.fixture
def transformations() -> Transformations:
    return Transformations()
