"""NHR, the nonuniform hierarchical ring: rings of strides 1, 2, 4, … halve the blocks of any number of ranks.

Source: HCCL's NHR. At the step of distance d a rank sends to r - d the blocks (r - d), (r - d) - 2d, (r - d) - 4d, …
and collects them in reverse. Short messages are not cut: they go up and down a binomial tree.
"""

from __future__ import annotations

from functools import partial

from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.nonuniform import BACKWARD, double, halve, spread
from hccljax.algorithm.short import bytes_sent, steps, tree_or_blocks
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message

LIMITS = {"all_reduce": 256 * 1024, "broadcast": 2 * 1024 * 1024}
"""Messages up to these sizes, in bytes on one rank, are not cut: HCCL's limits."""


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]."""
    return halve(blocks, group, op, BACKWARD, "nhr_reduce_scatter")


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]."""
    return double(block, group, BACKWARD, "nhr_all_gather")


def scatter(blocks: Blocks, group: Group) -> Block:
    """blocks [p, …] of rank 0 → block […]; place u is that of rank -u."""
    by_place = lax.concatenate([blocks[:1], lax.rev(blocks[1:], (0,))], 0)
    return spread(by_place, group, BACKWARD, "nhr_scatter")


def all_reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […]: reduce_scatter and all_gather, or a short message through a binomial tree."""
    return tree_or_blocks(nhr, LIMITS, "all_reduce", x, group, op)


def broadcast(x: Message, group: Group) -> Message:
    """x of rank 0 → x everywhere: scatter and all_gather, or a short message down a binomial tree."""
    return tree_or_blocks(nhr, LIMITS, "broadcast", x, group)


nhr = register(
    Algorithm(
        name="NHR",
        source="HCCL's NHR",
        steps=partial(steps, LIMITS),
        bytes_sent=partial(bytes_sent, LIMITS),
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        scatter=scatter,
        all_reduce=all_reduce,
        broadcast=broadcast,
        regimes=tuple(LIMITS.values()),
        order="block b: (b + (b + 1)) + ((b + 2) + (b + 3)) + … in ring order; a short message as in tree",
    )
)
