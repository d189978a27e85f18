"""What a per-device function communicates, read from its jaxpr: nothing runs, no device is needed."""

from hccljax.schedule.counts import Counts, count

__all__ = ["Counts", "count"]
