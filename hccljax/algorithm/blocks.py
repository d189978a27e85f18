"""Cutting a message into blocks and putting it together again, and the selections kernels need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Carry = TypeVar("Carry")


def repeat(count: int, step: Callable[[jax.Array, Carry], Carry], carry: Carry, start: int = 0) -> Carry:
    """step(s, carry) for s = start … start + count - 1; s is an int32 whatever jax_enable_x64 says."""
    return lax.fori_loop(np.int32(start), np.int32(start + count), step, carry)


def split_blocks(x: jax.Array, parts: int) -> jax.Array:
    """x of any shape → [parts, ceil(x.size / parts)], flattened, padded at the end with zeros.

    The padding is sent and reduced like the rest and cut off by ``join_blocks``.
    """
    flat = lax.reshape(x, (x.size,))
    length = -(-x.size // parts)
    if length * parts != x.size:
        flat = lax.pad(flat, lax.full_like(flat, 0, shape=()), [(0, length * parts - x.size, 0)])
    return lax.reshape(flat, (parts, length))


def join_blocks(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """[parts, length] → an array of the given shape; the inverse of ``split_blocks``."""
    flat = lax.reshape(blocks, (blocks.size,))
    size = math.prod(shape)
    if size != blocks.size:
        flat = lax.slice(flat, (0,), (size,))
    return lax.reshape(flat, shape)


def by_server(blocks: jax.Array, inside: int) -> jax.Array:
    """blocks [p, …] → [servers, inside, …]: by server, then by place in it."""
    return lax.reshape(blocks, (blocks.shape[0] // inside, inside, *blocks.shape[1:]))


def block_at(blocks: jax.Array, index: jax.Array) -> jax.Array:
    """blocks [p, …], a traced index in range(p) → block […]."""
    return lax.dynamic_index_in_dim(blocks, index, 0, keepdims=False, allow_negative_indices=False)


def with_block(blocks: jax.Array, block: jax.Array, index: jax.Array | int) -> jax.Array:
    """blocks [p, …] with the block at a traced index replaced."""
    return lax.dynamic_update_index_in_dim(blocks, block, index, 0, allow_negative_indices=False)


def take_rows(blocks: jax.Array, indices: jax.Array) -> jax.Array:
    """The blocks at traced indices [n] → [n, …], n at least 1."""
    out = with_block(lax.empty((indices.size, *blocks.shape[1:]), blocks.dtype), block_at(blocks, indices[0]), 0)
    step = lambda i, out: with_block(out, block_at(blocks, block_at(indices, i)), i)  # noqa: E731
    return repeat(indices.size - 1, step, out, start=1)


def place_rows(out: jax.Array, rows: jax.Array, indices: jax.Array) -> jax.Array:
    """out with row i of rows [n, …] at the traced indices[i], n at least 1."""
    # The first one outside the loop: it gives an empty array the replication type that the loop carries.
    out = with_block(out, rows[0], indices[0])
    step = lambda i, out: with_block(out, block_at(rows, i), block_at(indices, i))  # noqa: E731
    return repeat(indices.size - 1, step, out, start=1)


def wrap(index: jax.Array, p: int) -> jax.Array:
    """index (at least -2p) modulo p; one remainder instead of the sign-aware ``%`` and its five selections."""
    return lax.rem(index + np.int32(2 * p), np.int32(p))


def choose(condition: jax.Array, chosen: jax.Array, other: jax.Array) -> jax.Array:
    """chosen where the scalar condition holds, else other: a selection that fuses, never a branch."""
    return lax.select(lax.broadcast(condition, chosen.shape), chosen, other)


def look_up(table: np.ndarray, rank: jax.Array) -> jax.Array:
    """The entry of a static per-rank table for this rank: a scalar."""
    return block_at(jnp.asarray(table), rank)  # half as long to trace as indexing
