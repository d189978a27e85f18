"""all_gather_v and reduce_scatter_v: blocks of a size for each rank, known while JAX traces and equal on all ranks.

The blocks travel as long as the longest of them, through the kernels of all_gather and reduce_scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import jax
from jax import lax

from hccljax.algorithm import Algorithm
from hccljax.collectives.classes import one_size
from hccljax.collectives.counts import checked_counts
from hccljax.collectives.leaf import canonical_axis, map_leaves, moving
from hccljax.collectives.movement import checked_to, gathered
from hccljax.collectives.prepare import request
from hccljax.collectives.reductions import scattered
from hccljax.errors import ArgumentError, shown
from hccljax.group import AxisName, Group
from hccljax.shapes import Arrays
from hccljax.topology import Topology


def all_gather_v(
    x: Arrays,
    axis_name: AxisName | Group,
    counts: Sequence[int],
    *,
    axis: int = 0,
    to: str = "varying",
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> Any:
    """Joins the first counts[r] entries of every rank r along a dimension, and gives every rank the result.

    The wire carries ``max(counts)`` entries of every rank, so it costs what ``all_gather`` of such blocks costs.

    Args:
      x: array(s) of any dtype, PRNG keys included, with room for max(counts) entries or more along axis. One program
        runs on all ranks, so the shape is the same on all; what is behind a rank's count is not sent on.
      axis_name: a mapped axis name, a tuple of them (numbered in the order given), or a Group, whose communicators all
        use the same counts.
      counts: entries along axis that each rank contributes, p static ints, the same on all ranks (as HCCL demands).
      axis: the dimension along which the entries are joined.
      to: ``"varying"``, or ``"invarying"`` for a result typed as replicated (``out_specs=P()``).
      algorithm: as for ``all_gather``.
      topology: as for ``all_gather``.

    Returns:
      Array(s) whose dimension axis has size sum(counts): rank 0's entries, then rank 1's, ….

    Raises:
      ArgumentError: counts are not p static ints of 0 or more, x has no room for them, or an argument is unknown
        (EI0003).
      AxisError: the axis is not mapped here.

    Source: HCCL's AllGatherV.

    >>> rows = jnp.array([[1, 2], [3, 0]])
    >>> jax.vmap(lambda x: hccljax.all_gather_v(x, "rank", (2, 1)), axis_name="rank", out_axes=None)(rows)
    Array([1, 2, 3], dtype=int32)
    """
    this = checked_to(to, one_size(request(axis_name, algorithm, topology, "_v"), "all_gather_v"))
    counts = checked_counts(counts, this.group.size)
    most = max(counts)

    def leaf(x: jax.Array) -> jax.Array:
        position = canonical_axis(axis, x.ndim, "axis")
        if x.shape[position] < most:
            raise ArgumentError(
                f"all_gather_v: dimension {position} has size {x.shape[position]}, but counts={shown(counts)} send up "
                f"to {most} entries; expected a size of {most} or more on every rank (pad the array)"
            )
        return moving(lambda x: joined(x, position))(x)

    def joined(x: jax.Array, position: int) -> jax.Array:
        block = lax.slice_in_dim(x, 0, most, axis=position)
        if min(counts) == most:
            return gathered(block, this, position, True, to)
        blocks = gathered(block, this, 0, False, to)
        pieces = [lax.index_in_dim(blocks, r, 0, keepdims=False) for r in range(len(counts))]
        cut = [lax.slice_in_dim(piece, 0, count, axis=position) for piece, count in zip(pieces, counts, strict=True)]
        return lax.concatenate(cut, position)

    return map_leaves(leaf, x)


def reduce_scatter_v(
    x: Arrays,
    axis_name: AxisName | Group,
    counts: Sequence[int],
    op: str = "sum",
    *,
    scatter_dimension: int = 0,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
) -> Any:
    """Reduces x over the ranks and gives rank r its block of counts[r] entries.

    The wire carries blocks of ``max(counts)`` entries, so it costs what ``reduce_scatter`` of p such blocks costs.

    Args:
      x: array(s) whose dimension scatter_dimension has size sum(counts): block 0, then block 1, ….
      axis_name: a mapped axis name, a tuple of them (numbered in the order given), or a Group, whose communicators all
        use the same counts.
      counts: entries of each block, p static ints, the same on all ranks (as HCCL demands).
      op: as for ``all_reduce``.
      scatter_dimension: the dimension that is cut into blocks.
      algorithm: as for ``all_reduce``.
      topology: as for ``all_reduce``.
      accumulate_dtype: as for ``all_reduce``.

    Returns:
      Array(s) whose dimension scatter_dimension has size max(counts) on every rank, since one program runs on all: the
      first counts[r] entries are rank r's block of the reduction, the others are zeros.

    Raises:
      ArgumentError: counts are not p static ints of 0 or more or do not add up to the dimension, or an argument is
        unknown (EI0003).
      AxisError, DtypeError, DerivativeError: as for ``all_reduce``.

    Source: HCCL's ReduceScatterV.

    >>> rows = jnp.array([[1, 2, 3], [10, 20, 30]])
    >>> jax.vmap(lambda x: hccljax.reduce_scatter_v(x, "rank", (2, 1)), axis_name="rank")(rows)
    Array([[11, 22],
           [33,  0]], dtype=int32)
    """
    this = one_size(request(axis_name, algorithm, topology, "_v"), "reduce_scatter_v")
    counts = checked_counts(counts, this.group.size)
    most, starts = max(counts), (0, *accumulate(counts))

    def leaf(x: jax.Array) -> jax.Array:
        dimension = canonical_axis(scatter_dimension, x.ndim, "scatter_dimension")
        if x.shape[dimension] != starts[-1]:
            raise ArgumentError(
                f"reduce_scatter_v: dimension {dimension} has size {x.shape[dimension]}, but counts={shown(counts)} "
                f"add up to {starts[-1]}; expected a size of {starts[-1]}"
            )
        if min(counts) == most:
            return scattered(x, this, op, dimension, True, accumulate_dtype)
        blocks = [padded(lax.slice_in_dim(x, starts[r], starts[r + 1], axis=dimension), dimension) for r in range(p)]
        return scattered(lax.concatenate(blocks, 0), this, op, 0, False, accumulate_dtype)

    def padded(block: jax.Array, dimension: int) -> jax.Array:
        behind = [(0, most - block.shape[i] if i == dimension else 0, 0) for i in range(block.ndim)]
        return lax.expand_dims(lax.pad(block, lax.full_like(block, 0, shape=()), behind), (0,))

    p = len(counts)
    return map_leaves(leaf, x)
