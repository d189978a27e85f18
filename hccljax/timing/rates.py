"""Rates: how fast one rank computes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hccljax.errors import ArgumentError, shown


@dataclass(frozen=True)
class Rates:
    """How fast one rank computes: a computation takes the longer of its operations and its memory traffic.

    Attributes:
      flops: floating-point operations per second, those that a real program reaches.
      bandwidth: bytes/s of the memory.
    """

    flops: float
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ArgumentError(f"Rates {name}={shown(value)}: expected a number above 0, per second")

    def seconds(self, flops: float, nbytes: float) -> float:
        """How long so many operations and bytes take."""
        return max(flops / self.flops, nbytes / self.bandwidth)
