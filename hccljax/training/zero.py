"""ZeRO: each rank keeps 1/p of what data-parallel ranks would all keep whole.

    stage 1   the optimiser's state             ``zero(optimiser, axis, stage=1)``
    stage 2   and the reduced gradients         ``zero(optimiser, axis)``
    stage 3   and the parameters                ``sharded_value_and_grad(loss, layout, axis)`` (FSDP)

Source: Rajbhandari et al. 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from hccljax.algorithm import Algorithm
from hccljax.algorithm.blocks import block_at
from hccljax.collectives import all_gather, all_reduce, reduce_scatter
from hccljax.collectives.prepare import warn_if_invariant
from hccljax.errors import ArgumentError
from hccljax.group import AxisName, Group, as_group
from hccljax.topology import Topology
from hccljax.training.flat import FlatLayout
from hccljax.training.gradients import as_varying
from hccljax.training.sync import checked_op

Shards = tuple[jax.Array, ...]
Choice = str | Algorithm | None
Tiers = str | Topology | None


def shard_parameters(params: Any, layout: FlatLayout, axis_name: AxisName | Group) -> Shards:
    """This rank's part of parameters that are the same on every rank; nothing is sent.

    Args:
      params: array(s) of the layout.
      layout: of ``flat_layout(params, p)``.
      axis_name: a mapped axis name, a tuple of them, or a Group.

    Returns:
      One array [elements / p] for each bucket. Outside of mapped code, ``layout.flatten(params)`` has the shards of
      all ranks one after the other, to be placed with ``PartitionSpec(axis_name)``.

    Raises:
      ArgumentError: params or the number of ranks are not the layout's.
      AxisError: the axis is not mapped here.

    Source: Rajbhandari et al. 2020.
    """
    group = _group(layout, axis_name)
    flat = as_varying(layout.flatten(as_varying(params, axis_name)), axis_name)
    return tuple(block_at(x.reshape(group.size, -1), group.rank) for x in flat)


def gather_parameters(
    shards: Shards,
    layout: FlatLayout,
    axis_name: AxisName | Group,
    *,
    algorithm: Choice = None,
    topology: Tiers = None,
) -> Any:
    """The whole parameters from the shards of all ranks: one all_gather for each bucket.

    Its transpose is a reduce_scatter by the same algorithm: gradients with respect to the shards are the sums over the
    ranks, this rank's part of them. Under ``jax.checkpoint`` the backward pass gathers again and keeps only shards.

    Args:
      shards: of this rank, one array for each bucket of the layout.
      layout: of ``flat_layout``.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      algorithm: as for ``hccljax.all_gather``.
      topology: as for ``hccljax.all_gather``.

    Returns:
      The pytree of the layout, typed as varying over the axis.

    Raises:
      ArgumentError: shards or the number of ranks are not the layout's, or algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: Rajbhandari et al. 2020.
    """
    _group(layout, axis_name)
    layout.check_shards(shards)
    by: Any = {"algorithm": algorithm, "topology": topology}
    return layout.unflatten(tuple(all_gather(x, axis_name, tiled=True, **by) for x in shards))


def scatter_gradients(
    grads: Any,
    layout: FlatLayout,
    axis_name: AxisName | Group,
    op: str = "mean",
    *,
    algorithm: Choice = None,
    topology: Tiers = None,
    accumulate_dtype: Any = None,
) -> Shards:
    """The gradients reduced over the ranks, this rank's part of them: one reduce_scatter for each bucket.

    Args:
      grads: this rank's gradients, array(s) of the layout.
      layout: of ``flat_layout``.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      op: ``"mean"`` or ``"sum"`` over the ranks.
      algorithm: as for ``hccljax.reduce_scatter``.
      topology: as for ``hccljax.reduce_scatter``.
      accumulate_dtype: as for ``hccljax.reduce_scatter``.

    Returns:
      One array [elements / p] for each bucket.

    Raises:
      ArgumentError: grads or the number of ranks are not the layout's, or an argument is unknown.
      AxisError: the axis is not mapped here.

    Source: Rajbhandari et al. 2020.
    """
    checked_op(op)
    group = _group(layout, axis_name)
    for leaf in jax.tree.leaves(grads):
        warn_if_invariant(jnp.asarray(leaf), group, op)
    by: Any = {"algorithm": algorithm, "topology": topology, "accumulate_dtype": accumulate_dtype}
    flat = layout.flatten(as_varying(grads, axis_name))
    return tuple(reduce_scatter(x, axis_name, op, tiled=True, **by) for x in flat)


def sharded_value_and_grad(
    fun: Callable[..., Any],
    layout: FlatLayout,
    axis_name: AxisName | Group,
    *,
    has_aux: bool = False,
    op: str = "mean",
    algorithm: Choice = None,
    topology: Tiers = None,
) -> Callable[..., Any]:
    """``jax.value_and_grad`` of a loss of whole parameters, for parameters that are kept in shards (ZeRO-3).

    To gather only one layer at a time, give each its own layout, and call ``gather_parameters`` inside
    ``jax.checkpoint`` where the layer begins; gradients are then sums over the ranks.

    Args:
      fun: (params, *local data) → the scalar loss of this rank's data, or (loss, aux) with has_aux.
      layout: of ``flat_layout(params, p)``.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      has_aux: fun returns (loss, aux); aux is passed through as it is on this rank.
      op: ``"mean"`` or ``"sum"`` over the ranks.
      algorithm: as for ``hccljax.all_reduce``.
      topology: as for ``hccljax.all_reduce``.

    Returns:
      A function of (shards, *local data) → (value, gradients of the shards), or ((value, aux), gradients).

    Raises:
      ArgumentError: op is neither, or shards are not the layout's.

    Source: Rajbhandari et al. 2020.
    """
    checked_op(op)
    by: Any = {"algorithm": algorithm, "topology": topology}

    @wraps(fun)
    def reduced(shards: Shards, *args: Any, **kwargs: Any) -> Any:
        def loss(shards: Shards) -> Any:
            return fun(gather_parameters(shards, layout, axis_name, **by), *args, **kwargs)

        value, grads = jax.value_and_grad(loss, has_aux=has_aux)(as_varying(tuple(shards), axis_name))
        value, aux = value if has_aux else (value, None)
        value = all_reduce(as_varying(value, axis_name), axis_name, op, **by)
        if op == "mean":
            grads = jax.tree.map(lambda g: g / layout.ranks, grads)
        return ((value, aux) if has_aux else value), grads

    return reduced


def global_norm(
    shards: Any, axis_name: AxisName | Group, *, algorithm: Choice = None, topology: Tiers = None
) -> jax.Array:
    """The Euclidean norm of all shards of all ranks together, such as clipping needs: scalar, on every rank.

    Args:
      shards: array(s) of this rank.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      algorithm: as for ``hccljax.all_reduce``.
      topology: as for ``hccljax.all_reduce``.

    Raises:
      AxisError: the axis is not mapped here.

    Source: ``optax.global_norm``, over the ranks.
    """
    squares = [jnp.sum(jnp.real(x * jnp.conj(x))) for x in map(jnp.asarray, jax.tree.leaves(shards))]
    own = as_varying(sum(squares, jnp.float32(0)), axis_name)
    return jnp.sqrt(all_reduce(own, axis_name, algorithm=algorithm, topology=topology))


def shard_specs(tree: Any, axis_name: AxisName) -> Any:
    """PartitionSpecs for shards, and for the state of an optimiser of shards: numbers are the same on every rank.

    Args:
      tree: array(s) or ShapeDtypeStructs, such as ``layout.shards`` or ``jax.eval_shape(optimiser.init, params)``.
      axis_name: the mesh axis, or a tuple of them.

    Returns:
      The tree with ``PartitionSpec()`` for 0-d leaves, ``PartitionSpec(axis_name)`` for the others.

    Source: hccljax.
    """
    return jax.tree.map(lambda x: PartitionSpec(axis_name) if jnp.ndim(x) else PartitionSpec(), tree)


def _group(layout: FlatLayout, axis_name: AxisName | Group) -> Group:
    group = as_group(axis_name)
    group.resolved  # noqa: B018  (raises for an unmapped axis)
    if group.size != layout.ranks:
        raise ArgumentError(
            f"a layout for {layout.ranks} ranks on axis {group.axis_name!r} of {group.size}: expected "
            f"flat_layout(params, {group.size})"
        )
    return group
