"""Arrays of one kind as one message, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable

import jax
from jax import lax

from hccljax.collectives.leaf import message_bytes
from hccljax.collectives.sharded import spec_of
from hccljax.primitives.compat import unreduced, varying
from hccljax.training.buckets import Leaf


def leaf_of(x: jax.Array) -> Leaf:
    """What may share a bucket: joining arrays must change neither a dtype nor a type, nor move an array."""
    # An array that is the same on every rank would be taken for a varying one among others, and summed in silence.
    kind = None if _apart(x) else (x.dtype, jax.typeof(x).weak_type, varying(x))
    return Leaf(kind, message_bytes(x), x.dtype.itemsize)


def packed(arrays: list[jax.Array]) -> jax.Array:
    """Arrays […] → [elements of all of them]; one array as it is."""
    if len(arrays) == 1:
        return arrays[0]
    return lax.concatenate([lax.reshape(x, (x.size,)) for x in arrays], 0)


def unpacked(total: jax.Array, shapes: list[tuple[int, ...]]) -> Iterable[jax.Array]:
    """The inverse of ``packed``."""
    if len(shapes) == 1:
        yield total
        return
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        yield lax.reshape(lax.slice(total, (start,), (end,)), shape)
        start = end


def after(done: jax.Array, arrays: list[jax.Array]) -> list[jax.Array]:
    """The arrays as they are, but not before done is known; arrays that are sharded over other axes do not wait.

    XLA removes an ``optimization_barrier`` before it schedules, and then packs all buckets first: 168 MB of temporary
    memory for 93 MB of gradients in buckets of 4 MB, with a barrier or without, 92 MB with this (two in flight,
    jaxlib 0.10.2, CPU). So the arrays depend on a value of done, by a choice that XLA cannot foresee: no number is
    above and below one.
    """
    if done.size == 0 or any(map(_apart, [done, *arrays])):
        return arrays
    value = lax.index_in_dim(lax.reshape(done, (done.size,)), 0, keepdims=False)
    if jax.numpy.issubdtype(value.dtype, jax.numpy.complexfloating):
        value = lax.real(value)
    one = lax.full_like(value, 1)
    never = lax.bitwise_and(lax.gt(value, one), lax.lt(value, one))
    return [lax.select(never, lax.full_like(x, 0), x) for x in arrays]


def _apart(x: jax.Array) -> bool:
    return any(spec_of(x)) or bool(unreduced(x))
