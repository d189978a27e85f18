"""Decision: which algorithm runs an operator, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from hccljax.algorithm import Algorithm


@dataclass(frozen=True)
class Decision:
    """The choice for one operator, message size and group.

    Attributes:
      operator: such as ``"all_reduce"``.
      ranks: ranks in the group.
      nbytes: bytes of one rank's message.
      algorithm: the name of the algorithm, a hierarchy as ``"level0:ring;level1:tree"``.
      reason: why, in one sentence.
      asked_by: who asked: ``"call"``, ``"communicator"``, ``"HCCL_ALGO"``, or ``"policy ranks"`` if nobody did.
      fallback: what was asked for and could not be had, with the reason; None if nothing.
      steps: the longest chain of dependent communications, by the algorithm's own formula.
      bytes_sent: the most bytes that one rank sends, by the algorithm's own formula.
      tiers: members of each level that the algorithm uses, level 0 first; None for one flat server.
      record: the Algorithm itself.
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
    tiers: tuple[int, ...] | None = None
    record: Algorithm | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        tiers = "" if self.tiers is None else f" in tiers of {'x'.join(map(str, reversed(self.tiers)))}"
        lines = [
            f"{self.operator}, {self.ranks} ranks{tiers}, {self.nbytes} bytes per rank: {self.algorithm}",
            f"  why:   {self.reason} (asked by: {self.asked_by})",
            f"  cost:  {self.steps} steps; the busiest rank sends {self.bytes_sent} bytes",
        ]
        if self.fallback:
            lines.append(f"  note:  {self.fallback}")
        return "\n".join(lines)
