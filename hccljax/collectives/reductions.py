"""all_reduce, reduce_scatter and reduce: the collectives that combine the ranks' arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from hccljax.algorithm import Algorithm, registered
from hccljax.algorithm.accumulating import accumulating
from hccljax.algorithm.native import native, psum_scatter
from hccljax.collectives.leaf import canonical_axis, checked_root, map_leaves, to_blocks
from hccljax.collectives.prepare import Request, request, warn_if_invariant
from hccljax.collectives.typed import Run, extremum, linear, product
from hccljax.errors import DtypeError, shown
from hccljax.group import AxisName, Group
from hccljax.reduction import reducible, reduction
from hccljax.shapes import Arrays
from hccljax.topology import Topology


def all_reduce(
    x: Arrays,
    axis_name: AxisName | Group,
    op: str = "sum",
    *,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
) -> Any:
    """Reduces x over the ranks and gives every rank the result, as ``jax.lax.psum``, ``pmean``, ``pmax`` and ``pmin``.

    Runs inside ``jax.shard_map`` or ``jax.vmap(axis_name=…)``. Every leaf of a pytree is reduced on its own.

    Args:
      x: array(s) of any shape and dtype that op has a meaning for; bool is summed as int32.
      axis_name: a mapped axis name, a tuple of them (numbered in the order given), or a Group.
      op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"`` or ``"mean"`` (integers give floats).
      algorithm: a name of ``hccljax.algorithms()``, an HCCL_ALGO text such as ``"level0:ring;level1:tree"``, or an
        Algorithm; None leaves it to HCCL_ALGO and the default policy. ``hccljax.explain`` says what runs.
      topology: the tiers for a hierarchy, such as ``"4x8"`` for 4 servers of 8 ranks.
      accumulate_dtype: add in this wider dtype and round once to x's dtype; the wire carries x's dtype.

    Returns:
      Array(s) of x's shape, typed as replicated over the axis (``out_specs=P()``) unless the Group is partitioned.

    Raises:
      ArgumentError: an unknown op, algorithm or topology (EI0003).
      AxisError: the axis is not mapped here.
      DtypeError: op has no meaning for x's dtype.
      DerivativeError: a derivative of max or min.

    Source: HCCL's AllReduce; its algorithms are in ``hccljax.algorithm``.

    >>> jax.vmap(lambda x: hccljax.all_reduce(x, "rank"), axis_name="rank")(jnp.arange(4.0))
    Array([6., 6., 6., 6.], dtype=float32)
    """
    this = request(axis_name, algorithm, topology)

    def leaf(x: jax.Array) -> jax.Array:
        x = reducible(x, op)
        warn_if_invariant(x, this.group, op)
        run = this.run("all_reduce", x, op)
        if run.algorithm is native and accumulate_dtype is None:
            return _mean(native.all_reduce(x, run.group, run.op), op, run.group)  # type: ignore[misc]
        return _typed(x, run, op, accumulate_dtype, this)

    return map_leaves(leaf, x)


def reduce_scatter(
    x: Arrays,
    axis_name: AxisName | Group,
    op: str = "sum",
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
) -> Any:
    """Reduces x over the ranks and leaves block r of the result on rank r, as ``jax.lax.psum_scatter``.

    Args:
      x: array(s) whose dimension scatter_dimension has size p (untiled), or a multiple of p (tiled).
      axis_name: a mapped axis name, a tuple of them, or a Group.
      op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"`` or ``"mean"``.
      scatter_dimension: the dimension that is cut into p blocks.
      tiled: True keeps the dimension, p times shorter; False removes it.
      algorithm: as for ``all_reduce``.
      topology: as for ``all_reduce``.
      accumulate_dtype: as for ``all_reduce``.

    Returns:
      Array(s) with block r of the reduction on rank r.

    Raises:
      ArgumentError: the dimension is not divisible, or an argument is unknown (EI0003).
      AxisError, DtypeError, DerivativeError: as for ``all_reduce``.

    Source: HCCL's ReduceScatter.

    >>> jax.vmap(lambda x: hccljax.reduce_scatter(x, "rank"), axis_name="rank")(jnp.arange(4.0).reshape(2, 2))
    Array([2., 4.], dtype=float32)
    """
    this = request(axis_name, algorithm, topology)

    def leaf(x: jax.Array) -> jax.Array:
        x = reducible(x, op)
        dimension = canonical_axis(scatter_dimension, x.ndim, "scatter_dimension")
        blocks = to_blocks(x, dimension, this.group.size, tiled, "reduce_scatter")
        run = this.run("reduce_scatter", x, op)
        if run.algorithm is native and accumulate_dtype is None:
            return _mean(psum_scatter(x, run.group, reduction(op), dimension, tiled), op, run.group)
        return _typed(blocks, run, op, accumulate_dtype, this)

    return map_leaves(leaf, x)


def reduce(
    x: Arrays,
    axis_name: AxisName | Group,
    op: str = "sum",
    root: int = 0,
    *,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
) -> Any:
    """Reduces x over the ranks onto one rank; the others get zeros.

    Args:
      x: array(s) of any shape.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"`` or ``"mean"``.
      root: the rank that gets the result, a static int.
      algorithm: as for ``all_reduce``.
      topology: as for ``all_reduce``.
      accumulate_dtype: as for ``all_reduce``.

    Returns:
      Array(s) of x's shape: the reduction on the root, zeros elsewhere.

    Raises:
      ArgumentError: root is not a rank, or an argument is unknown (EI0003).
      AxisError, DtypeError, DerivativeError: as for ``all_reduce``.

    Source: HCCL's Reduce.

    >>> jax.vmap(lambda x: hccljax.reduce(x, "rank", root=1), axis_name="rank")(jnp.arange(4.0))
    Array([0., 6., 0., 0.], dtype=float32)
    """
    this = request(axis_name, algorithm, topology)
    root = checked_root(root, this.group)

    def leaf(x: jax.Array) -> jax.Array:
        x = reducible(x, op)
        return _typed(x, this.run("reduce", x, op, root), op, accumulate_dtype, this)

    return map_leaves(leaf, x)


def _typed(x: jax.Array, run: Run, op: str, accumulate_dtype: Any, this: Request) -> jax.Array:
    """The typed result of one leaf, for every op."""
    wide = None if accumulate_dtype is None else _wider(accumulate_dtype, x)
    if op in ("max", "min"):
        return extremum(x, run)
    if wide is not None:
        divides = op == "mean" and not jnp.issubdtype(x.dtype, jnp.integer)
        run = replace(run, algorithm=accumulating(run.algorithm, wide, divides))
        op = "sum" if divides else op
    if op == "prod":
        spread = replace(run, operator="all_gather", op=None, algorithm=_able(run.algorithm, "all_gather"))
        return product(x, run, spread, replace(run, op=reduction("sum")))
    return _mean(linear(x, run), op, run.group)


def _able(algorithm: Algorithm, operator: str) -> Algorithm:
    return algorithm if algorithm.supports(operator) else registered("ring")


def _mean(total: jax.Array, op: str, group: Group) -> jax.Array:
    return total / group.size if op == "mean" else total


def _wider(dtype: Any, x: jax.Array) -> str:
    """accumulate_dtype by name, once it is known to hold every value of x's dtype."""
    try:
        wide = jnp.dtype(dtype)
    except TypeError:
        raise DtypeError(f"accumulate_dtype={shown(dtype)}: expected a dtype, such as jnp.float32") from None
    kinds = [jnp.issubdtype(dtype, jnp.integer) for dtype in (wide, x.dtype)]
    if jnp.promote_types(wide, x.dtype) != wide or kinds[0] != kinds[1]:
        raise DtypeError(
            f"accumulate_dtype={wide} does not hold every {x.dtype}; expected {x.dtype} or a wider dtype of its kind"
        )
    return wide.name
