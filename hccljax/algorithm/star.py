"""Star: the root talks to every other rank directly, and to all of them at once, over the links of a full mesh.

Source: HCCL's star. One step, whatever the number of ranks; with a single port at the root it would be p - 1. Against
mesh, whose broadcast and reduce take two steps with a p-th of the message in each, it is for short messages.
"""

from __future__ import annotations

from functools import reduce as fold

import jax
import jax.numpy as jnp

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import choose
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message


def broadcast(x: Message, group: Group, root: int) -> Message:
    """x of the root → x everywhere: p - 1 messages leave the root."""
    out = x
    for r in _others(group, root):
        out = choose(group.rank == r, group.permute(x, [(root, r)], "star_broadcast"), out)
    return out


def reduce(x: Message, group: Group, op: Reduction, root: int) -> Message:
    """x → the reduction on the root, which combines what it gets in rank order."""
    return fold(op, _at_root(x, group, root, "star_reduce"))


def scatter(blocks: Blocks, group: Group, root: int) -> Block:
    """blocks [p, …] of the root → block […]: block r leaves for rank r."""
    mine = blocks[root]
    for r in _others(group, root):
        mine = choose(group.rank == r, group.permute(blocks[r], [(root, r)], "star_scatter"), mine)
    return mine


def gather(block: Block, group: Group, root: int) -> Blocks:
    """block […] → [p, …] on the root."""
    return jnp.stack(_at_root(block, group, root, "star_gather"))


def _others(group: Group, root: int) -> list[int]:
    return [r for r in range(group.size) if r != root]


def _at_root(x: jax.Array, group: Group, root: int, label: str) -> list[jax.Array]:
    """The x of every rank, on the root: p - 1 messages that wait for nothing but their own link."""
    return [x if r == root else group.permute(x, [(r, root)], label) for r in range(group.size)]


def steps(operator: str, p: int, nbytes: int) -> int:
    """All messages travel at once."""
    return min(p - 1, 1)


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """What the busiest rank sends: the root everything, or each of the others its own message or block."""
    if p == 1:
        return 0
    block = -(-nbytes // p)
    return {"broadcast": (p - 1) * nbytes, "reduce": nbytes, "scatter": (p - 1) * block, "gather": block}[operator]


star = register(
    Algorithm(
        name="star",
        source="HCCL's star",
        steps=steps,
        bytes_sent=bytes_sent,
        broadcast=broadcast,
        reduce=reduce,
        scatter=scatter,
        gather=gather,
        rooted=True,
        order="((0 + 1) + 2) + …: rank order, whatever the root",
    )
)
