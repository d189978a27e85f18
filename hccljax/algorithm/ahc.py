"""AHC, the asymmetric hierarchical concatenate: servers of unequal size work inside and between themselves.

Source: HCCL's AHC. Servers have m_1, …, m_G ranks. A message is cut in K = LCM(m_i) pieces, which every server can deal
out evenly: rank k mod m_i of server i holds piece k. all_reduce is a reduce_scatter inside each server, an all_reduce
of every piece among its G holders, and an all_gather inside. Between servers a rank of server i sends 2(G - 1)/G times
its n/m_i bytes, where each step of a flat ring waits for one link between servers.

Any min(m_i) pieces in a row have different holders in every server, so they travel together, as one *wave* of
communicators with one rank of each server. The waves do not wait for each other. Where the LCM would make more than
``WAVES`` of them, K is the pieces of that many (or of the max(m_i)/min(m_i) that a rank of the smallest server needs to
meet everybody), and some ranks hold one piece more than others.

reduce_scatter and all_gather cut the blocks of each server's ranks for themselves, piece k being part of the block of
rank k mod m_i there: what a server holds after the stage between is just what its ranks are to have. Pieces for
different servers lie side by side, all as long as those for the largest.

Inside a server NHR runs; between servers a ring up to 3 of them, else NHR. Equal servers make one wave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm.ahc_plan import Servers, servers_of
from hccljax.algorithm.base import Algorithm, Cost, composed, register, run
from hccljax.algorithm.blocks import join_blocks, look_up, split_blocks, take_rows
from hccljax.algorithm.nhr import nhr
from hccljax.algorithm.ring import ring
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message

RING_SERVERS = 3
"""Up to so many servers form a ring: HCCL's limit."""


def _servers(sizes: tuple[int, ...], group: Group) -> Servers:
    return servers_of(sizes or (group.size,))


def _between(servers: Servers) -> Algorithm:
    return ring if len(servers.sizes) <= RING_SERVERS else nhr


def all_reduce(sizes: tuple[int, ...], x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […]."""
    servers = _servers(sizes, group)
    rows = _dealt(servers, split_blocks(x, servers.pieces), group, op)
    work = lambda row, peers: composed(_between(servers), "all_reduce", row, peers, op)  # noqa: E731
    return join_blocks(_collected(servers, _each_wave(servers, rows, group, work), group), x.shape)


def reduce_scatter(sizes: tuple[int, ...], blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]: inside the servers first, so that the slow links carry sums only."""
    servers, shape = _servers(sizes, group), blocks.shape[1:]
    rows = _dealt(servers, _to_pieces(blocks, servers), group, op)
    work = lambda row, peers: run(_between(servers), "reduce_scatter", row, peers, op)  # noqa: E731
    mine = _each_wave(servers, rows, group, work)

    def of_class(m: int) -> jax.Array:
        hand = take_rows(mine, look_up(servers.wave_of_row(m), group.rank))
        return join_blocks(hand[: servers.parts(m), : _length(servers, shape, m)], shape)

    return _by_class(servers, of_class, group)


def all_gather(sizes: tuple[int, ...], block: Block, group: Group) -> Blocks:
    """block […] → [p, …]: reduce_scatter backwards."""
    servers = _servers(sizes, group)
    longest = _length(servers, block.shape, max(servers.sizes))

    def of_class(m: int) -> jax.Array:
        hand = _padded(split_blocks(block, servers.parts(m)), servers.rows(m), longest)
        return take_rows(hand, look_up(servers.row_of_wave(m), group.rank))

    rows = _by_class(servers, of_class, group)
    work = lambda row, peers: run(_between(servers), "all_gather", row, peers)  # noqa: E731
    everybody = _each_wave(servers, rows, group, work)
    return _to_blocks(_collected(servers, everybody, group), servers, block.shape)


def _by_class(servers: Servers, of_class: Callable[[int], jax.Array], group: Group) -> jax.Array:
    """of_class(m) on the ranks in servers of m: computed for every m, selected by rank."""
    first, *others = servers.classes
    out = of_class(first)
    for m in others:
        out = lax.select(look_up(servers.size_of == m, group.rank), of_class(m), out)
    return out


def _dealt(servers: Servers, pieces: jax.Array, group: Group, op: Reduction) -> jax.Array:
    """pieces [K, …] → [waves, …]: the reduction inside the server of this rank's piece in each wave."""

    def of_class(m: int) -> jax.Array:
        count = servers.rows(m)
        hands = _padded(pieces, m * count).reshape(count, m, *pieces.shape[1:])
        hand = run(nhr, "reduce_scatter", jnp.swapaxes(hands, 0, 1), servers.inside(m, group), op)
        return take_rows(hand, look_up(servers.row_of_wave(m), group.rank))

    return _by_class(servers, of_class, group)


def _collected(servers: Servers, rows: jax.Array, group: Group) -> jax.Array:
    """rows [waves, …], this rank's piece in each wave → [K, …]: all pieces, gathered inside the server."""

    def of_class(m: int) -> jax.Array:
        hand = take_rows(rows, look_up(servers.wave_of_row(m), group.rank))
        hands = jnp.swapaxes(run(nhr, "all_gather", hand, servers.inside(m, group)), 0, 1)
        return hands.reshape(servers.rows(m) * m, *rows.shape[1:])[: servers.pieces]

    return _by_class(servers, of_class, group)


def _each_wave(
    servers: Servers, rows: jax.Array, group: Group, work: Callable[[jax.Array, Group], jax.Array]
) -> jax.Array:
    """work(row, its holders) for every wave, stacked."""
    return jnp.stack([work(rows[t], servers.peers(t, group)) for t in range(servers.waves)])


def _length(servers: Servers, shape: tuple[int, ...], m: int) -> int:
    """Elements of each piece of a block of that shape, for a rank in a server of m."""
    return -(-math.prod(shape) // servers.parts(m))


def _padded(rows: jax.Array, count: int, length: int | None = None) -> jax.Array:
    """rows [n, l, …] → [count, length, …], zeros behind; length None is l."""
    wider = [(0, count - rows.shape[0], 0)] + ([] if length is None else [(0, length - rows.shape[1], 0)])
    return lax.pad(rows, lax.full_like(rows, 0, shape=()), wider + [(0, 0, 0)] * (rows.ndim - len(wider)))


def _to_pieces(blocks: jax.Array, servers: Servers) -> jax.Array:
    """blocks [p, …] → [K, G, longest]: piece k for each server, which is for rank k mod m there."""
    longest = _length(servers, blocks.shape[1:], max(servers.sizes))

    def of_server(start: int, m: int) -> jax.Array:
        cut = jnp.stack([split_blocks(blocks[r], servers.parts(m)) for r in range(start, start + m)], axis=1)
        return _padded(cut.reshape(m * servers.parts(m), cut.shape[2]), servers.pieces, longest)

    return jnp.stack([of_server(s, m) for s, m in zip(servers.starts, servers.sizes, strict=True)], axis=1)


def _to_blocks(pieces: jax.Array, servers: Servers, shape: tuple[int, ...]) -> jax.Array:
    """[K, G, longest] → blocks [p, …]: the inverse of ``_to_pieces``."""
    blocks = []
    for i, m in enumerate(servers.sizes):
        parts, length = servers.parts(m), _length(servers, shape, m)
        cut = pieces[: m * parts, i, :length].reshape(parts, m, length)
        blocks += [join_blocks(cut[:, j], shape) for j in range(m)]
    return jnp.stack(blocks)


def _cost(sizes: tuple[int, ...], operator: str, p: int, nbytes: int) -> Cost:
    """The longest chain, and the busiest rank over the sizes m that servers have.

    Steps: a phase inside takes what the largest server needs, NHR's ⌈log2 max m⌉, since the stage between waits for it;
    a phase between takes G - 1 (ring) or ⌈log2 G⌉ (NHR). all_reduce has two phases of each, the others one.
    Bytes of all_reduce, for n bytes in pieces of n/K: a rank in a server of m has ⌈K/m⌉ pieces in its hand; a phase
    inside sends m - 1 such hands, a phase between (G - 1)/G of one.
    Bytes of the others, for blocks of n/p: pieces are as long as those for the largest server, n/p cut in ⌊K/max m⌋;
    a phase inside sends m - 1 hands of ⌈K/m⌉ times G of them, a phase between (G - 1) times ⌈K/m⌉.
    """
    servers = servers_of(sizes or (p,))
    count, phases = len(servers.sizes), 2 if operator == "all_reduce" else 1
    if operator == "all_reduce":
        inside = -(-nbytes // servers.pieces)
        between = -(-inside // count)
    else:
        block = -(-nbytes // p)
        between = -(-block // servers.parts(max(servers.sizes)))
        inside = count * between
    steps = nhr.cost("reduce_scatter", max(servers.sizes), 0).steps
    steps += _between(servers).cost("reduce_scatter", count, 0).steps
    sent = max(servers.rows(m) * ((m - 1) * inside + (count - 1) * between) for m in servers.sizes)
    return Cost(phases * steps, phases * sent)


@lru_cache(maxsize=256)
def ahc_on(sizes: tuple[int, ...]) -> Algorithm:
    """AHC on servers of these sizes, in rank order; () is one server of any size."""
    return Algorithm(
        name="AHC",
        source="HCCL's AHC",
        steps=lambda operator, p, nbytes: _cost(sizes, operator, p, nbytes).steps,
        bytes_sent=lambda operator, p, nbytes: _cost(sizes, operator, p, nbytes).bytes_sent,
        reduce_scatter=partial(reduce_scatter, sizes),
        all_gather=partial(all_gather, sizes),
        all_reduce=partial(all_reduce, sizes),
        over=_over,
        over_servers=ahc_on,
        order="as NHR inside the servers; then the servers' sums as in ring (up to 3 servers) or NHR",
    )


def _over(tiers: tuple[int, ...]) -> Algorithm:
    """AHC on tiers of equal servers, level 0 first: all tiers above level 0 together count the servers."""
    return ahc_on(tiers[:1] * math.prod(tiers[1:]))


ahc = register(ahc_on(()))
