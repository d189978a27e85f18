"""What HCCL_BUFFSIZE changes about a Decision: a longer message is processed in slices."""

from __future__ import annotations

from hccljax.algorithm.native import native
from hccljax.algorithm.slicing import fillings, sliced
from hccljax.selection.decision import Decision


def in_slices(decision: Decision, buffer: int) -> Decision:
    """The decision for a message that is longer than buffer. XLA's own collectives have buffers of their own."""
    if decision.record is native:
        return decision
    record, count = sliced(decision.record, buffer), fillings(decision.nbytes, buffer)
    return decision.run_by(record, reason=f"{decision.reason}; {count} slices of up to {buffer} bytes (HCCL_BUFFSIZE)")
