"""An optax optimiser whose state is spread over the ranks: ZeRO-1 and ZeRO-2."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hccljax.algorithm import Algorithm
from hccljax.collectives import all_gather
from hccljax.errors import ArgumentError, shown
from hccljax.group import AxisName, Group, as_group
from hccljax.topology import Topology
from hccljax.training.flat import FlatLayout, flat_layout
from hccljax.training.optimiser import import_optax
from hccljax.training.sync import checked_op, sync_gradients
from hccljax.training.zero import scatter_gradients, shard_parameters


def zero(
    inner: Any,
    axis_name: AxisName | Group,
    op: str = "mean",
    *,
    stage: int = 2,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
    bucket_bytes: int | None = None,
) -> Any:
    """An optax optimiser that keeps 1/p of its state on each rank, and reduces the gradients too.

    ``zero(optax.adam(1e-3), "data")`` takes the gradients of this rank (of parameters that went through ``as_varying``)
    and gives updates of the whole parameters, the same on every rank. Each rank updates its own part: a reduce_scatter
    brings it the gradients, an all_gather spreads the updates, as many bytes as one all_reduce. ``init`` and ``update``
    both run inside mapped code; ``shard_specs`` has the specs of the state.

    The inner optimiser sees flat shards, so it has to treat every element alike: sgd, momentum, adam, adamw, lion. What
    looks at whole leaves or at the tree does not (adafactor, lamb, masks, ``clip_by_global_norm``): for the last,
    scale the gradients with ``global_norm`` before.

    Args:
      inner: an optax transformation.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      op: ``"mean"`` or ``"sum"`` of the gradients over the ranks.
      stage: 2 scatters the gradients; 1 gives every rank all of them by ``sync_gradients``, and shards only the state.
      algorithm: as for ``hccljax.all_reduce``.
      topology: as for ``hccljax.all_reduce``.
      accumulate_dtype: as for ``hccljax.all_reduce``.
      bucket_bytes: as for ``flat_layout``.

    Returns:
      An ``optax.GradientTransformationExtraArgs``.

    Raises:
      ArgumentError: stage or op is unknown; in ``update``, a state of another number of ranks, or gradients of other
        dtypes than the parameters.
      UnsupportedError: optax is not installed.

    Source: Rajbhandari et al. 2020.
    """
    checked_op(op)
    if stage not in (1, 2) or isinstance(stage, bool):
        raise ArgumentError(f"stage={shown(stage)}: expected 1 or 2; ZeRO-3 is sharded_value_and_grad")
    optax = import_optax("hccljax.training.zero")
    inner = optax.with_extra_args_support(inner)
    by: Any = {"algorithm": algorithm, "topology": topology}

    def layout_of(tree: Any) -> FlatLayout:
        return flat_layout(tree, as_group(axis_name).size, bucket_bytes=bucket_bytes)

    def init(params: Any) -> Any:
        return inner.init(shard_parameters(params, layout_of(params), axis_name))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        layout = layout_of(updates)
        _check_state(state, jax.eval_shape(inner.init, layout.shards), layout.ranks)
        own = None if params is None else shard_parameters(params, layout, axis_name)
        if stage == 2:
            shards = scatter_gradients(updates, layout, axis_name, op, accumulate_dtype=accumulate_dtype, **by)
        else:
            more: Any = {"accumulate_dtype": accumulate_dtype, "bucket_bytes": bucket_bytes}
            shards = shard_parameters(sync_gradients(updates, axis_name, op, **more, **by), layout, axis_name)
        shards, state = inner.update(shards, state, own, **extra)
        to = "invarying" if as_group(axis_name).is_whole else "varying"
        return layout.unflatten(tuple(all_gather(x, axis_name, tiled=True, to=to, **by) for x in shards)), state

    return optax.GradientTransformationExtraArgs(init, update)


def _check_state(state: Any, expected: Any, ranks: int) -> None:
    """Raises an ArgumentError for a state that another layout or another optimiser made."""
    found = jax.tree.map(jnp.shape, state), jax.tree.map(jnp.shape, expected)
    if found[0] != found[1]:
        raise ArgumentError(
            f"a state of shapes {shown(found[0])}: expected {shown(found[1])}, what init makes of these parameters on "
            f"{ranks} ranks"
        )
