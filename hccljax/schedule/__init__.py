"""What a per-device function communicates, read from its jaxpr: nothing runs, no device is needed."""

from hccljax.schedule.counts import Counts, count
from hccljax.schedule.schedule import Schedule
from hccljax.schedule.tracing import trace

__all__ = ["Counts", "Schedule", "count", "trace"]
