"""What the timed benchmarks share: interleaved medians, ratios, and the table of figures against their targets."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name", str, int)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
      name: what the figure is.
      figure: what came out; None if it was not measured.
      target: its limit; the figure itself may be equal to it.
      unit: stands behind both.
      at_least: True if the target is the least figure that is good, False if it is the greatest.
    """

    name: str
    figure: float | None
    target: float
    unit: str = "×"
    at_least: bool = False

    @property
    def short(self) -> bool:
        """True if the figure misses its target; a figure that was not measured misses nothing."""
        if self.figure is None:
            return False
        return not (self.figure >= self.target if self.at_least else self.figure <= self.target)

    @property
    def verdict(self) -> str:
        return "not measured" if self.figure is None else "SHORT" if self.short else "ok"

    def __str__(self) -> str:
        sign, figure = "≥" if self.at_least else "≤", "–" if self.figure is None else self._text(self.figure)
        return f"{self.name:<64}{figure:>12}  {sign} {self._text(self.target):<11}{self.verdict}"

    def _text(self, value: float) -> str:
        digits = 0 if self.unit != "×" and value == int(value) else 2 if abs(value) < 100 else 0
        return f"{value:,.{digits}f} {self.unit}".rstrip()


def bytes_text(size: int) -> str:
    """A number of bytes in the largest unit that leaves it whole."""
    for unit, name in ((2**20, "MB"), (2**10, "KB")):
        if size and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def geometric_mean(values: Iterable[float]) -> float:
    """The mean for ratios: that of r and of 1/r is 1."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def interleaved(
    calls: Mapping[Name, Callable[[], object]],
    rounds: int,
    block: int = 1,
    before: Callable[[], object] | None = None,
) -> dict[Name, float]:
    """Median seconds of one call of each candidate, run in the order A B C A B C …

    Args:
      calls: candidates by name; each returns when its work is done. What it returns is freed off the clock.
      rounds: how often each candidate has its turn.
      block: calls in one turn, each timed on its own.
      before: runs before every call, off the clock.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(block):
                if before is not None:
                    before()
                start = time.perf_counter()
                out = call()
                seconds[name].append(time.perf_counter() - start)
                del out
    return {name: statistics.median(times) for name, times in seconds.items()}


def report(findings: Iterable[Finding], strict: bool) -> int:
    """Prints each figure beside its target and at the end what falls short; the exit status."""
    findings = list(findings)
    print(f"\n{'':<64}{'figure':>12}  target")
    for finding in findings:
        print(finding)
    short = [finding for finding in findings if finding.short]
    if short:
        print(f"\nShort of their targets, {len(short)} of {len(findings)}:")
        for finding in short:
            print(finding)
    else:
        print("\nNothing falls short.")
    return 1 if strict and short else 0
