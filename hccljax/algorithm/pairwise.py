"""Pairwise exchange: at step k every rank sends to the rank k places ahead and hears from the one k places behind.

Source: HCCL's pairwise; MPI's long-message all-to-all (Thakur, Rabenseifner and Gropp 2005).
"""

from __future__ import annotations

from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import block_at, with_block, wrap
from hccljax.group import Group
from hccljax.shapes import Blocks


def all_to_all(blocks: Blocks, group: Group) -> Blocks:
    """blocks [p, …] → [p, …]; block i of the result comes from rank i."""
    p, rank = group.size, group.rank
    out = with_block(lax.empty(blocks.shape, blocks.dtype), block_at(blocks, rank), rank)
    for k in range(1, p):
        # One step waits for the one before: a rank has one message under way, which sets pairwise off from mesh.
        block, out = lax.optimization_barrier((block_at(blocks, wrap(rank + k, p)), out))
        out = with_block(out, group.shift(block, k, "pairwise"), wrap(rank - k, p))
    return out


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
