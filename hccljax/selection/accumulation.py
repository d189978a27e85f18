"""What accumulate_dtype and HCCL_DETERMINISTIC=strict change about a Decision: who adds the contributions up."""

from __future__ import annotations

from hccljax.algorithm.accumulating import accumulating, gatherer
from hccljax.selection.decision import Decision


def accumulated(decision: Decision, dtype: str | None) -> Decision:
    """The decision with its contributions added by their owner, in rank order and in dtype (None is their own)."""
    if decision.ranks == 1:
        return decision
    gathers = decision.operator == "all_reduce"
    record = accumulating(decision.record, dtype)
    asked = "HCCL_DETERMINISTIC=strict" if dtype is None else f"accumulate_dtype={dtype}"
    sums = f"{asked}: a mesh exchange brings every contribution to the owner of its block"
    then = f"; {gatherer(decision.record).name} gathers the sums ({decision.reason})" if gathers else ""
    return decision.run_by(
        record,
        algorithm=record.name if gathers else record.name.split(",")[0],
        reason=sums + then,
        # Where nothing of the algorithm runs, it does not matter what it lacks.
        fallback=decision.fallback if gathers else None,
    )
