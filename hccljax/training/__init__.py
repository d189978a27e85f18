"""Data-parallel training: gradients that go through the algorithm you chose."""

from hccljax.training.gradients import as_varying, value_and_grad
from hccljax.training.in_sync import SyncReport, check_in_sync
from hccljax.training.optimiser import SynchronizedState, synchronized
from hccljax.training.sync import sync_gradients

__all__ = [
    "SyncReport",
    "SynchronizedState",
    "as_varying",
    "check_in_sync",
    "sync_gradients",
    "synchronized",
    "value_and_grad",
]
