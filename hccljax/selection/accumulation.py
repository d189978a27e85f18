"""What accumulate_dtype changes about a Decision: the sums go by mesh, and only what follows is the algorithm's."""

from __future__ import annotations

from dataclasses import replace

from hccljax.algorithm.accumulating import accumulating, gatherer
from hccljax.selection.decision import Decision


def accumulated(decision: Decision, dtype: str) -> Decision:
    """The decision with its contributions added by their owner, in dtype."""
    if decision.ranks == 1:
        return decision
    gathers = decision.operator == "all_reduce"
    record = accumulating(decision.record, dtype)
    sums = f"accumulate_dtype={dtype}: a mesh exchange brings every contribution to the owner of its block"
    then = f"; {gatherer(decision.record).name} gathers the sums ({decision.reason})" if gathers else ""
    return replace(
        decision,
        algorithm=record.name if gathers else f"mesh in {dtype}",
        record=record,
        reason=sums + then,
        # Where nothing of the algorithm runs, it does not matter what it lacks.
        fallback=decision.fallback if gathers else None,
        steps=record.steps(decision.operator, decision.ranks, decision.nbytes),
        bytes_sent=record.bytes_sent(decision.operator, decision.ranks, decision.nbytes),
    )
