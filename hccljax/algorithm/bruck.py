"""Bruck's all-to-all: every block travels by the binary digits of its distance, ceil(log2 p) messages for each rank.

Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport
message-passing systems" (1997). Fewer messages than pairwise, but each block is sent once for each digit that is 1:
for short messages.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import place_rows, take_rows, wrap
from hccljax.group import Group
from hccljax.shapes import Blocks


def all_to_all(blocks: Blocks, group: Group) -> Blocks:
    """blocks [p, …] → [p, …]; block i of the result comes from rank i.

    rows[j] has to go j ranks ahead; the step of distance d takes every row there whose j has the digit d.
    """
    p, rank = group.size, group.rank
    ahead = jnp.arange(p, dtype=jnp.int32)
    rows = take_rows(blocks, wrap(rank + ahead, p))
    for s in range((p - 1).bit_length()):
        d = 1 << s
        # [times, 2, d, …]: the digit d of j is the second index. Beyond p there are only rows with the digit.
        rows = _padded(rows, -(-p // (2 * d)) * 2 * d)
        halves = lax.reshape(rows, (rows.shape[0] // (2 * d), 2, d, *rows.shape[1:]))
        stay, leave = halves[:, 0], halves[:, 1]
        travelling = lax.reshape(leave, (rows.shape[0] // 2, *rows.shape[1:]))[: blocks_sent(p, s)]
        received = group.shift(travelling, d, "bruck")
        arrived = lax.reshape(_padded(received, rows.shape[0] // 2), leave.shape)
        rows = lax.reshape(jnp.stack([stay, arrived], 1), rows.shape)[:p]
    return place_rows(lax.empty(rows.shape, rows.dtype), rows, wrap(rank - ahead, p))


def blocks_sent(p: int, s: int) -> int:
    """Numbers below p whose digit 2^s is 1."""
    d = 1 << s
    return p // (2 * d) * d + max(0, p % (2 * d) - d)


def _padded(rows: jax.Array, count: int) -> jax.Array:
    """rows [n, …] → [count, …], zeros at the end."""
    behind = [(0, count - rows.shape[0], 0), *[(0, 0, 0)] * (rows.ndim - 1)]
    return lax.pad(rows, lax.full_like(rows, 0, shape=()), behind)


def steps(operator: str, p: int, nbytes: int) -> int:
    """One step for each binary digit of p - 1."""
    return (p - 1).bit_length()


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """A block for each distance below p and each digit of it that is 1."""
    return sum(blocks_sent(p, s) for s in range((p - 1).bit_length())) * -(-nbytes // p)


bruck = register(
    Algorithm(
        name="bruck",
        source="Bruck and others 1997",
        steps=steps,
        bytes_sent=bytes_sent,
        all_to_all=all_to_all,
    )
)
