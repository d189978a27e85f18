"""NHR pipeline: NHR between servers at the same time as the full mesh inside them.

Source: hccljax's own. HCCL's pipeline overlaps the mesh with a ring, whose p1 - 1 steps cost more than all bytes on
many servers; a hierarchy of mesh and NHR takes ceil(log2 p1) steps, but one tier waits for the other. Here a server
adds up what NHR sends at a step just before it is sent, and spreads what it has received while the next step travels.

The ports between servers would still idle while the first step's half of the message is added up. So that half is cut
into pieces, each about twice as long as the one before it: while one travels, the server adds up the next one. The last
step of all_gather is cut in the same way, the longest piece first. Where the links inside are no faster than those
between servers, every long part has to be cut, so that both tiers always have something to do.

All tiers above level 0 count as servers. On one flat server what is left is the mesh; with one rank in each, NHR.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm.base import COMPOSED, Algorithm, register, run
from hccljax.algorithm.blocks import by_server
from hccljax.algorithm.mesh import mesh
from hccljax.algorithm.nhr_pipeline_rooted import gather, scatter
from hccljax.algorithm.nonuniform import BACKWARD, depth, doubled, halved, to_double
from hccljax.algorithm.pieces import LONGEST_BYTES, MOST_PIECES, PIECE_BYTES, after, pieces
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]: what a step sends is added up inside the servers while the step before it travels."""
    inside, between = group.level(0), group.above()
    if between.size == 1:
        return run(mesh, "reduce_scatter", blocks, inside, op)

    def added_up(raw: jax.Array) -> jax.Array:
        """[rows, inside, L] of each rank → [rows, L]: this rank's part, over the server."""
        return run(mesh, "reduce_scatter", jnp.swapaxes(raw, 0, 1), inside, op)

    def met(sums: jax.Array, others: jax.Array | None) -> jax.Array:
        """sums [rows, L] with those of other servers, which the last row may not have."""
        if others is None:
            return sums
        both = op(sums[: others.shape[0]], others)
        return lax.concatenate([both, sums[others.shape[0] :]], 0) if len(sums) > len(others) else both

    raw = by_server(lax.reshape(blocks, (group.size, math.prod(blocks.shape[1:]))), inside.size)
    others: jax.Array | None = None  # sums that came from other servers, for the first rows or all of them
    for s in range(depth(between.size)):
        kept, going, left = (None, None, None) if others is None else halved(others, s, between, BACKWARD, len(raw))
        raw, sent, alone = halved(raw, s, between, BACKWARD)
        came: list[jax.Array] = []
        for cut in pieces(sent.shape[0], sent.shape[2], blocks.dtype.itemsize, growing=s == 0):
            sums = met(added_up(sent[:, :, cut]), None if going is None else going[:, cut])
            came.append(between.shift(after(came, sums), BACKWARD << s, "nhr_pipeline_reduce_scatter"))
        others = came[0] if len(came) == 1 else lax.concatenate(came, 1)
        others = others if kept is None else met(kept, others)
        others = others if left is None or not left.shape[0] else lax.concatenate([others, left], 0)
        raw = lax.concatenate([raw, alone], 0) if alone.shape[0] else raw
    return lax.reshape(met(added_up(raw), others), blocks.shape[1:])


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]: what a step brought is spread inside the servers while the next one travels."""
    inside, between = group.level(0), group.above()
    if between.size == 1:
        return run(mesh, "all_gather", block, inside)

    def spread(rows: jax.Array) -> jax.Array:
        """[rows, L] → [rows, inside, L]."""
        return jnp.swapaxes(run(mesh, "all_gather", rows, inside), 0, 1)

    rows = lax.reshape(block, (1, block.size))
    everywhere = spread(rows)
    for s in reversed(range(depth(between.size))):
        sent = to_double(rows, s, between)
        came: list[jax.Array] = []
        for cut in reversed(pieces(sent.shape[0], sent.shape[1], block.dtype.itemsize, growing=s == 0)):
            came.append(between.shift(after(came, sent[:, cut]), -BACKWARD << s, "nhr_pipeline_all_gather"))
        parts = [spread(piece) for piece in came]
        if len(came) > 1:
            came, parts = [lax.concatenate(came[::-1], 1)], [lax.concatenate(parts[::-1], 2)]
        everywhere = doubled(everywhere, parts[0], s, between, BACKWARD)
        rows = doubled(rows, came[0], s, between, BACKWARD)
    return lax.reshape(everywhere, (group.size, *block.shape))


def _steps(servers: int, operator: str, p: int, nbytes: int) -> int:
    """One for every piece that NHR sends, and one more in which the mesh is ahead of it or behind it."""
    held = [-(-servers >> s) for s in range(depth(servers))]  # rows before each step, of which half are sent
    sent = [len(pieces(rows // 2, -(-nbytes // p), 1, growing=s == 0)) for s, rows in enumerate(held)]
    return (sum(sent) + (p > servers)) * (2 if operator in COMPOSED else 1)


def _bytes_sent(servers: int, operator: str, p: int, nbytes: int) -> int:
    """Every block but one's own goes once; in gather, what a server's rank has for the root goes to it."""
    to_root = servers if p > servers else servers // 2
    blocks = {"gather": to_root, "reduce": p - 1 + to_root}.get(operator, (p - 1) * (2 if operator in COMPOSED else 1))
    return -(-nbytes // p) * blocks


@lru_cache(maxsize=256)
def nhr_pipeline_over(sizes: tuple[int, ...]) -> Algorithm:
    """The pipeline on tiers of these sizes, level 0 first; () is one flat server of any size."""
    servers = math.prod(sizes[1:])
    first = max(1, servers // 2)  # rows of the first step, of servers that each hold a p-th of the message
    parts = [PIECE_BYTES << k for k in range(1, MOST_PIECES + 1)] + [2 * LONGEST_BYTES]
    regimes = tuple(-(-part * math.prod(sizes) // first) - 1 for part in parts)
    return Algorithm(
        name="NHR_pipeline",
        source="hccljax: NHR between servers, overlapped with HCCL's fullmesh inside them",
        steps=partial(_steps, servers),
        bytes_sent=partial(_bytes_sent, servers),
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        scatter=scatter,
        gather=gather,
        rooted=True,
        over=nhr_pipeline_over,
        regimes=regimes if servers > 1 else (),
        order="rank order inside a server; server b's own sum meets those of b + 1, b + 2, … as NHR brings them",
    )


nhr_pipeline = register(nhr_pipeline_over(()))
