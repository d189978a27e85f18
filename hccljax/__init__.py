"""hccljax: HCCL's collective communication for JAX.

Collectives are jitted functions over ranks, built from algorithms (ring, tree, double tree, halving-doubling, mesh,
pairwise, hierarchies of them) that are plain JAX functions over a ``Group``:

- inside ``jax.shard_map`` or ``jax.vmap(axis_name=…)``: ``hccljax.all_reduce(x, axis_name)`` and the others;
- on arrays with a leading rank axis: ``hccljax.Communicator(8).all_reduce(x)``;
- in a program written for ``jax.lax``: ``from hccljax import lax``.
"""

from hccljax import lax
from hccljax.algorithm import Algorithm, register
from hccljax.collectives import (
    all_gather,
    all_gather_v,
    all_reduce,
    all_to_all,
    all_to_all_v,
    all_to_all_vc,
    barrier,
    batch_send_recv,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_v,
    scatter,
    send_recv,
)
from hccljax.communicator import Communicator
from hccljax.errors import (
    ArgumentError,
    AxisError,
    DerivativeError,
    DtypeError,
    FallbackWarning,
    HcclError,
    HcclWarning,
    InvariantOperandWarning,
    MismatchError,
    OutOfSyncError,
    PeerTimeoutError,
    SettingError,
    UnreachableError,
    UnsupportedError,
    VerificationError,
)
from hccljax.group import Group
from hccljax.prediction import Prediction, predict
from hccljax.proof import Proof, verify
from hccljax.rank_table import RankTable, RankTableError, read_rank_table
from hccljax.schedule import Schedule, trace
from hccljax.selection import Decision, algorithms, explain, policies, register_policy
from hccljax.timing import Rates, closed_form, lower_bound, simulate
from hccljax.topology import Level, Topology, as_topology, with_figures
from hccljax.training import SyncReport, as_varying, check_in_sync, sync_gradients, synchronized, value_and_grad

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "ArgumentError",
    "AxisError",
    "Communicator",
    "Decision",
    "DerivativeError",
    "DtypeError",
    "FallbackWarning",
    "Group",
    "HcclError",
    "HcclWarning",
    "InvariantOperandWarning",
    "Level",
    "MismatchError",
    "OutOfSyncError",
    "PeerTimeoutError",
    "Prediction",
    "Proof",
    "RankTable",
    "RankTableError",
    "Rates",
    "Schedule",
    "SettingError",
    "SyncReport",
    "Topology",
    "UnreachableError",
    "UnsupportedError",
    "VerificationError",
    "algorithms",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_to_all_vc",
    "as_topology",
    "as_varying",
    "barrier",
    "batch_send_recv",
    "broadcast",
    "check_in_sync",
    "closed_form",
    "explain",
    "gather",
    "lax",
    "lower_bound",
    "policies",
    "predict",
    "read_rank_table",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "register",
    "register_policy",
    "scatter",
    "send_recv",
    "simulate",
    "sync_gradients",
    "synchronized",
    "trace",
    "value_and_grad",
    "verify",
    "with_figures",
]
