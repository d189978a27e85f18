"""NHR, the nonuniform hierarchical ring: rings of strides 1, 2, 4, … halve the blocks of any number of ranks.

Source: HCCL's NHR. At the step of distance d a rank sends to r - d the blocks (r - d), (r - d) - 2d, (r - d) - 4d, …
and collects them in reverse. Short messages are not cut: they go up and down a binomial tree.
"""

from __future__ import annotations

from jax import lax

from hccljax.algorithm.base import Algorithm, composed, register, run
from hccljax.algorithm.nonuniform import NHR, depth, double, halve, spread
from hccljax.algorithm.tree import tree
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message

ALL_REDUCE_BYTES, BROADCAST_BYTES = 256 * 1024, 2 * 1024 * 1024
"""Messages up to these sizes, in bytes on one rank, are not cut: HCCL's limits."""


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]."""
    return halve(blocks, group, op, NHR, "nhr_reduce_scatter")


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]."""
    return double(block, group, NHR, "nhr_all_gather")


def scatter(blocks: Blocks, group: Group) -> Block:
    """blocks [p, …] of rank 0 → block […]; place u is that of rank -u."""
    by_place = lax.concatenate([blocks[:1], lax.rev(blocks[1:], (0,))], 0)
    return spread(by_place, group, NHR, "nhr_scatter")


def all_reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […]: reduce_scatter and all_gather, or a short message through a binomial tree."""
    if x.size * x.dtype.itemsize <= ALL_REDUCE_BYTES:
        return run(tree, "all_reduce", x, group, op)
    return composed(nhr, "all_reduce", x, group, op)


def broadcast(x: Message, group: Group) -> Message:
    """x of rank 0 → x everywhere: scatter and all_gather, or a short message down a binomial tree."""
    if x.size * x.dtype.itemsize <= BROADCAST_BYTES:
        return run(tree, "broadcast", x, group)
    return composed(nhr, "broadcast", x, group)


def steps(operator: str, p: int, nbytes: int) -> int:
    """N = ceil(log2 p) to halve and N to double; a tree takes as many to reduce and to broadcast."""
    if operator == "broadcast" and nbytes <= BROADCAST_BYTES:
        return tree.steps(operator, p, nbytes)
    return depth(p) * (2 if operator in ("all_reduce", "broadcast") else 1)


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """p - 1 blocks a phase, or what the tree's root sends."""
    if nbytes <= {"all_reduce": ALL_REDUCE_BYTES, "broadcast": BROADCAST_BYTES}.get(operator, -1):
        return tree.bytes_sent(operator, p, nbytes)
    return (p - 1) * -(-nbytes // p) * (2 if operator in ("all_reduce", "broadcast") else 1)


nhr = register(
    Algorithm(
        name="NHR",
        source="HCCL's NHR",
        steps=steps,
        bytes_sent=bytes_sent,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        scatter=scatter,
        all_reduce=all_reduce,
        broadcast=broadcast,
        regimes=(ALL_REDUCE_BYTES, BROADCAST_BYTES),
        order="block b: (b + (b + 1)) + ((b + 2) + (b + 3)) + … in ring order; a short message as in tree",
    )
)
