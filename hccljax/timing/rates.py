"""Rates: how fast one rank computes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hccljax.numbers import real


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
        for name, unit in (("flops", "operations/s"), ("bandwidth", "bytes/s")):
            value = real(f"Rates {name}", getattr(self, name), above=True, infinite=True, unit=unit)
            object.__setattr__(self, name, value)

    def seconds(self, flops: float, nbytes: float) -> float:
        """How long so many operations and bytes take."""
        return max(flops / self.flops, nbytes / self.bandwidth)
