"""Tensor parallelism: a linear layer whose weights are spread over the ranks of an axis.

A pair of layers needs one all_reduce forward and one backward: the first has its weights cut into columns, what is
between them works on each rank's own features, and the second has its weights cut into rows. With ``sequence_axis`` the
activations outside the pair are spread too, along the sequence: an all_gather and a reduce_scatter take the place of
each all_reduce, and what is between the pairs (norms, dropout, residuals) works on 1/p of the sequence.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hccljax.algorithm import Algorithm
from hccljax.collectives import all_gather, reduce_scatter
from hccljax.errors import ArgumentError
from hccljax.group import AxisName, Group
from hccljax.topology import Topology
from hccljax.training.regions import copy_to, gather_from, reduce_from


def column_parallel(
    x: jax.Array,
    w: jax.Array,
    axis_name: AxisName | Group,
    *,
    bias: jax.Array | None = None,
    gather_output: bool = False,
    sequence_axis: int | None = None,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> jax.Array:
    """x @ w + bias for this rank's columns of w: the features that leave are spread over the ranks.

    Args:
      x: [..., features], the same on every rank; with sequence_axis this rank's part of the sequence.
      w: [features, outputs / p], this rank's columns.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      bias: [outputs / p], this rank's part, or None.
      gather_output: True gives every rank all outputs.
      sequence_axis: the dimension of x that is spread over the ranks; None if none is.
      algorithm: as for ``hccljax.all_reduce``; it carries the gradient of x.
      topology: as for ``hccljax.all_reduce``.

    Returns:
      [..., outputs / p], this rank's features, or [..., outputs] on every rank with gather_output.

    Raises:
      ArgumentError: shapes do not fit, x differs from rank to rank, or algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: Megatron-LM (Shoeybi et al. 2019); with sequence_axis Korthikanti et al. 2022.
    """
    x, w = _checked(x, w, "x and this rank's columns of w")
    by: Any = {"algorithm": algorithm, "topology": topology}
    if sequence_axis is None:
        x = copy_to(x, axis_name, **by)
    else:
        x = all_gather(x, axis_name, axis=_sequence(sequence_axis, x), tiled=True, **by)
    out = _with_bias(jnp.matmul(x, w), bias)
    return gather_from(out, axis_name, **by) if gather_output else out


def row_parallel(
    x: jax.Array,
    w: jax.Array,
    axis_name: AxisName | Group,
    *,
    bias: jax.Array | None = None,
    sequence_axis: int | None = None,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> jax.Array:
    """x @ w + bias for this rank's features of x and rows of w, summed over the ranks; the bias is added once.

    Args:
      x: [..., features / p], this rank's features, as ``column_parallel`` leaves them.
      w: [features / p, outputs], this rank's rows.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      bias: [outputs], the same on every rank, or None.
      sequence_axis: the dimension of the result that is spread over the ranks; None gives every rank all of it.
      algorithm: as for ``hccljax.all_reduce``.
      topology: as for ``hccljax.all_reduce``.

    Returns:
      [..., outputs] on every rank; with sequence_axis this rank's part of the sequence.

    Raises:
      ArgumentError: shapes do not fit, p does not divide the sequence, or algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: Megatron-LM (Shoeybi et al. 2019); with sequence_axis Korthikanti et al. 2022.
    """
    x, w = _checked(x, w, "this rank's features of x and rows of w")
    by: Any = {"algorithm": algorithm, "topology": topology}
    out = jnp.matmul(x, w)
    if sequence_axis is None:
        return _with_bias(reduce_from(out, axis_name, **by), bias)
    out = reduce_scatter(out, axis_name, scatter_dimension=_sequence(sequence_axis, out), tiled=True, **by)
    # Every rank adds the bias to its own part of the sequence, so the parts of its gradient are to be summed.
    return _with_bias(out, None if bias is None else copy_to(bias, axis_name, **by))


def _with_bias(x: jax.Array, bias: jax.Array | None) -> jax.Array:
    if bias is None:
        return x
    bias = jnp.asarray(bias)
    if bias.shape != x.shape[-1:]:
        raise ArgumentError(
            f"bias of shape {list(bias.shape)}: expected [{x.shape[-1]}], the outputs of this layer here"
        )
    return x + bias.reshape((1,) * (x.ndim - 1) + bias.shape)


def _checked(x: jax.Array, w: jax.Array, what: str) -> tuple[jax.Array, jax.Array]:
    """Both as arrays; an ArgumentError for shapes that do not multiply."""
    x, w = jnp.asarray(x), jnp.asarray(w)
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ArgumentError(
            f"{what}, of shapes {list(x.shape)} and {list(w.shape)}: expected [..., features] and "
            f"[features, outputs], with the same number of features on this rank"
        )
    return x, w


def _sequence(axis: int, x: jax.Array) -> int:
    """sequence_axis as a position of x that is not its last, the features."""
    if (
        isinstance(axis, bool)
        or not isinstance(axis, int)
        or not -x.ndim <= axis < x.ndim
        or axis % x.ndim == x.ndim - 1
    ):
        raise ArgumentError(
            f"sequence_axis={axis!r} for an array of shape {list(x.shape)}: expected one of its dimensions before the "
            f"last, which holds the features"
        )
    return axis % x.ndim
