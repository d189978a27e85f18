"""NHR pipeline: NHR between servers at the same time as the full mesh inside them.

Source: hccljax's own. HCCL's pipeline overlaps the mesh with a ring, whose p1 - 1 steps cost more than all bytes on
many servers; a hierarchy of mesh and NHR takes ceil(log2 p1) steps, but one tier waits for the other. Here a server
adds up what NHR sends at a step just before it is sent, and spreads what it has received while the next step travels.

The ports between servers would still idle while the first step's half of the message is added up. So that half is cut
into pieces, each about twice as long as the one before it: while one travels, the server adds up the next one. The last
step of all_gather is cut in the same way, the longest piece first. Where the links inside are no faster than those
between servers, every long part has to be cut, so that both tiers always have something to do.

A piece waits for the one before it, by a barrier: they leave in this order, and each is a step of its own.

All tiers above level 0 count as servers. On one flat server what is left is the mesh; with one rank in each, NHR.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm.base import Algorithm, register, run
from hccljax.algorithm.blocks import by_server
from hccljax.algorithm.mesh import mesh
from hccljax.algorithm.nonuniform import NHR, depth, doubled, halved, to_double
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks

PIECE_BYTES = 384 << 10
"""Bytes of the shortest piece: it takes about as long on an HCCS link (56 GB/s) as a message between servers costs
besides its bytes (5 µs)."""

MOST_PIECES = 4
"""Of growing length. Messages with as many fit HCCL's buffer of 200 MB."""

LONGEST_BYTES = 8 << 20
"""Bytes above which a piece is halved: 420 µs between servers (20 GB/s); the 5 µs that it costs are about 1 % of it."""

MOST_HALVINGS = 3
"""Of one piece: longer messages lose no more by fewer pieces, since those take longer, too."""


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
        kept, going, left = (None, None, None) if others is None else halved(others, s, between, NHR, len(raw))
        raw, sent, alone = halved(raw, s, between, NHR)
        came: list[jax.Array] = []
        for cut in pieces(sent.shape[0], sent.shape[2], blocks.dtype.itemsize, growing=s == 0):
            sums = met(added_up(sent[:, :, cut]), None if going is None else going[:, cut])
            came.append(between.shift(_after(came, sums), NHR << s, "nhr_pipeline_reduce_scatter"))
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
            came.append(between.shift(_after(came, sent[:, cut]), -NHR << s, "nhr_pipeline_all_gather"))
        parts = [spread(piece) for piece in came]
        if len(came) > 1:
            came, parts = [lax.concatenate(came[::-1], 1)], [lax.concatenate(parts[::-1], 2)]
        everywhere = doubled(everywhere, parts[0], s, between, NHR)
        rows = doubled(rows, came[0], s, between, NHR)
    return lax.reshape(everywhere, (group.size, *block.shape))


def _after(came: list[jax.Array], piece: jax.Array) -> jax.Array:
    """The piece, which is not sent before the last one of those that came is there."""
    if came:
        piece, came[-1] = lax.optimization_barrier((piece, came[-1]))
    return piece


def pieces(rows: int, length: int, itemsize: int, growing: bool) -> tuple[slice, ...]:
    """Slices of rows of so many elements, for the pieces of a part.

    Growing: 1, 2, 4, … 2^k-ths of it, and what is left of 2^k. One longer than LONGEST_BYTES is halved.
    """
    nbytes = rows * length * itemsize
    k = max(0, min((nbytes // PIECE_BYTES).bit_length() - 1, MOST_PIECES)) if growing else 0
    found = []
    for start, end in pairwise([*(2**j - 1 for j in range(max(1, k))), 2**k]):  # in 2^k-ths
        width = -(-nbytes * (end - start) >> k)  # bytes, rounded up
        n = 1 << min(max(0, (width - 1) // LONGEST_BYTES).bit_length(), MOST_HALVINGS)
        ends = [length * (start * n + (end - start) * i) // (n << k) for i in range(n + 1)]
        found += [slice(*cut) for cut in pairwise(ends)]
    return tuple(found)


def _steps(servers: int, operator: str, p: int, nbytes: int) -> int:
    """One for every piece that NHR sends, and one more in which the mesh is ahead of it or behind it."""
    held = [-(-servers >> s) for s in range(depth(servers))]  # rows before each step, of which half are sent
    sent = [len(pieces(rows // 2, -(-nbytes // p), 1, growing=s == 0)) for s, rows in enumerate(held)]
    return (sum(sent) + (p > servers)) * (2 if operator == "all_reduce" else 1)


def _bytes_sent(servers: int, operator: str, p: int, nbytes: int) -> int:
    """Every block but one's own goes once."""
    return -(-nbytes // p) * (p - 1) * (2 if operator == "all_reduce" else 1)


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
        over=nhr_pipeline_over,
        regimes=regimes if servers > 1 else (),
        order="rank order inside a server; server b's own sum meets those of b + 1, b + 2, … as NHR brings them",
    )


nhr_pipeline = register(nhr_pipeline_over(()))
