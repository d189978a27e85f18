"""Who computes which micro-batch when: GPipe and 1F1B as tables."""

from __future__ import annotations

from dataclasses import dataclass

from hccljax.errors import ArgumentError, shown
from hccljax.numbers import whole


@dataclass(frozen=True)
class PipelineSchedule:
    """Ticks of a pipeline. A stage does one forward and one backward pass of a micro-batch in a tick at most.

    Attributes:
      name: ``"gpipe"`` or ``"1f1b"``.
      stages: p, the ranks of the pipeline.
      microbatches: m.
    """

    name: str
    stages: int
    microbatches: int

    @property
    def ticks(self) -> int:
        """Ticks from the first forward to the last backward pass."""
        both = self.microbatches + self.stages - 1
        return 2 * both if self.name == "gpipe" else both + self.stages - 1

    def forward(self, tick: int, stage: int) -> int | None:
        """The micro-batch that a stage takes forward in a tick; None if it takes none."""
        return self._valid(tick - stage)

    def backward(self, tick: int, stage: int) -> int | None:
        """The micro-batch that a stage takes backward in a tick; None if it takes none."""
        if self.name == "gpipe":  # in reverse, as transposition has it
            return self._valid(self.ticks - 1 - tick - stage)
        return self._valid(tick - 2 * (self.stages - 1) + stage)

    def in_flight(self, stage: int) -> int:
        """The most micro-batches that have gone forward and not yet backward on a stage: inputs that it has to keep."""
        if self.name == "gpipe":
            return self.microbatches
        return min(self.microbatches, 2 * (self.stages - 1 - stage) + 1)

    @property
    def bubble(self) -> float:
        """The share of time that a stage is idle, if all stages take equally long: (p - 1)/(m + p - 1) for both.

        Forward passes take one unit and backward passes two; ticks in which nobody goes backward, or nobody forward,
        are shorter.
        """
        ranks = range(self.stages)
        total = 0
        for tick in range(self.ticks):
            total += any(self.forward(tick, r) is not None for r in ranks)
            total += 2 * any(self.backward(tick, r) is not None for r in ranks)
        return 1 - 3 * self.microbatches / total

    def _valid(self, number: int) -> int | None:
        return number if 0 <= number < self.microbatches else None

    def __str__(self) -> str:
        """A row for each stage, a column for each tick: F for forward, B for backward, with the micro-batch."""
        width = 2 * len(f"F{self.microbatches - 1}") + 1

        def cell(tick: int, stage: int) -> str:
            parts = (("F", self.forward(tick, stage)), ("B", self.backward(tick, stage)))
            return " ".join(f"{letter}{number}" for letter, number in parts if number is not None).ljust(width)

        rows = ["".join(f" | {cell(tick, stage)}" for tick in range(self.ticks)) for stage in range(self.stages)]
        return "\n".join(f"{stage:3}{row}".rstrip() for stage, row in enumerate(rows))


def pipeline_schedule(name: str, stages: int, microbatches: int) -> PipelineSchedule:
    """The schedule that ``gpipe`` or ``one_f_one_b`` runs by.

    Args:
      name: ``"gpipe"`` (Huang et al. 2019) or ``"1f1b"`` (Narayanan et al. 2021), here with one tick for the forward
        pass of one micro-batch and the backward pass of another.
      stages: p.
      microbatches: m.

    Raises:
      ArgumentError: an unknown name, or a number less than 1.

    Source: Huang et al. 2019; Narayanan et al. 2021.

    >>> print(hccljax.training.pipeline_schedule("1f1b", 2, 3))
      0 | F0    | F1    | F2 B0 | B1    | B2
      1 |       | F0 B0 | F1 B1 | F2 B2 |
    """
    if name not in ("gpipe", "1f1b"):
        raise ArgumentError(f"pipeline_schedule {shown(name)}: expected 'gpipe' or '1f1b'")
    return PipelineSchedule(name, whole("stages", stages, 1), whole("microbatches", microbatches, 1))
