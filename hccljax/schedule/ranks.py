"""The numbering of all ranks over several mapped axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hccljax.errors import ArgumentError


class Ranks:
    """The axes flattened in the order of ``sizes``, the last one changing fastest: ranks 0 to n - 1."""

    def __init__(self, sizes: Mapping[str, int]):
        self.sizes = dict(sizes)
        self.n = math.prod(self.sizes.values())
        self._along: dict[tuple[str, ...], np.ndarray] = {}

    def along(self, axes: Sequence[str]) -> np.ndarray:
        """[copies, indices]: the ranks along axes, flattened as given, for each index of the others."""
        if tuple(axes) not in self._along:
            self._along[tuple(axes)] = self._flattened(axes)
        return self._along[tuple(axes)]

    def _flattened(self, axes: Sequence[str]) -> np.ndarray:
        unknown = [axis for axis in axes if axis not in self.sizes]
        if unknown:
            raise ArgumentError(
                f"axis {unknown[0]!r} has no size; expected it in axis_sizes, next to {list(self.sizes)}"
            )
        names = list(self.sizes)
        order = [*(axis for axis in names if axis not in axes), *axes]
        table = np.arange(self.n).reshape(tuple(self.sizes.values()))
        indices = math.prod(self.sizes[axis] for axis in axes)
        return table.transpose([names.index(axis) for axis in order]).reshape(-1, indices)

    def __repr__(self) -> str:
        return ", ".join(f"{axis}={size}" for axis, size in self.sizes.items())
