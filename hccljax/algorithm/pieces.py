"""Pieces: how a long part of a message is cut, so that one tier works on the next piece while another sends this one.

A piece waits for the one before it, by a barrier: they leave in this order, and each is a step of its own.
"""

from __future__ import annotations

from itertools import pairwise

import jax
from jax import lax

PIECE_BYTES = 384 << 10
"""Bytes of the shortest piece: it takes about as long on an HCCS link (56 GB/s) as a message between servers costs
besides its bytes (5 µs)."""

MOST_PIECES = 4
"""Of growing length. Messages with as many fit HCCL's buffer of 200 MB."""

LONGEST_BYTES = 8 << 20
"""Bytes above which a piece is halved: 420 µs between servers (20 GB/s); the 5 µs that it costs are about 1 % of it."""

MOST_HALVINGS = 3
"""Of one piece: longer messages lose no more by fewer pieces, since those take longer, too."""


def after(came: list[jax.Array], piece: jax.Array) -> jax.Array:
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
