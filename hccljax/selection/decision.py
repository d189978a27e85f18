"""Decision: which algorithm runs an operator, and why."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hccljax.algorithm import Algorithm


@dataclass(frozen=True)
class Decision:
    """The choice for one operator, message size and group.

    Attributes:
      operator: such as ``"all_reduce"``.
      ranks: ranks in the group.
      nbytes: bytes of one rank's message (all p blocks of it).
      algorithm: the name of the algorithm, a hierarchy as ``"level0:ring;level1:tree"``.
      reason: why, in one sentence.
      asked_by: who asked: ``"call"``, ``"communicator"``, ``"HCCL_ALGO"``, or ``"policy ranks"`` (cann, cost, …)
        if nobody did.
      fallback: what was asked for and could not be had, with the reason; None if nothing.
      steps: the longest chain of dependent communications, by the algorithm's own formula.
      bytes_sent: the most bytes that one rank sends, by the algorithm's own formula, which leaves out the padding of a
        message that does not cut into even blocks.
      record: the Algorithm itself.
      tiers: members of each level that the algorithm uses, level 0 first; None for one flat server.
      servers: ranks of each server, for an algorithm that uses servers of unequal size; None else.
      classes: where the communicators of a group differ in size, one Decision for each size, the largest first (this
        Decision is the first one's); else empty.
    """

    operator: str
    ranks: int
    nbytes: int
    algorithm: str
    reason: str
    asked_by: str
    fallback: str | None
    steps: int
    bytes_sent: int
    record: Algorithm = field(repr=False, compare=False)
    tiers: tuple[int, ...] | None = None
    servers: tuple[int, ...] | None = None
    classes: tuple[Decision, ...] = ()

    @property
    def asked(self) -> bool:
        """True if somebody asked for an algorithm, False if a policy chose it."""
        return not self.asked_by.startswith("policy")

    def run_by(self, record: Algorithm, **changes: Any) -> Decision:
        """The decision with another record, what that costs, and further changes."""
        steps, bytes_sent = record.cost(self.operator, self.ranks, self.nbytes)
        return replace(self, record=record, steps=steps, bytes_sent=bytes_sent, **changes)

    def __str__(self) -> str:
        if self.classes:
            return "\n".join(map(str, self.classes))
        tiers = "" if self.tiers is None else f" in tiers of {'x'.join(map(str, reversed(self.tiers)))}"
        if self.servers is not None:
            tiers = f" in servers of {'+'.join(map(str, self.servers))}"
        # Blocks are even for every dtype of up to 8 bytes; what else is padded depends on the algorithm.
        padding = "" if self.nbytes % (8 * self.ranks) == 0 else ", padding not counted"
        lines = [
            f"{self.operator} of {self.nbytes} bytes, {_many(self.ranks, 'rank')}{tiers}: {self.algorithm}",
            f"  why:   {self.reason} (asked by: {self.asked_by})",
            f"  cost:  {_many(self.steps, 'step')}; the busiest rank sends {self.bytes_sent} bytes{padding}",
        ]
        if self.fallback:
            lines.append(f"  note:  {self.fallback}")
        return "\n".join(lines)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
