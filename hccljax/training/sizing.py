"""How long a bucket of gradients should be: bucket_bytes as a number."""

from __future__ import annotations

from typing import Any

from hccljax.algorithm import Algorithm
from hccljax.algorithm.native import native
from hccljax.errors import ArgumentError, shown
from hccljax.selection import Settings, choose
from hccljax.selection.cost import GRID, Field
from hccljax.selection.ranks import assumed
from hccljax.topology import Topology, with_figures

LATENCY_SHARE = 0.1
"""``"auto"``: the most that latency may take of a bucket's time. Half as much would make buckets twice as long: 5 %
less time in all, and the first one starts twice as late."""


def bucket_size(
    bucket_bytes: Any, p: int, algorithm: Any, tiers: Topology | None = None, leaves_out: bool = False
) -> int:
    """The argument bucket_bytes of ``sync_gradients`` in bytes, for p ranks.

    None is HCCL_BUFFSIZE. ``"auto"`` is the shortest power of two for which at most a tenth of the predicted time of an
    all_reduce is latency: the time of the same algorithm for a message of one byte a rank. It is not longer than
    HCCL_BUFFSIZE, above which a message goes in slices anyway. Without tiers, ranks are wired as ``explain`` has them.

    Raises:
      ArgumentError: bucket_bytes is none of these, or less than 1.
    """
    settings = Settings.from_environment()
    if bucket_bytes is None:
        return settings.buffer
    if bucket_bytes == "auto":
        return _auto(p, algorithm, tiers, leaves_out, settings)
    if isinstance(bucket_bytes, bool) or not hasattr(bucket_bytes, "__index__") or bucket_bytes.__index__() < 1:
        raise ArgumentError(
            f"bucket_bytes={shown(bucket_bytes)}: expected a number of bytes, 1 or more, 'auto' for what the cost "
            f"model says, or None for HCCL_BUFFSIZE"
        )
    return bucket_bytes.__index__()


def _auto(p: int, algorithm: Any, tiers: Topology | None, leaves_out: bool, settings: Settings) -> int:
    if p == 1:
        return settings.buffer
    field = Field("all_reduce", with_figures(tiers or assumed(p)), settings.buffer)
    for nbytes in GRID:
        if nbytes >= settings.buffer:
            break
        record = _record(p, nbytes, algorithm, tiers, leaves_out, settings)
        latency, whole = field.seconds(record, [p, nbytes])
        if latency <= LATENCY_SHARE * whole:
            return nbytes
    return settings.buffer


def _record(
    p: int,
    nbytes: int,
    algorithm: Any,
    tiers: Topology | None,
    leaves_out: bool,
    settings: Settings,
) -> Algorithm:
    """What runs; for XLA's own way, which is not visible, what the policy would run."""
    record = choose("all_reduce", nbytes, p, algorithm, tiers, settings=settings, leaves_out=leaves_out).record
    if record is native:
        record = choose("all_reduce", nbytes, p, None, tiers, settings=Settings(buffer=settings.buffer)).record
    return record
