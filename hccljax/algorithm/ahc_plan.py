"""Who holds which piece in AHC: server i deals piece k to its rank k mod m_i."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hccljax.group import Group

WAVES = 16
"""Waves beyond which pieces are dealt out unevenly: every wave is traced and compiled for itself."""


class Servers:
    """Servers of ``sizes`` ranks in a group of ``sum(sizes)``, and the waves in which pieces travel between them.

    Attributes:
      sizes: ranks of each server, in rank order.
      starts: the first rank of each server.
      size_of: [p], the ranks of each rank's server.
      waves: communications between servers; wave t has the pieces from t · min(sizes) on, min(sizes) of them.
      pieces: K = waves · min(sizes).
    """

    def __init__(self, sizes: tuple[int, ...]):
        self.sizes = sizes
        ends = np.cumsum(sizes)
        self.starts = [int(end) - m for end, m in zip(ends, sizes, strict=True)]
        self.size_of = np.repeat(np.array(sizes, np.int32), sizes)
        self._place = np.arange(int(ends[-1])) - np.repeat(self.starts, sizes)  # of each rank in its server
        least = min(sizes)
        self.waves = min(math.lcm(*sizes) // least, max(WAVES, -(-max(sizes) // least)))
        self.pieces = self.waves * least

    @property
    def classes(self) -> tuple[int, ...]:
        """The sizes that servers have."""
        return tuple(sorted(set(self.sizes)))

    def rows(self, m: int) -> int:
        """Pieces that a rank in a server of m holds, some of them padding."""
        return -(-self.pieces // m)

    def parts(self, m: int) -> int:
        """Pieces that every rank in a server of m holds."""
        return self.pieces // m

    def inside(self, m: int, group: Group) -> Group:
        """The servers of m ranks, each a communicator."""
        starts = [start for start, size in zip(self.starts, self.sizes, strict=True) if size == m]
        return group.among(np.array(starts)[:, None] + np.arange(m))

    def peers(self, t: int, group: Group) -> Group:
        """The holders of the pieces of wave t: a communicator for each piece, with one rank of each server."""
        least = min(self.sizes)
        pieces = np.arange(t * least, (t + 1) * least)
        holders = [start + pieces % m for start, m in zip(self.starts, self.sizes, strict=True)]
        return group.among(np.stack(holders, axis=1))

    def wave_of_row(self, m: int) -> np.ndarray:
        """[p, rows]: the wave of each piece that a rank holds, as if its server had m ranks; any wave for padding."""
        return np.minimum(self._held(m), self.pieces - 1) // np.int32(min(self.sizes))

    def row_of_wave(self, m: int) -> np.ndarray:
        """[p, waves]: which of its pieces a rank has in each wave, as if its server had m; 0 where it has none."""
        table = np.zeros((len(self.size_of), self.waves), np.int32)
        for rank, held in enumerate(self._held(m)):
            rows = np.flatnonzero(held < self.pieces)
            table[rank, held[rows] // min(self.sizes)] = rows
        return table

    def _held(self, m: int) -> np.ndarray:
        """[p, rows]: the pieces of each rank, K and more for padding."""
        place = np.minimum(self._place, m - 1)[:, None]
        return (place + m * np.arange(self.rows(m))).astype(np.int32)


@lru_cache(maxsize=256)
def servers_of(sizes: tuple[int, ...]) -> Servers:
    """The servers of these sizes."""
    return Servers(sizes)
