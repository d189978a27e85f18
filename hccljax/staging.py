"""A tree of arrays through buffers of a few sizes: programs compiled for one model serve the next.

XLA compiles for shapes, and so a model whose leaves have other shapes would compile its collectives anew (a ring on 8
devices: 0.3 s). NumPy packs any shapes without compiling: on CPU devices it copies what the device itself would copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding

from hccljax.collectives.leaf import as_array
from hccljax.training.buckets import Leaf, plan

LEAST = 1024
"""Elements of the smallest buffer."""

CLASSES = 4
"""Sizes of buffers between one power of two and the next: a fifth of a buffer is padding at most."""


def is_staged(tree: Any) -> bool:
    """Whether NumPy can hold every leaf: none is being traced, or of a dtype that only JAX knows."""
    return not any(
        isinstance(leaf, jax.core.Tracer)
        or (isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended))
        for leaf in jax.tree.leaves(tree)
    )


def as_rows(leaf: Any) -> jax.Array | np.ndarray:
    """A leaf as an array with JAX's dtype; one of NumPy stays one, as to make it JAX's compiles a program a shape."""
    if not isinstance(leaf, np.ndarray) or not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == np.bool_):
        return as_array(leaf)
    return leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)


def keeps_dtype(dtype: np.dtype, op: str) -> bool:
    """Whether the result has the operand's dtype, and so fits into its buffer."""
    if op == "mean":
        return jnp.issubdtype(dtype, jnp.inexact)
    return dtype != np.bool_ or op in ("max", "min")


def capacity(elements: int) -> int:
    """Elements of the buffer that holds so many: the next of the sizes 1, 1.25, 1.5 and 1.75 times a power of two."""
    step = max(1 << max(elements - 1, 1).bit_length() - 1, LEAST) // CLASSES
    return max(LEAST, -(-elements // step) * step)


def all_reduced(
    tree: Any,
    longest: int,
    sharding: NamedSharding | SingleDeviceSharding,
    reduce: Callable[[jax.Array], jax.Array],
) -> Any:
    """The leaves [rows, …] reduced in buffers [rows, capacity].

    Args:
      tree: of arrays.
      longest: bytes of one row that several leaves fill together.
      sharding: of buffers and results.
      reduce: buffer → buffer, every row of it reduced; it may take the memory of its operand.
    """
    arrays, structure = jax.tree.flatten(tree)
    leaves = [Leaf(x.dtype, x.nbytes // x.shape[0], x.dtype.itemsize) for x in arrays]
    # All of them are on their way before the first one is waited for.
    sums = [(bucket, reduce(_packed([arrays[i] for i in bucket], sharding))) for bucket in plan(leaves, longest)]
    for bucket, total in sums:
        for i, x in zip(bucket, _unpacked(total, [arrays[i].shape for i in bucket]), strict=True):
            arrays[i] = x
    return jax.tree.unflatten(structure, arrays)


def _rows(x: jax.Array | np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Pieces of x along its leading axis, each as it lies on its device: (which rows, they)."""
    if isinstance(x, np.ndarray) or any(shard.data.shape[1:] != x.shape[1:] for shard in x.addressable_shards):
        yield slice(None), np.asarray(x)
        return
    for shard in x.addressable_shards:
        if shard.replica_id == 0:
            yield shard.index[0], np.asarray(shard.data)


def _packed(arrays: list[Any], sharding: Any) -> jax.Array:
    rows = arrays[0].shape[0]
    elements = sum(x.size for x in arrays) // rows
    buffer = _unaligned((rows, capacity(elements)), arrays[0].dtype)
    start = 0
    for x in arrays:
        end = start + x.size // rows
        for where, piece in _rows(x):
            buffer[where, start:end] = piece.reshape(piece.shape[0], end - start)
        start = end
    return jax.device_put(buffer, sharding)


def _unaligned(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Zeros that JAX has to copy: it takes over NumPy's memory where that is aligned to 64 bytes (jax 0.10.2), even
    with may_alias=False, and a program cannot be given what NumPy still holds.
    """
    nbytes = shape[0] * shape[1] * dtype.itemsize
    memory = np.zeros(nbytes + 64, np.uint8)
    start = (8 - memory.ctypes.data) % 64
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _unpacked(total: jax.Array, shapes: list[tuple[int, ...]]) -> Iterator[jax.Array]:
    pieces = [(shard.device, np.asarray(shard.data)) for shard in total.addressable_shards]
    rows, start = total.shape[0], 0
    for shape in shapes:
        end = start + int(np.prod(shape[1:]))
        parts = [piece[:, start:end].reshape(piece.shape[0], *shape[1:]) for _, piece in pieces]
        placed = jax.device_put(parts, [device for device, _ in pieces])
        yield jax.make_array_from_single_device_arrays((rows, *shape[1:]), total.sharding, placed)
        start = end
