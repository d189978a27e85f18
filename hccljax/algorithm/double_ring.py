"""Double ring: two rings in opposite directions at the same time, each with half of every block.

Source: HCCL's double ring; ``ring`` says what one of them does. As many steps and bytes as one ring, but every step
uses both directions of the links: half of the time where they are independent. A block of one element cannot be halved
and goes round one ring.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

import hccljax.algorithm.ring as ring
from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import join_blocks, repeat, split_blocks, wrap
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message

Halves = tuple[jax.Array, jax.Array]

WAYS = (1, -1)
"""The first half of a block goes to the next rank, the second to the one before."""


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]."""
    shape = blocks.shape[1:]
    if math.prod(shape) < 2:
        return ring.reduce_scatter(blocks, group, op)
    halves = _reduce(lax.reshape(blocks, (group.size, math.prod(shape))), group, op)
    return lax.reshape(lax.concatenate(halves, 0), shape)


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]."""
    if block.size < 2:
        return ring.all_gather(block, group)
    flat, cut = lax.reshape(block, (block.size,)), _cut(block.size)
    return lax.reshape(_gather((flat[:cut], flat[cut:]), group), (group.size, *block.shape))


def all_reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […]; the halves are never put together in between."""
    blocks = split_blocks(x, group.size)
    if blocks.shape[1] < 2:
        return join_blocks(ring.all_gather(ring.reduce_scatter(blocks, group, op), group), x.shape)
    return join_blocks(_gather(_reduce(blocks, group, op), group), x.shape)


def _reduce(blocks: jax.Array, group: Group, op: Reduction) -> Halves:
    """blocks [p, L] → the two halves of this rank's block; only they are carried."""

    def step(s: jax.Array, moving: Halves) -> Halves:
        received = [_onward(half, group, way, "reduce") for half, way in zip(moving, WAYS, strict=True)]
        first, second = (_half(blocks, _behind(group, way, 2 + s), way) for way in WAYS)
        return op(received[0], first), op(received[1], second)

    first, second = (_half(blocks, _behind(group, way, np.int32(1)), way) for way in WAYS)
    return repeat(group.size - 1, step, (first, second))


def _gather(halves: Halves, group: Group) -> jax.Array:
    """The two halves of this rank's block → [p, L]."""
    first, second = halves
    out = lax.empty((group.size, first.size + second.size), first.dtype)
    for half, way in zip(halves, WAYS, strict=True):
        out = _with_half(out, half, group.rank, way)

    def step(s: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        *moving, out = carry
        first, second = (_onward(half, group, way, "gather") for half, way in zip(moving, WAYS, strict=True))
        for half, way in zip((first, second), WAYS, strict=True):
            out = _with_half(out, half, _behind(group, way, 1 + s), way)
        return first, second, out

    return repeat(group.size - 1, step, (first, second, out))[2]


def _onward(half: jax.Array, group: Group, way: int, phase: str) -> jax.Array:
    return group.shift(half, way, f"double_ring_{phase}")


def _behind(group: Group, way: int, places: jax.Array | np.int32) -> jax.Array:
    """The rank that many places behind this one in the direction of travel: int32 scalar."""
    return wrap(group.rank - places if way > 0 else group.rank + places, group.size)


def _cut(length: int) -> int:
    """Where a block of that length is halved; the first half has the odd element."""
    return -(-length // 2)


def _half(blocks: jax.Array, index: jax.Array, way: int) -> jax.Array:
    """One half of the block at a traced index of blocks [p, L]; the message as a whole is never cut and copied."""
    length, cut = blocks.shape[1], _cut(blocks.shape[1])
    start, size = (0, cut) if way > 0 else (cut, length - cut)
    return lax.dynamic_slice(blocks, (index, np.int32(start)), (1, size), allow_negative_indices=False)[0]


def _with_half(blocks: jax.Array, half: jax.Array, index: jax.Array, way: int) -> jax.Array:
    """blocks [p, L] with one half of the block at a traced index replaced."""
    start = np.int32(0 if way > 0 else _cut(blocks.shape[1]))
    return lax.dynamic_update_slice(blocks, half[None], (index, start), allow_negative_indices=False)


double_ring = register(
    Algorithm(
        name="double_ring",
        source="HCCL's double ring",
        steps=ring.steps,
        bytes_sent=ring.bytes_sent,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        all_reduce=all_reduce,
        order="the first half of a block as in ring; its second half starts on rank b - 1 and meets b - 2, b - 3, …, b",
    )
)
