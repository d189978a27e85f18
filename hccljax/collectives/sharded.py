"""Operands that are sharded over mesh axes of the Explicit kind, which a partial-manual shard_map leaves unmapped.

Kernels cut arrays into blocks and join them again, which JAX has no sharding rule for. Here the result is given the
sharding of the operand; the dimension of the blocks, [p, …], is never sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, auto_axes

from hccljax.algorithm.base import dimensions_after

Spec = tuple[Any, ...]


def spec_of(x: jax.Array) -> Spec:
    """For each dimension of x, the Explicit mesh axis (or a tuple of them) that it is sharded over, or None."""
    spec = tuple(jax.typeof(x).sharding.spec)
    return (*spec, *(None,) * (x.ndim - len(spec)))


def reshaped(x: jax.Array, shape: tuple[int, ...], spec: Spec) -> jax.Array:
    """x in another shape, sharded as spec says."""
    return jnp.reshape(x, shape, out_sharding=PartitionSpec(*spec) if any(spec) else None)


def sharded_alike(call: Callable[[jax.Array], jax.Array], x: jax.Array, operator: str) -> jax.Array:
    """call(x), the kernel of operator, with these axes left to the compiler inside."""
    spec = spec_of(x)
    axes = {axis for entry in spec if entry for axis in ((entry,) if isinstance(entry, str) else entry)}
    if not axes:
        return call(x)
    spec = dimensions_after(operator, spec, None)
    return auto_axes(call, axes=tuple(axes), out_sharding=PartitionSpec(*spec))(x)
