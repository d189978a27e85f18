"""The per-device collectives: inside ``jax.shard_map`` or ``jax.vmap(axis_name=…)``, over an axis, axes or a Group."""

from hccljax.collectives.exchange import all_to_all_v, all_to_all_vc
from hccljax.collectives.movement import all_gather, all_to_all, broadcast, gather, scatter
from hccljax.collectives.point_to_point import barrier, batch_send_recv, send_recv
from hccljax.collectives.reductions import all_reduce, reduce, reduce_scatter
from hccljax.collectives.variable import all_gather_v, reduce_scatter_v

__all__ = [
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_to_all_vc",
    "barrier",
    "batch_send_recv",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
    "send_recv",
]
