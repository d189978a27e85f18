"""all_reduce, reduce_scatter and reduce: the collectives that combine the ranks' arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from hccljax.algorithm import Algorithm
from hccljax.algorithm.native import native, psum_scatter
from hccljax.collectives.classes import by_class, one_size
from hccljax.collectives.leaf import canonical_axis, checked_root, map_leaves, to_blocks
from hccljax.collectives.prepare import Request, request, warn_if_invariant
from hccljax.collectives.typed import Run, extremum, linear, product
from hccljax.group import AxisName, Group
from hccljax.reduction import MEAN, accumulated_in, reducible, reduction
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
      topology: the tiers for a hierarchy, such as ``"4x8"`` for 4 servers of 8 ranks, or ``"5+3"`` for unequal servers.
      accumulate_dtype: add in this wider dtype and round once to x's dtype. The wire carries x's dtype: a mesh exchange
        brings every contribution to the owner of its block, and ``algorithm`` gathers the sums. Gradients are added so
        too, except under ``vmap`` over the axis, where JAX itself adds the cotangents of the one result in x's dtype.

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
    return reduced(x, axis_name, op, algorithm, topology, accumulate_dtype)


def reduced(
    x: Arrays,
    axis_name: AxisName | Group,
    op: str,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
    *,
    warns: bool = True,
) -> Any:
    """all_reduce; warns=False says nothing about an operand that is the same everywhere."""
    this = request(axis_name, algorithm, topology)

    def leaf(x: jax.Array) -> jax.Array:
        x = reducible(x, op)
        if warns:
            warn_if_invariant(x, this.group, op)
        wide = accumulated_in(accumulate_dtype, x, op)

        def of_one_size(x: jax.Array, this: Request) -> jax.Array:
            run = this.run("all_reduce", x, op, accumulate_dtype=wide)
            if run.algorithm is native:
                return _mean(native.all_reduce(x, run.group, run.op), op, run)  # type: ignore[misc]
            return _typed(x, run, op, wide)

        return by_class(of_one_size, x, this)

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
    this = one_size(request(axis_name, algorithm, topology), "reduce_scatter")

    def leaf(x: jax.Array) -> jax.Array:
        dimension = canonical_axis(scatter_dimension, x.ndim, "scatter_dimension")
        return scattered(x, this, op, dimension, tiled, accumulate_dtype)

    return map_leaves(leaf, x)


def scattered(x: jax.Array, this: Request, op: str, dimension: int, tiled: bool, accumulate_dtype: Any) -> jax.Array:
    """This rank's block of one array's reduction; the blocks lie along a dimension."""
    x = reducible(x, op)
    blocks = to_blocks(x, dimension, this.group.size, tiled, "reduce_scatter")
    wide = accumulated_in(accumulate_dtype, x, op)
    run = this.run("reduce_scatter", x, op, accumulate_dtype=wide)
    if run.algorithm is native:
        return _mean(psum_scatter(x, run.group, reduction(op), dimension, tiled), op, run)
    return _typed(blocks, run, op, wide)


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
      root: the rank that gets the result, a static int; it has to exist in every communicator of a Group.
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
        wide = accumulated_in(accumulate_dtype, x, op)

        def of_one_size(x: jax.Array, this: Request) -> jax.Array:
            return _typed(x, this.run("reduce", x, op, root, accumulate_dtype=wide), op, wide)

        return by_class(of_one_size, x, this)

    return map_leaves(leaf, x)


def _typed(x: jax.Array, run: Run, op: str, dtype: str | None) -> jax.Array:
    """The typed result of one leaf, for every op."""
    if op in ("max", "min"):
        return extremum(x, run)
    if op == "prod":
        spread = replace(run, operator="all_gather", op=None)
        return product(x, run, spread, replace(run, op=reduction("sum")), dtype)
    return _mean(linear(x, run), op, run)


def _mean(total: jax.Array, op: str, run: Run) -> jax.Array:
    """The total of all ranks as op wants it, unless the owner of each block has divided it already."""
    return total / run.group.size if op == "mean" and run.op is not MEAN else total
