"""Halving by strides: the half of their work that NHR and NB share.

A block's place is its distance from the rank that looks at it, (rank - block) mod p for NHR and (block - rank) mod p
for NB. After s steps a rank keeps the places that are multiples of d = 2^s; it sends the odd multiples of d to the
rank d away, where they are even multiples of it. So N = ceil(log2 p) steps halve any number of blocks.

While the number of blocks is even, even and odd places are even and odd blocks, by the parity of the rank: they are
halved as they lie. Only the odd factor of p that is left over has to be put in the order of the places, once. A whole
message that is rotated at every step costs 4 times as much (32 MB, 8 CPU devices).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hccljax.algorithm.blocks import choose, place_rows, take_rows, wrap
from hccljax.group import Group
from hccljax.reduction import Reduction

BACKWARD, FORWARD = -1, 1
"""Which way a message of distance d goes: from rank r to r - d in NHR, or to r + d in NB."""


def depth(p: int) -> int:
    """Steps that halve p blocks to one: ceil(log2 p)."""
    return (p - 1).bit_length()


def halvings(p: int) -> int:
    """How often p can be halved without remainder."""
    return (p & -p).bit_length() - 1


@lru_cache(maxsize=256)
def order(n: int) -> tuple[int, ...]:
    """The places 0 to n - 1, in an order in which every step sends one end and keeps the other.

    The even places stand together, in this order again, and so do the odd ones, each where the even one before it
    stands among its own. The last place is at the end: it is the one without a partner where n is odd.
    """
    if n == 1:
        return (0,)
    even = [2 * place for place in order((n + 1) // 2)]
    odd = [place + 1 for place in even if place + 1 < n]
    return (*odd, *even) if n % 2 else (*even, *odd)


def halve(blocks: jax.Array, group: Group, op: Reduction, way: int, label: str) -> jax.Array:
    """blocks [p, …] → this rank's block […], reduced."""
    rows = blocks
    for s in range(depth(group.size)):
        kept, sent, alone = halved(rows, s, group, way)
        met = op(kept, group.shift(sent, way << s, label))
        rows = lax.concatenate([met, alone], 0) if alone.shape[0] else met
    return rows[0]


def halved(
    rows: jax.Array, s: int, group: Group, way: int, count: int | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """rows […] before step s → those that are kept, those that are sent to meet them, one without a partner or none.

    Once the even factors of the group's size are used up, rows may be the first ones only of count.
    """
    whole = halvings(group.size)
    if s < whole:
        kept, sent = by_parity(rows, group.rank >> s & 1 == 1)
        return kept, sent, rows[:0]
    if s == whole:
        odd = group.size >> whole
        rows = take_rows(rows, blocks_at(order(odd), group.rank >> whole, odd, way))
    count = rows.shape[0] if count is None else count
    pairs = count // 2
    if count % 2:
        return rows[pairs : 2 * pairs], rows[:pairs], rows[2 * pairs :]
    return rows[:pairs], rows[pairs:count], rows[:0]


def double(block: jax.Array, group: Group, way: int, label: str) -> jax.Array:
    """block […] of each rank → [p, …]: ``halve`` backwards."""
    rows = block[None]
    for s in reversed(range(depth(group.size))):
        received = group.shift(to_double(rows, s, group), -way << s, label)
        rows = doubled(rows, received, s, group, way)
    return rows


def to_double(rows: jax.Array, s: int, group: Group) -> jax.Array:
    """The rows that are sent when step s is taken back."""
    return rows[: -(-group.size >> s) // 2] if s >= halvings(group.size) else rows


def doubled(rows: jax.Array, received: jax.Array, s: int, group: Group, way: int) -> jax.Array:
    """The rows before step s from those after it and those received."""
    whole = halvings(group.size)
    if s < whole:
        return interleaved(rows, received, group.rank >> s & 1 == 1)
    rows = lax.concatenate([received, rows] if -(-group.size >> s) % 2 else [rows, received], 0)
    if s > whole:
        return rows
    odd = group.size >> whole
    return place_rows(lax.empty(rows.shape, rows.dtype), rows, blocks_at(order(odd), group.rank >> whole, odd, way))


def spread(rows: jax.Array, group: Group, way: int, label: str) -> jax.Array:
    """rows [p, …] of rank 0, by place → the row of each rank's place […]: a binomial scatter.

    Before the step of distance d, the ranks at places below d have rows; that of place u holds those of u, u + d, …
    and sends every second one to place u + d. Behind the last place, rows hold nothing that anybody looks at.
    """
    p = group.size
    place = wrap(group.rank * way, p)
    for s in range(depth(p)):
        d, pairs = 1 << s, rows.shape[0] // 2
        sources = range(min(d, p - d))
        moves = [(way * u % p, way * (u + d) % p) for u in sources]
        received = group.permute(rows[1::2], moves, label)
        kept, receives = rows[::2], (place >= d) & (place < 2 * d)
        met = choose(receives, received, kept[:pairs])
        rows = lax.concatenate([met, kept[pairs:]], 0) if kept.shape[0] > pairs else met
    return rows[0]


def blocks_at(places: Sequence[int], rank: jax.Array, p: int, way: int) -> jax.Array:
    """The blocks that stand at places of rank: int32 [places]."""
    return wrap(rank + np.array(places, np.int32) * np.int32(way), p)


def by_parity(rows: jax.Array, odd: jax.Array) -> tuple[jax.Array, jax.Array]:
    """rows [2n, …] → those whose parity is odd, a scalar; the others: [n, …] each."""
    pairs = lax.reshape(rows, (rows.shape[0] // 2, 2, *rows.shape[1:]))
    even_rows, odd_rows = pairs[:, 0], pairs[:, 1]
    return choose(odd, odd_rows, even_rows), choose(odd, even_rows, odd_rows)


def interleaved(own: jax.Array, other: jax.Array, odd: jax.Array) -> jax.Array:
    """The inverse of ``by_parity``."""
    pairs = jnp.stack([choose(odd, other, own), choose(odd, own, other)], 1)
    return lax.reshape(pairs, (2 * own.shape[0], *own.shape[1:]))
