"""Parallel training: gradients, and models spread over ranks, that go through the algorithm you chose."""

from hccljax.training.experts import experts
from hccljax.training.flat import FlatLayout, flat_layout
from hccljax.training.gradients import as_varying, value_and_grad
from hccljax.training.in_sync import SyncReport, check_in_sync
from hccljax.training.optimiser import SynchronizedState, synchronized
from hccljax.training.pipeline_parallel import gpipe, one_f_one_b
from hccljax.training.pipeline_schedule import PipelineSchedule, pipeline_schedule
from hccljax.training.regions import broadcast_from, copy_to, gather_from, reduce_from, scatter_to
from hccljax.training.sync import sync_gradients
from hccljax.training.tensor import column_parallel, row_parallel
from hccljax.training.vocabulary import cross_entropy_parallel, embedding_parallel
from hccljax.training.zero import (
    gather_parameters,
    global_norm,
    scatter_gradients,
    shard_parameters,
    shard_specs,
    sharded_value_and_grad,
)
from hccljax.training.zero_optimiser import zero

__all__ = [
    "FlatLayout",
    "PipelineSchedule",
    "SyncReport",
    "SynchronizedState",
    "as_varying",
    "broadcast_from",
    "check_in_sync",
    "column_parallel",
    "copy_to",
    "cross_entropy_parallel",
    "embedding_parallel",
    "experts",
    "flat_layout",
    "gather_from",
    "gather_parameters",
    "global_norm",
    "gpipe",
    "one_f_one_b",
    "pipeline_schedule",
    "reduce_from",
    "row_parallel",
    "scatter_gradients",
    "scatter_to",
    "shard_parameters",
    "shard_specs",
    "sharded_value_and_grad",
    "sync_gradients",
    "synchronized",
    "value_and_grad",
    "zero",
]
