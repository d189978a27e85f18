"""What the training tests share: three ways to run a per-device function, and a loss that is exact in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

AXES = {"data": 8}


@pytest.fixture(params=["checked", "unchecked", "vmap"])
def mode(request):
    """How the axes are mapped."""
    return request.param


@pytest.fixture
def on_ranks(mode):
    """on_ranks(fun, axes): fun(params, *local data) on every rank.

    The result takes the same params for all ranks, and data with one row for each rank. What comes back is stacked
    [p, …], one row for each rank. With replicated=True the results are promised to be the same on every rank, and
    there are no rows.
    """
    return lambda fun, axes=None, replicated=False: on_ranks_in(mode, fun, axes or AXES, replicated)


@pytest.fixture
def in_mode():
    """on_ranks of a mode that is named: in_mode(mode, fun, axes, replicated)."""
    return on_ranks_in


def on_ranks_in(mode, fun, axes, replicated):
    """As the fixture on_ranks says."""
    return jax.jit(
        _vmapped(fun, axes, replicated) if mode == "vmap" else _sharded(fun, axes, replicated, mode == "checked")
    )


def _sharded(fun, axes, replicated, checked):
    shape = tuple(axes.values())
    mesh = jax.make_mesh(shape, tuple(axes), (AxisType.Auto,) * len(axes), devices=jax.devices()[: np.prod(shape)])
    rows = PartitionSpec(tuple(axes))

    def local(params, *data):
        out = fun(params, *jax.tree.map(lambda leaf: leaf[0], data))
        return out if replicated else jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], out)

    def everywhere(params, *data):
        specs = (PartitionSpec(), *[rows] * len(data))
        out = PartitionSpec() if replicated else rows
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out, check_vma=checked)(params, *data)

    return everywhere


def _vmapped(fun, axes, replicated):
    shape, count = tuple(axes.values()), len(axes)

    def everywhere(params, *data):
        data = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), data)
        mapped = fun
        for name, size in reversed(axes.items()):
            in_axes, out_axes = (None, *[0] * len(data)), None if replicated else 0
            mapped = jax.vmap(mapped, in_axes=in_axes, out_axes=out_axes, axis_name=name, axis_size=size)
        out = mapped(params, *data)
        return out if replicated else jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[count:]), out)

    return everywhere


@pytest.fixture(scope="session")
def linear():
    """(loss, params, x [8, 2, 3], y [8, 2, 2]): linear regression whose small integers make every sum exact."""
    draw = np.random.default_rng(1)

    def loss(params, x, y):
        residual = x @ params["w"] + params["b"] - y
        return (residual**2).mean()

    params = {"w": np.float32(draw.integers(-2, 3, (3, 2))), "b": np.float32(draw.integers(-2, 3, 2))}
    x, y = (np.float32(draw.integers(-2, 3, (8, 2, n))) for n in (3, 2))
    return loss, params, x, y


@pytest.fixture(scope="session")
def by_hand():
    """by_hand(params, x [n, 3], y [n, 2]) → (loss, gradients) of the linear loss in NumPy's float64."""

    def value_and_grad(params, x, y):
        w, b, x, y = (np.asarray(array, np.float64) for array in (params["w"], params["b"], x, y))
        residual = x @ w + b - y
        scale = 2 / residual.size
        return (residual**2).mean(), {"w": scale * x.T @ residual, "b": scale * residual.sum(0)}

    return value_and_grad
