"""A message that is longer than the buffer, in slices: one loop whose body runs the algorithm on one slice.

HCCL copies a message through a buffer of HCCL_BUFFSIZE bytes and runs the collective once for every filling. Here the
buffer bounds what one run holds: the steps of a slice work on a slice's memory, whatever the length of the message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import lax

from hccljax.algorithm.base import GIVES_BLOCKS, OPERATORS, REDUCING, ROOTED, TAKES_BLOCKS, Algorithm, Kernel, run
from hccljax.algorithm.blocks import repeat
from hccljax.group import Group
from hccljax.primitives.replication import vary

INDEXED = (1 << 31) - 1
"""Elements that 32-bit indices reach; JAX has no others unless 64-bit types are enabled."""


@lru_cache(maxsize=256)
def sliced(algorithm: Algorithm, buffer: int) -> Algorithm:
    """The algorithm, at most ``buffer`` bytes of a message (all p blocks, rounded up to whole elements) at a time."""

    def steps(operator: str, p: int, nbytes: int) -> int:
        count = fillings(nbytes, buffer)
        return count * algorithm.cost(operator, p, -(-nbytes // count)).steps

    def bytes_sent(operator: str, p: int, nbytes: int) -> int:
        count = fillings(nbytes, buffer)
        return count * algorithm.cost(operator, p, -(-nbytes // count)).bytes_sent

    kernels: dict[str, Any] = {
        name: _kernel(algorithm, name, buffer) if algorithm.supports(name) else None for name in OPERATORS
    }
    return replace(algorithm, steps=steps, bytes_sent=bytes_sent, rooted=True, **kernels)


def fillings(nbytes: int, buffer: int) -> int:
    """How many slices a message is cut in, all equally long: where they do not fit, the last overlaps the other one."""
    return max(1, -(-nbytes // buffer))


def _kernel(algorithm: Algorithm, operator: str, buffer: int) -> Kernel:
    def kernel(x: jax.Array, group: Group, *arguments: object) -> jax.Array:
        op = arguments[0] if operator in REDUCING else None
        root = arguments[-1] if operator in ROOTED else 0

        def one(x: jax.Array) -> jax.Array:
            return run(algorithm, operator, x, group, op, root)  # type: ignore[arg-type]

        return in_slices(one, x, group, operator, buffer)

    return kernel


def in_slices(
    one: Callable[[jax.Array], jax.Array], x: jax.Array, group: Group, operator: str, buffer: int
) -> jax.Array:
    """one(x), computed from slices of x. Elements of a block stay together with those of the other blocks.

    The last slice ends where the message ends, and so repeats elements of the one before: no copy is made to pad it.
    """
    blocks_in, blocks_out = operator in TAKES_BLOCKS, operator in GIVES_BLOCKS
    shape = x.shape[1:] if blocks_in else x.shape
    length = math.prod(shape)
    blocks = group.size if blocks_in or blocks_out else 1
    count = min(fillings(length * blocks * x.dtype.itemsize, buffer), length)
    if count < 2:
        return one(x)
    width = -(-length // count)
    even = -(-width // group.size) * group.size
    if -(-length // even) == count:  # as many slices, whose blocks are as long as each other
        width = even
    rows = lax.reshape(x, (x.shape[0], length) if blocks_in else (length,))
    reach = max(1, INDEXED // width) * width  # what one loop can index: all, unless there are billions of elements
    parts: list[jax.Array] = []
    for start in range(0, length, reach):
        first = max(0, min(start, length - width))
        part = lax.slice_in_dim(rows, first, min(start + reach, length), axis=-1) if reach < length else rows
        if parts:  # one buffer, again
            part, _ = lax.optimization_barrier((part, lax.slice_in_dim(parts[-1], 0, 1, axis=-1)))
        out = _looped(one, part, width, group)
        parts.append(lax.slice_in_dim(out, start - first, None, axis=-1) if start > first else out)
    out = parts[0] if len(parts) == 1 else lax.concatenate(parts, parts[0].ndim - 1)
    return lax.reshape(out, (*out.shape[:-1], *shape))


def _looped(one: Callable[[jax.Array], jax.Array], rows: jax.Array, width: int, group: Group) -> jax.Array:
    """one(rows) along the last dimension, so many elements at a time."""
    length = rows.shape[-1]
    result = jax.eval_shape(one, jax.ShapeDtypeStruct((*rows.shape[:-1], width), rows.dtype))
    out = vary(lax.empty((*result.shape[:-1], length), result.dtype), group.axes)

    def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, done = carry
        start = lax.min(i * np.int32(width), np.int32(length - width))
        part = lax.dynamic_slice_in_dim(rows, start, width, rows.ndim - 1, allow_negative_indices=False)
        # There is one buffer: a slice waits until the one before it has left.
        part, _ = lax.optimization_barrier((part, done))
        part = one(part)
        out = lax.dynamic_update_slice_in_dim(out, part, start, out.ndim - 1)
        return out, lax.slice(lax.reshape(part, (part.size,)), (0,), (1,))

    done = vary(lax.empty((1,), result.dtype), group.axes)
    out, _ = repeat(-(-length // width), step, (out, done))
    return out
