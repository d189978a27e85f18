"""NHR pipeline with a root: its blocks go over all ports of its server, while these hand them on between the servers.

Every rank of the root's server takes the blocks for its own place in all servers, from the root's links of the full
mesh, and is the root of an NHR scatter between the servers. What NHR sends at a step is handed over just before that
step; gather is the mirror image. So the ports of all ranks of the server share what leaves it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm.base import run
from hccljax.algorithm.blocks import by_server, choose, wrap
from hccljax.algorithm.mesh import mesh
from hccljax.algorithm.nonuniform import depth
from hccljax.algorithm.pieces import after, pieces
from hccljax.group import Group
from hccljax.shapes import Block, Blocks

SCATTER, GATHER = "nhr_pipeline_scatter", "nhr_pipeline_gather"


def scatter(blocks: Blocks, group: Group, root: int) -> Block:
    """blocks [p, …] of the root → block […]: step s sends what is for the servers at odd multiples of 2^s."""
    inside, between = group.level(0), group.above()
    servers = between.size
    if servers == 1:
        return run(mesh, "scatter", blocks, inside, root=root)
    home, place = root // inside.size, wrap(root // inside.size - between.rank, servers)
    by_place = _turned(by_server(lax.reshape(blocks, (group.size, blocks.size // group.size)), inside.size), home)

    def handed(rows: jax.Array) -> jax.Array:
        """[rows, inside, L] of the root → [rows, L] on each rank of its server."""
        mine = rows[:, root % inside.size]
        for r, member in _others(inside.size, root):
            mine = choose(group.rank == member, group.permute(rows[:, r], [(root, member)], SCATTER), mine)
        return mine

    held: jax.Array | None = None  # the rows of this rank's place, and of those beyond it that it passes on
    for s in range(depth(servers)):
        d = 1 << s
        sent = by_place[d :: 2 * d]
        came: list[jax.Array] = []
        for cut in pieces(sent.shape[0], sent.shape[2], blocks.dtype.itemsize, growing=s == 0):
            piece = handed(sent[:, :, cut])
            piece = piece if held is None else choose(place == 0, piece, held[1::2, cut])
            came.append(between.permute(after(came, piece), _moves(servers, home, d), SCATTER))
        received = came[0] if len(came) == 1 else lax.concatenate(came, 1)
        kept = by_place[:: 2 * d, 0] if held is None else held[::2]
        met = choose((place >= d) & (place < 2 * d), received, kept[: len(received)])
        held = lax.concatenate([met, kept[len(received) :]], 0) if len(kept) > len(received) else met
    own = handed(by_place[:1])[0]
    return lax.reshape(own if held is None else choose(place == 0, own, held[0]), blocks.shape[1:])


def gather(block: Block, group: Group, root: int) -> Blocks:
    """block […] → [p, …] on the root: what a step brought is handed to it while the next one travels."""
    inside, between = group.level(0), group.above()
    servers = between.size
    if servers == 1:
        return run(mesh, "gather", block, inside, root=root)
    home = root // inside.size

    def handed(rows: jax.Array) -> jax.Array:
        """[rows, L] of each rank of the root's server → [rows, inside, L] on the root."""
        found = {r: group.permute(rows, [(member, root)], GATHER) for r, member in _others(inside.size, root)}
        return jnp.stack([found.get(r, rows) for r in range(inside.size)], 1)

    held = lax.reshape(block, (1, block.size))  # the rows of this rank's place and of those beyond it
    found = handed(held)
    for s in reversed(range(depth(servers))):
        d = 1 << s
        sent = held[: -(-servers // d) // 2]
        came: list[jax.Array] = []
        for cut in reversed(pieces(sent.shape[0], sent.shape[1], block.dtype.itemsize, growing=s == 0)):
            moves = [(destination, source) for source, destination in _moves(servers, home, d)]
            came.append(between.permute(after(came, sent[:, cut]), moves, GATHER))
        parts = [handed(piece) for piece in came]
        received, part = (came[0], parts[0]) if len(came) == 1 else _joined(came, parts)
        held, found = _interleaved(held, received), _interleaved(found, part)
    return lax.reshape(_turned(found, home), (group.size, *block.shape))


def _others(inside: int, root: int) -> list[tuple[int, int]]:
    """(place in the server, rank) of all but the root in its server."""
    return [(r, root - root % inside + r) for r in range(inside) if r != root % inside]


def _moves(servers: int, home: int, d: int) -> list[tuple[int, int]]:
    """Who sends to whom at distance d, from the home server: place u, which is server home - u, to place u + d."""
    return [((home - u) % servers, (home - u - d) % servers) for u in range(min(d, servers - d))]


def _turned(rows: jax.Array, home: int) -> jax.Array:
    """Rows by server → by place, server home - u at place u; and back."""
    return lax.concatenate([rows[home::-1], rows[:home:-1]], 0) if home < len(rows) - 1 else rows[::-1]


def _joined(came: list[jax.Array], parts: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Pieces [rows, …, L], the last one first → whole."""
    return lax.concatenate(came[::-1], 1), lax.concatenate(parts[::-1], 2)


def _interleaved(even: jax.Array, odd: jax.Array) -> jax.Array:
    """Rows of the even places and those of the odd ones, which may be one fewer → all."""
    pairs = lax.reshape(jnp.stack([even[: len(odd)], odd], 1), (2 * len(odd), *even.shape[1:]))
    return lax.concatenate([pairs, even[len(odd) :]], 0) if len(even) > len(odd) else pairs
