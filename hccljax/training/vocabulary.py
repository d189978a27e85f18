"""The ends of a tensor-parallel language model: an embedding and a loss whose vocabulary is spread over the ranks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm import Algorithm
from hccljax.collectives import all_reduce
from hccljax.errors import ArgumentError
from hccljax.group import AxisName, Group, as_group
from hccljax.primitives.replication import vary
from hccljax.topology import Topology
from hccljax.training.regions import reduce_from


def embedding_parallel(
    ids: jax.Array,
    table: jax.Array,
    axis_name: AxisName | Group,
    *,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> jax.Array:
    """The rows of a table for ids, where each rank holds vocabulary / p rows.

    Args:
      ids: integers of any shape, the same on every rank; an id outside of the vocabulary gives zeros.
      table: [vocabulary / p, features], this rank's rows.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      algorithm: as for ``hccljax.all_reduce``.
      topology: as for ``hccljax.all_reduce``.

    Returns:
      [..., features] on every rank.

    Raises:
      ArgumentError: ids are no integers, table has not two dimensions, or algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: Megatron-LM (Shoeybi et al. 2019).
    """
    if jnp.ndim(table) != 2:
        raise ArgumentError(f"table of shape {list(jnp.shape(table))}: expected [vocabulary / p, features]")
    own, here = _own(ids, table.shape[0], as_group(axis_name))
    rows = jnp.where(here[..., None], jnp.take(table, own, axis=0, mode="clip"), jnp.zeros((), table.dtype))
    return reduce_from(rows, axis_name, algorithm=algorithm, topology=topology)


def cross_entropy_parallel(
    logits: jax.Array,
    labels: jax.Array,
    axis_name: AxisName | Group,
    *,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> jax.Array:
    """-log softmax(logits)[label], where each rank holds the logits of vocabulary / p words.

    The ranks exchange three numbers for each label (the largest logit, the sum, the label's logit), not the logits.

    Args:
      logits: [..., vocabulary / p], this rank's part, as ``column_parallel`` leaves it.
      labels: [...] integers, the same on every rank, in range(vocabulary).
      axis_name: a mapped axis name, a tuple of them, or a Group.
      algorithm: as for ``hccljax.all_reduce``.
      topology: as for ``hccljax.all_reduce``.

    Returns:
      [...] losses, on every rank; the mean is the caller's.

    Raises:
      ArgumentError: labels are no integers or do not fit the logits, or algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: Megatron-LM (Shoeybi et al. 2019).
    """
    if jnp.ndim(logits) < 1 or jnp.shape(labels) != logits.shape[:-1]:
        raise ArgumentError(
            f"labels of shape {list(jnp.shape(labels))} for logits of shape {list(jnp.shape(logits))}: expected the "
            f"shape of the logits without their last dimension"
        )
    by: Any = {"algorithm": algorithm, "topology": topology}
    own, here = _own(labels, logits.shape[-1], as_group(axis_name))
    largest = all_reduce(lax.stop_gradient(logits).max(-1), axis_name, "max", **by)
    shifted = logits - largest[..., None]
    label = jnp.where(here, jnp.take_along_axis(shifted, own[..., None], -1)[..., 0], jnp.zeros((), logits.dtype))
    total, label = reduce_from((jnp.exp(shifted).sum(-1), label), axis_name, **by)
    return jnp.log(total) - label


def _own(ids: jax.Array, size: int, group: Group) -> tuple[jax.Array, jax.Array]:
    """(ids as indices of this rank's part of size entries, which of them are here)."""
    ids = jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ArgumentError(f"ids of dtype {ids.dtype}: expected integers")
    ids = vary(ids, group.axes)
    own = ids - jnp.asarray(group.rank * size, ids.dtype)
    here = (own >= 0) & (own < size)
    return jnp.where(here, own, jnp.zeros((), own.dtype)), here
