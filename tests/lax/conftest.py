"""How these tests run one program, written once for a module ``lax``, with jax.lax and with hccljax.lax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

AXIS = "i"
MODES = ("checked", "unchecked", "vmap")


def run_on_ranks(fun: Callable[..., Any], mode: str, *rows: Any) -> Any:
    """fun of one rank's arrays, on all ranks at once: trees of arrays come and go with a leading rank axis."""
    if mode == "vmap":
        mapped = jax.vmap(fun, axis_name=AXIS)
    else:
        p = jax.tree.leaves(rows)[0].shape[0]
        mesh = jax.make_mesh((p,), (AXIS,), axis_types=(AxisType.Auto,))

        def body(*local: Any) -> Any:
            return jax.tree.map(lambda out: out[None], fun(*jax.tree.map(lambda row: row[0], local)))

        mapped = jax.shard_map(body, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=mode == "checked")
    return jax.jit(mapped)(*rows)


@pytest.fixture
def on_ranks() -> Callable[..., Any]:
    return run_on_ranks


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def assert_close(actual: Any, desired: Any, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    """The trees agree in structure, shapes and dtypes, and in values up to the order of additions."""
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    flat = jax.tree_util.tree_leaves_with_path(actual)
    for (path, one), other in zip(flat, jax.tree.leaves(desired), strict=True):
        where = jax.tree_util.keystr(path)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=where)


@pytest.fixture
def close() -> Callable[..., None]:
    return assert_close


@pytest.fixture
def normal() -> Callable[..., np.ndarray]:
    """normal(*shape): float32 normal numbers, always the same."""
    rng = np.random.default_rng(0)
    return lambda *shape: rng.normal(size=shape).astype(np.float32)
