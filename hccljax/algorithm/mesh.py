"""Full mesh: every rank talks to every other at once, as HCCS wires the eight NPUs of a server.

Source: HCCL's fullmesh. One step scatters the blocks to their owners or gathers them; all_reduce is two steps.
"""

from __future__ import annotations

import jax.numpy as jnp

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import choose
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]: the owner gets every contribution and adds them in rank order."""
    return op.in_order(group.mesh_exchange(blocks, "mesh_reduce_scatter"))


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]."""
    return group.mesh_gather(block)


def all_to_all(blocks: Blocks, group: Group) -> Blocks:
    """blocks [p, …] → [p, …]."""
    return group.mesh_exchange(blocks, "mesh_all_to_all")


def scatter(blocks: Blocks, group: Group) -> Block:
    """blocks [p, …] of rank 0 → block […]: p - 1 messages leave the root at once, one on each of its links."""
    mine = blocks[0]
    for r in range(1, group.size):
        received = group.permute(blocks[r], [(0, r)], "mesh_scatter")
        mine = choose(group.rank == r, received, mine)
    return mine


def gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …] on rank 0: p - 1 messages reach the root at once, one on each of its links."""
    others = [group.permute(block, [(r, 0)], "mesh_gather") for r in range(1, group.size)]
    return jnp.stack([block, *others])


def steps(operator: str, p: int, nbytes: int) -> int:
    """One step a phase; all_reduce, broadcast and reduce are two phases."""
    return 2 if operator in ("all_reduce", "broadcast", "reduce") else 1


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """Blocks that the busiest rank sends: p - 1 a phase; the last phase of reduce and gather takes one a rank."""
    blocks = {"all_reduce": 2 * (p - 1), "broadcast": 2 * (p - 1), "reduce": p, "gather": 1}.get(operator, p - 1)
    return blocks * -(-nbytes // p)


mesh = register(
    Algorithm(
        name="mesh",
        source="HCCL's fullmesh",
        steps=steps,
        bytes_sent=bytes_sent,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        all_to_all=all_to_all,
        scatter=scatter,
        gather=gather,
        order="((0 + 1) + 2) + …: rank order",
    )
)
