"""Outlook: all that could run an operator here, how long each takes, and where the choice changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hccljax.selection.cost import GRID, Candidate, Field, on_line, table
from hccljax.selection.decision import Decision
from hccljax.timing.bounds import Bound, lower_bound
from hccljax.timing.simulation import duration

EXACT = 1.5
"""Candidates that take longer than this many times the fastest are timed by straight lines between sizes."""

_SHOWN = 8  # candidates in the text form


@dataclass(frozen=True)
class Prospect:
    """One candidate for the message that is asked about.

    Attributes:
      algorithm: its name, a hierarchy as ``"level0:mesh;level1:NHR"``.
      seconds: predicted.
      steps: the longest chain of dependent communications.
      bytes_sent: the most bytes that one rank sends.
      level_bytes: the most bytes that one port carries at each level of the wiring, the innermost first.
      of_bound: the lower bound as a part of the time: 1 is the best there can be.
    """

    algorithm: str
    seconds: float
    steps: int
    bytes_sent: int
    level_bytes: tuple[int, ...]
    of_bound: float


@dataclass(frozen=True)
class Switch:
    """A message size from which another algorithm is the fastest: from nbytes on it is ``algorithm``."""

    nbytes: int
    algorithm: str


@dataclass(frozen=True)
class Outlook:
    """What else could run, and how long everything takes.

    Attributes:
      topology: the wiring that the times are for, as a spec.
      assumed: True if the topology was given without figures.
      prospects: all candidates, the fastest first.
      chosen: the one that runs.
      bound: the least time that any algorithm takes.
      switches: which algorithm is the fastest from which size on, the smallest size first.
      hccl: what HCCL's own selector (policy ``cann``) takes, with its reason.
      cut_off: algorithms that cannot run here: links that they need are lost, or their kernel refuses so many ranks.
    """

    topology: str
    assumed: bool
    prospects: tuple[Prospect, ...]
    chosen: Prospect | None
    bound: Bound
    switches: tuple[Switch, ...]
    hccl: str
    cut_off: tuple[str, ...] = ()

    @property
    def margin(self) -> float:
        """How many times longer than the fastest one the chosen one takes; of the fastest itself, the next one."""
        times = [prospect.seconds for prospect in self.prospects]
        if self.chosen is None or len(times) < 2 or not times[0]:
            return 1.0
        return (times[1] if self.chosen.seconds <= times[0] else self.chosen.seconds) / times[0]

    def lines(self) -> list[str]:
        """The text form, a line each."""
        assumed = " (figures assumed)" if self.assumed else ""
        found = [f"  on {self.topology}{assumed}, at least {duration(self.bound.seconds)}: {self.bound.binds}"]
        if self.chosen is not None:
            quickest = self.prospects[0]
            if self.chosen.seconds <= quickest.seconds:
                ahead = f", {self.margin:.2f} × ahead of the next" if len(self.prospects) > 1 else ""
                verdict = f"the fastest{ahead}"
            else:
                verdict = f"{self.margin:.2f} × the fastest, {quickest.algorithm}"
            found.append(f"  time:  {duration(self.chosen.seconds)} predicted, {verdict}")
        if self.cut_off:
            found.append(f"  cannot run here: {', '.join(self.cut_off)}")
        if self.prospects:
            found += self._table()
        fastest = ", ".join(f"{switch.algorithm} from {_size(switch.nbytes)}" for switch in self.switches)
        found += [f"  fastest by size: {fastest}"] if fastest else []
        return [*found, f"  HCCL's own rule: {self.hccl}"]

    def _table(self) -> list[str]:
        shown = list(self.prospects[:_SHOWN])
        if self.chosen is not None and self.chosen not in shown:
            shown[-1] = self.chosen
        width = max(len(prospect.algorithm) for prospect in shown)
        found = [f"  {'candidate':<{width}}  {'time':>10}  {'steps':>6}  {'of bound':>8}  busiest port, bytes by level"]
        for prospect in shown:
            mark = "*" if prospect is self.chosen else " "
            bytes_ = " / ".join(f"{nbytes:,}" for nbytes in prospect.level_bytes)
            found.append(
                f" {mark}{prospect.algorithm:<{width}}  {duration(prospect.seconds):>10}  {prospect.steps:>6,}  "
                f"{prospect.of_bound:>8.1%}  {bytes_}"
            )
        left = len(self.prospects) - len(shown)
        return [*found, f"  … and {left} more"] if left > 0 else found


def outlook_of(decision: Decision, field: Field, assumed: bool, hccl: str) -> Outlook:
    """The outlook for a decision on all ranks of a topology."""
    nbytes = decision.nbytes
    bound = lower_bound(field.operator, nbytes, field.topology)
    found = sorted(_candidates(decision, field), key=lambda one: float(one.seconds[0]))
    cut_off = tuple(one.algorithm for one in found if not np.isfinite(one.seconds[0]))
    prospects = tuple(_prospect(field, one, nbytes, bound) for one in found if one.algorithm not in cut_off)
    chosen = next((one for one in prospects if one.algorithm == decision.algorithm), None)
    return Outlook(
        str(field.topology), assumed, prospects, chosen, bound, _switches(table(field)), hccl, cut_off=cut_off
    )


def _candidates(decision: Decision, field: Field) -> list[Candidate]:
    """All candidates, timed for this size where they are not far behind; else by straight lines between sizes."""
    nbytes, known = decision.nbytes, field.flat()
    lines = {one.algorithm: on_line(one.seconds, nbytes) for one in table(field) if one.algorithm in known}
    (best,) = field.hierarchies([nbytes])
    exact = {} if best is None else {best.name: best}
    least = min(lines.values())
    exact |= {name: known[name] for name, seconds in lines.items() if seconds <= EXACT * least}
    if decision.algorithm != "native":
        exact[decision.algorithm] = known.get(decision.algorithm, decision.record)
    found = [Candidate(name, record, field.seconds(record, [nbytes])) for name, record in exact.items()]
    found += [Candidate(name, known[name], np.array([t])) for name, t in lines.items() if name not in exact]
    return found


def _prospect(field: Field, candidate: Candidate, nbytes: int, bound: Bound) -> Prospect:
    seconds = float(candidate.seconds[0])
    steps, bytes_sent = field.cost(candidate.record, nbytes)
    level_bytes = field.level_bytes(candidate.record, nbytes)
    return Prospect(
        candidate.algorithm, seconds, steps, bytes_sent, level_bytes, bound.seconds / seconds if seconds else 1.0
    )


def _switches(candidates: Sequence[Candidate]) -> tuple[Switch, ...]:
    """Where the fastest candidate changes: by straight lines between the sizes of the grid."""
    candidates = [candidate for candidate in candidates if np.isfinite(candidate.seconds).all()]
    if not candidates:
        return ()
    times = np.stack([candidate.seconds for candidate in candidates])
    best = np.argmin(times, axis=0)
    found = [Switch(0, candidates[int(best[0])].algorithm)]
    for k, (before, after) in enumerate(pairwise(map(int, best))):
        if before == after:
            continue
        gap = times[before, k : k + 2] - times[after, k : k + 2]  # below 0 while the old one is ahead
        share = 1.0 if gap[1] == gap[0] else gap[0] / (gap[0] - gap[1])
        found.append(Switch(round(GRID[k] + share * (GRID[k + 1] - GRID[k])), candidates[after].algorithm))
    return tuple(found)


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes} bytes"
