"""Pairwise exchange: at step k every rank sends to the rank k places ahead and hears from the one k places behind.

Source: HCCL's pairwise; MPI's long-message all-to-all (Thakur, Rabenseifner and Gropp 2005).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import block_at, look_up, with_block, wrap
from hccljax.group import Group
from hccljax.shapes import Blocks, Message


def all_to_all(blocks: Blocks, group: Group) -> Blocks:
    """blocks [p, …] → [p, …]; block i of the result comes from rank i."""
    p, rank = group.size, group.rank
    out = with_block(lax.empty(blocks.shape, blocks.dtype), block_at(blocks, rank), rank)
    for k in range(1, p):
        # One step waits for the one before: a rank has one message under way, which sets pairwise off from mesh.
        block, out = lax.optimization_barrier((block_at(blocks, wrap(rank + k, p)), out))
        out = with_block(out, group.shift(block, k, "pairwise"), wrap(rank - k, p))
    return out


def all_to_all_vc(x: Message, group: Group, matrix: np.ndarray) -> Message:
    """x [largest row sum, …] → [largest column sum, …]; matrix[i, j] rows go from rank i to rank j.

    Both are packed in rank order; rows of the result beyond the rank's own column sum are zeros. Step k moves as many
    rows as the longest message of that step, on every rank, since one program runs on all; an empty step is left out.
    """
    p, rank = group.size, group.rank
    ranks, matrix = np.arange(p), matrix.astype(np.int32)
    leaves_at, arrives_at = np.cumsum(matrix, 1) - matrix, np.cumsum(matrix, 0) - matrix
    longest = [int(matrix[ranks, (ranks + k) % p].max()) for k in range(p)]
    # A slice as long as the longest message must not run over the end, where JAX would move it.
    sent, received = (int(starts.max()) + max(longest) for starts in (leaves_at, arrives_at))
    x = lax.pad(x, lax.full_like(x, 0, shape=()), [(0, sent - x.shape[0], 0), *[(0, 0, 0)] * (x.ndim - 1)])
    out = jnp.zeros((received, *x.shape[1:]), x.dtype)
    for k, length in enumerate(longest):
        if not length:
            continue
        block = lax.dynamic_slice_in_dim(x, look_up(leaves_at[ranks, (ranks + k) % p], rank), length)
        if k:
            # As in all_to_all, one step waits for the one before.
            block, out = lax.optimization_barrier((block, out))
            block = group.shift(block, k, "pairwise")
        counts, start = matrix[(ranks - k) % p, ranks], look_up(arrives_at[(ranks - k) % p, ranks], rank)
        if (counts < length).any():
            own = lax.iota(jnp.int32, length) < look_up(counts, rank)
            there = lax.dynamic_slice_in_dim(out, start, length)
            block = lax.select(lax.broadcast_in_dim(own, block.shape, (0,)), block, there)
        out = lax.dynamic_update_slice_in_dim(out, block, start, 0)
    return lax.slice_in_dim(out, 0, int(matrix.sum(0).max()))


def steps(operator: str, p: int, nbytes: int) -> int:
    """One step for every other rank."""
    return p - 1


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """One block to every other rank."""
    return (p - 1) * -(-nbytes // p)


pairwise = register(
    Algorithm(
        name="pairwise",
        source="HCCL's pairwise; Thakur, Rabenseifner and Gropp 2005",
        steps=steps,
        bytes_sent=bytes_sent,
        all_to_all=all_to_all,
    )
)
