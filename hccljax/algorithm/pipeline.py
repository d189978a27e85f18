"""Pipeline: a ring between servers at the same time as the full mesh inside them.

Source: HCCL's pipeline. At every step of the ring a rank passes a block on while its server spreads the block that
arrived at the step before; reduce_scatter is the mirror image, all_reduce both. A hierarchy of mesh and ring takes as
many steps, p1 for p1 servers of s ranks, but one tier waits for the other, and an all_gather sends s times as much
between the servers.

All tiers above level 0 are one ring of servers. On one flat server there is no ring, and what is left is the mesh; with
one rank in each server there is no mesh, and what is left is the ring.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import jax
from jax import lax

from hccljax.algorithm.base import Algorithm, register, run
from hccljax.algorithm.blocks import block_at, by_server, choose, repeat, with_block, wrap
from hccljax.algorithm.mesh import mesh
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks

GATHER = "pipeline_all_gather"


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]: while the sums for one server travel, each server adds up those for the next."""
    inside, between = group.level(0), group.above()
    servers, server, for_server = between.size, between.rank, by_server(blocks, inside.size)

    def sums(s: jax.Array | int) -> jax.Array:
        return run(mesh, "reduce_scatter", block_at(for_server, wrap(server - 1 - s, servers)), inside, op)

    def step(s: jax.Array, moving: jax.Array) -> jax.Array:
        return op(between.shift(moving, 1, "pipeline_reduce_scatter"), sums(s + 1))

    return repeat(servers - 1, step, sums(0)) if servers > 1 else sums(0)


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]: while a block travels on, the server spreads it."""
    inside, between = group.level(0), group.above()
    servers, server = between.size, between.rank

    def spread(out: jax.Array, moving: jax.Array, s: jax.Array | int) -> jax.Array:
        return with_block(out, run(mesh, "all_gather", moving, inside), wrap(server - s, servers))

    if servers == 1:
        return run(mesh, "all_gather", block, inside)
    if servers == 2:  # putting each server's blocks into the result one after the other would copy it twice
        here, there = (run(mesh, "all_gather", one, inside) for one in (block, between.shift(block, 1, GATHER)))
        first = server == 0
        return lax.concatenate([choose(first, here, there), choose(first, there, here)], 0)

    def step(s: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        moving, out = carry
        return between.shift(moving, 1, GATHER), spread(out, moving, s)

    out = spread(lax.empty((servers, inside.size, *block.shape), block.dtype), block, 0)
    moving, out = repeat(servers - 2, step, (between.shift(block, 1, GATHER), out), start=1)
    return lax.reshape(spread(out, moving, servers - 1), (group.size, *block.shape))


def all_to_all(blocks: Blocks, group: Group) -> Blocks:
    """blocks [p, …] → [p, …]: step k sends to the k-th server ahead, while what came before is spread.

    A rank sends all blocks for a server to the rank in its own place there.
    """
    inside, between = group.level(0), group.above()
    servers, server, for_server = between.size, between.rank, by_server(blocks, inside.size)

    def spread(out: jax.Array, arrived: jax.Array, k: int) -> jax.Array:
        return with_block(out, run(mesh, "all_to_all", arrived, inside), wrap(server - k, servers))

    if servers == 1:
        return run(mesh, "all_to_all", blocks, inside)
    arrived = block_at(for_server, server)
    out = spread(lax.empty(for_server.shape, blocks.dtype), arrived, 0)
    for k in range(1, servers):
        # One message waits for the one before it, as in pairwise; the mesh waits for what it spreads only.
        sent, _ = lax.optimization_barrier((block_at(for_server, wrap(server + k, servers)), arrived))
        arrived = between.shift(sent, k, "pipeline_all_to_all")
        out = spread(out, arrived, k)
    return lax.reshape(out, blocks.shape)


def _steps(servers: int, operator: str, p: int, nbytes: int) -> int:
    """The ring's steps, and one more in which the mesh is ahead of it or behind it."""
    return (servers - 1 + (p > servers)) * (2 if operator == "all_reduce" else 1)


def _bytes_sent(servers: int, operator: str, p: int, nbytes: int) -> int:
    """Every block but one's own goes once; in all_to_all those for another place in another server go twice."""
    block = -(-nbytes // p)
    if operator == "all_to_all":
        inside = p // servers
        return block * ((servers - 1) * inside + servers * (inside - 1))
    return block * (p - 1) * (2 if operator == "all_reduce" else 1)


@lru_cache(maxsize=256)
def pipeline_over(sizes: tuple[int, ...]) -> Algorithm:
    """The pipeline on tiers of these sizes, level 0 first; () is one flat server of any size."""
    servers = math.prod(sizes[1:])
    return Algorithm(
        name="pipeline",
        source="HCCL's pipeline",
        steps=partial(_steps, servers),
        bytes_sent=partial(_bytes_sent, servers),
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        all_to_all=all_to_all,
        over=pipeline_over,
        order="rank order inside a server; server b + 1's sum then meets b + 2's, b + 3's, …, server b's own last",
    )


pipeline = register(pipeline_over(()))
