"""Ring: every rank passes one block to its neighbour, p - 1 times to reduce and p - 1 times to gather.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009); HCCL's ring.
The block that is sent at step s is r - 1 - s, so that block r ends on rank r. The widespread variant that starts with
block r leaves the result on the neighbour's rank.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import block_at, choose, repeat, with_block, wrap
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]. Only the moving block is carried, so that no step copies the message."""
    p, rank = group.size, group.rank

    def step(s: jax.Array, moving: jax.Array) -> jax.Array:
        received = group.shift(moving, 1, "ring_reduce_scatter")
        return op(received, block_at(blocks, wrap(rank - 2 - s, p)))

    return repeat(p - 1, step, block_at(blocks, wrap(rank - 1, p)))


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]."""
    p, rank = group.size, group.rank
    if p == 2:  # one step: a loop would cost three copies of the result (8 MB of 32 in a 2x4 hierarchy)
        received = group.shift(block, 1, "ring_all_gather")
        return jnp.stack([choose(rank == 0, block, received), choose(rank == 0, received, block)])
    out = with_block(lax.empty((p, *block.shape), block.dtype), block, rank)

    def step(s: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        moving, out = carry
        received = group.shift(moving, 1, "ring_all_gather")
        return received, with_block(out, received, wrap(rank - 1 - s, p))

    return repeat(p - 1, step, (block, out))[1]


def scatter(blocks: Blocks, group: Group) -> Block:
    """blocks [p, …] on rank 0 → block […]: the root sends the farthest block first, everybody passes it on."""
    p, rank = group.size, group.rank
    chain = [(r, r + 1) for r in range(p - 1)]

    def step(s: jax.Array, moving: jax.Array) -> jax.Array:
        sent = choose(rank == 0, block_at(blocks, p - 1 - s), moving)
        return group.permute(sent, chain, "ring_scatter")

    moving = repeat(p - 1, step, blocks[0])
    return choose(rank == 0, blocks[0], moving)


def gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …] on rank 0: everybody passes on what came from behind."""
    p = group.size
    chain = [(r + 1, r) for r in range(p - 1)]

    def step(s: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        moving, out = carry
        received = group.permute(moving, chain, "ring_gather")
        return received, with_block(out, received, s + 1)

    out = lax.empty((p, *block.shape), block.dtype).at[0].set(block)
    return repeat(p - 1, step, (block, out))[1]


def steps(operator: str, p: int, nbytes: int) -> int:
    """One phase takes p - 1 steps; all_reduce, broadcast and reduce are two phases."""
    return (p - 1) * (2 if operator in ("all_reduce", "broadcast", "reduce") else 1)


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """Every step sends one of p blocks; nbytes is the whole message (p blocks)."""
    return steps(operator, p, nbytes) * -(-nbytes // p)


ring = register(
    Algorithm(
        name="ring",
        source="Patarasuk and Yuan 2009; HCCL's ring",
        steps=steps,
        bytes_sent=bytes_sent,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        scatter=scatter,
        gather=gather,
        order="block b starts on rank b + 1 and meets b + 2, b + 3, … in ring order, rank b's own share last",
    )
)
