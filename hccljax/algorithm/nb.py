"""NB, nonuniform Bruck: blocks halve as in NHR, the other way round; gathered ones double as in Bruck's all-gather.

Source: HCCL's NB; Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
multiport message-passing systems" (1997). At the step of distance d a rank sends to r + d: while reducing the blocks
(r + d), (r + d) + 2d, (r + d) + 4d, …; while gathering r, r - 1, …, r - d + 1, the last step only as many as are
missing. A short message is not cut: as one block, these rules are a binomial tree.
"""

from __future__ import annotations

from functools import partial

from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import place_rows
from hccljax.algorithm.nonuniform import FORWARD, blocks_at, depth, halve, spread
from hccljax.algorithm.short import bytes_sent, steps, tree_or_blocks
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message

LIMITS = {"all_reduce": 128 * 1024}
"""Messages up to this size, in bytes on one rank, are not cut: HCCL's limit."""


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]."""
    return halve(blocks, group, op, FORWARD, "nb_reduce_scatter")


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]. rows are the blocks up to the rank's own, in rising order."""
    p, rows = group.size, block[None]
    for s in range(depth(p)):
        d = 1 << s
        received = group.shift(rows[-min(d, p - d) :], d, "nb_all_gather")
        if 2 * d < p:
            rows = lax.concatenate([received, rows], 0)
    # The last step's rows go where they belong at once, instead of to the others first.
    out, missing = lax.empty((p, *block.shape), block.dtype), p - rows.shape[0]
    if missing:
        out = place_rows(out, received, blocks_at(range(1, missing + 1), group.rank, p, FORWARD))
    return place_rows(out, rows, blocks_at(range(missing + 1, p + 1), group.rank, p, FORWARD))


def scatter(blocks: Blocks, group: Group) -> Block:
    """blocks [p, …] of rank 0 → block […]."""
    return spread(blocks, group, FORWARD, "nb_scatter")


def all_reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […]: reduce_scatter and all_gather, or a short message through a binomial tree."""
    return tree_or_blocks(nb, LIMITS, "all_reduce", x, group, op)


nb = register(
    Algorithm(
        name="NB",
        regimes=tuple(LIMITS.values()),
        source="HCCL's NB; Bruck and others 1997",
        steps=partial(steps, LIMITS),
        bytes_sent=partial(bytes_sent, LIMITS),
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        all_reduce=all_reduce,
        scatter=scatter,
        order="block b: (b + (b - 1)) + ((b - 2) + (b - 3)) + … against ring order; a short message as in tree",
    )
)
