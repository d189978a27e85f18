"""sync_gradients as the first link of an optax chain."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hccljax.algorithm import Algorithm
from hccljax.errors import UnsupportedError
from hccljax.group import AxisName, Group
from hccljax.topology import Topology
from hccljax.training.sync import checked_op, sync_gradients


class SynchronizedState(NamedTuple):
    """The state of ``synchronized``.

    Attributes:
      skipped: steps so far whose gradients were not finite and became zeros; int32 scalar.
    """

    skipped: jax.Array


def synchronized(
    axis_name: AxisName | Group,
    op: str = "mean",
    *,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
    bucket_bytes: int | str | None = None,
    in_flight: int | None = None,
    skip_nonfinite: bool = False,
) -> Any:
    """An optax transformation that reduces the gradients over the ranks: the first link before any optimiser.

    ``optax.chain(synchronized("data"), optax.adam(1e-3))`` takes the gradients of this rank, of parameters that went
    through ``as_varying`` before ``jax.grad``. Its update takes one more argument, ``communicate``: False sends nothing
    and gives zeros. ``optax.MultiSteps`` runs its optimiser at every small step and throws the result away at all but
    the last; so that only the last one communicates, tell it which one that is:
    ``steps.update(grads, state, params, communicate=state.mini_step == every - 1)``.

    Args:
      axis_name: a mapped axis name, a tuple of them, or a Group.
      op: as for ``sync_gradients``.
      algorithm: as for ``sync_gradients``.
      topology: as for ``sync_gradients``.
      accumulate_dtype: as for ``sync_gradients``.
      bucket_bytes: as for ``sync_gradients``.
      in_flight: as for ``sync_gradients``.
      skip_nonfinite: as for ``sync_gradients``; the state counts the skipped steps.

    Returns:
      An ``optax.GradientTransformationExtraArgs``; its state is empty, or a ``SynchronizedState`` with skip_nonfinite.

    Raises:
      ArgumentError: op is neither ``"mean"`` nor ``"sum"``.
      UnsupportedError: optax is not installed.

    Source: hccljax.
    """
    checked_op(op)
    optax = import_optax("hccljax.synchronized")
    options: dict[str, Any] = {
        "algorithm": algorithm,
        "topology": topology,
        "accumulate_dtype": accumulate_dtype,
        "bucket_bytes": bucket_bytes,
        "in_flight": in_flight,
        "skip_nonfinite": skip_nonfinite,
    }

    def init(params: Any) -> Any:
        return SynchronizedState(jnp.zeros((), jnp.int32)) if skip_nonfinite else optax.EmptyState()

    def reduced(updates: Any) -> Any:
        return sync_gradients(updates, axis_name, op, **options)

    def nothing(updates: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(reduced, updates))

    def update(updates: Any, state: Any, params: Any = None, *, communicate: Any = True, **_: Any) -> tuple[Any, Any]:
        if isinstance(communicate, bool):
            out = reduced(updates) if communicate else nothing(updates)
        else:
            out = jax.lax.cond(communicate, reduced, nothing, updates)
        if not skip_nonfinite:
            return out, state
        updates, skipped = out
        return updates, SynchronizedState(state.skipped + skipped)

    return optax.GradientTransformationExtraArgs(init, update)


def import_optax(name: str) -> Any:
    """The module optax, for what name makes of it."""
    try:
        import optax  # optional, and most of a second to import
    except ImportError:
        raise UnsupportedError(
            f"{name} makes an optax transformation, and optax is not installed; expected it: "
            f"pip install 'hccljax[training]', or call hccljax.sync_gradients before your optimiser"
        ) from None
    return optax
