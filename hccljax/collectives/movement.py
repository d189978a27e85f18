"""all_gather, broadcast, scatter, gather and all_to_all: the collectives that move arrays and change none."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from hccljax.algorithm import Algorithm
from hccljax.algorithm.native import by_xla, native
from hccljax.collectives.classes import by_class, one_size
from hccljax.collectives.leaf import canonical_axis, checked_root, from_blocks, map_leaves, moving, to_blocks
from hccljax.collectives.prepare import Request, request
from hccljax.collectives.typed import linear
from hccljax.errors import ArgumentError, shown
from hccljax.group import AxisName, Group
from hccljax.primitives.compat import checked_axes
from hccljax.shapes import Arrays
from hccljax.topology import Topology


def all_gather(
    x: Arrays,
    axis_name: AxisName | Group,
    *,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> Any:
    """Gives every rank the arrays of all ranks, in rank order, as ``jax.lax.all_gather``.

    Args:
      x: array(s) of any shape and dtype, PRNG keys included.
      axis_name: a mapped axis name, a tuple of them (numbered in the order given), or a Group.
      axis: where the ranks are stacked (untiled: a new dimension) or joined (tiled: an existing one).
      tiled: True joins along an existing dimension instead of adding one.
      to: ``"varying"``, or ``"invarying"`` for a result typed as replicated (``out_specs=P()``).
      algorithm: a name of ``hccljax.algorithms()``, an HCCL_ALGO text, or an Algorithm; None chooses.
      topology: the tiers for a hierarchy, such as ``"4x8"``.

    Returns:
      Array(s) with a dimension p at position axis, or with dimension axis p times longer.

    Raises:
      ArgumentError: axis is out of range, or an argument is unknown (EI0003).
      AxisError: the axis is not mapped here.

    Source: HCCL's AllGather.

    >>> jax.vmap(lambda x: hccljax.all_gather(x, "rank"), axis_name="rank", out_axes=None)(jnp.arange(3))
    Array([0, 1, 2], dtype=int32)
    """
    this = checked_to(to, one_size(request(axis_name, algorithm, topology), "all_gather"))

    def leaf(x: jax.Array) -> jax.Array:
        position = canonical_axis(axis, x.ndim if tiled else x.ndim + 1, "axis")
        return moving(lambda x: gathered(x, this, position, tiled, to))(x)

    return map_leaves(leaf, x)


def checked_to(to: str, this: Request) -> Request:
    """The request, once its result is known to have the replication type that ``to`` names."""
    if to not in ("varying", "invarying"):
        raise ArgumentError(f"to={shown(to)}: expected 'varying' or 'invarying'")
    if to == "invarying" and not this.group.is_whole:
        raise ArgumentError(
            "to='invarying' of a partitioned group: its communicators hold different arrays; use 'varying'"
        )
    return this


def gathered(x: jax.Array, this: Request, position: int, tiled: bool, to: str) -> jax.Array:
    """One array of all ranks, stacked as dimension position or (tiled) joined along it."""
    run = this.run("all_gather", x, factor=this.group.size)
    if run.algorithm is native:
        # Where nothing is checked there are no types to tell apart, and JAX 0.10.2 fails for "invarying" under vmap.
        to = to if checked_axes(run.group.axes) else "varying"
        return by_xla(lax.all_gather, x, run.group, axis=position, tiled=tiled, to=to)
    return from_blocks(linear(x, run, replicated=to == "invarying"), position, tiled)


def broadcast(
    x: Arrays,
    axis_name: AxisName | Group,
    root: int = 0,
    *,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> Any:
    """Gives every rank the root's array, as ``jax.lax.pbroadcast`` (which JAX does not have on CPU).

    Args:
      x: array(s) of any shape and dtype, PRNG keys included; only the root's values matter.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      root: the rank whose array is sent, a static int; it has to exist in every communicator of a Group.
      algorithm: as for ``all_gather``.
      topology: as for ``all_gather``.

    Returns:
      Array(s) of x's shape, typed as replicated over the axis (``out_specs=P()``) unless the Group is partitioned.

    Raises:
      ArgumentError: root is not a rank, or an argument is unknown (EI0003).
      AxisError: the axis is not mapped here.

    Source: HCCL's Broadcast.

    >>> jax.vmap(lambda x: hccljax.broadcast(x, "rank", root=2), axis_name="rank", out_axes=None)(jnp.arange(3))
    Array(2, dtype=int32)
    """
    this = request(axis_name, algorithm, topology)
    root = checked_root(root, this.group)

    def of_one_size(x: jax.Array, this: Request) -> jax.Array:
        return linear(x, this.run("broadcast", x, root=root))

    return map_leaves(moving(lambda x: by_class(of_one_size, x, this)), x)


def scatter(
    x: Arrays,
    axis_name: AxisName | Group,
    root: int = 0,
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> Any:
    """Gives rank r block r of the root's array.

    Args:
      x: array(s) whose dimension scatter_dimension has size p (untiled), or a multiple of p (tiled), on every rank;
        only the root's values matter.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      root: the rank whose array is scattered, a static int.
      scatter_dimension: the dimension that is cut into p blocks.
      tiled: True keeps the dimension, p times shorter; False removes it.
      algorithm: as for ``all_gather``.
      topology: as for ``all_gather``.

    Returns:
      Array(s) with block r on rank r.

    Raises:
      ArgumentError: the dimension is not divisible, root is not a rank, or an argument is unknown (EI0003).
      AxisError: the axis is not mapped here.

    Source: HCCL's Scatter.

    >>> jax.vmap(lambda x: hccljax.scatter(x, "rank"), axis_name="rank")(jnp.arange(4).reshape(2, 2))
    Array([0, 1], dtype=int32)
    """
    this = one_size(request(axis_name, algorithm, topology), "scatter")
    root = checked_root(root, this.group)

    def leaf(x: jax.Array) -> jax.Array:
        dimension = canonical_axis(scatter_dimension, x.ndim, "scatter_dimension")

        def scattered(x: jax.Array) -> jax.Array:
            blocks = to_blocks(x, dimension, this.group.size, tiled, "scatter")
            return linear(blocks, this.run("scatter", x, root=root))

        return moving(scattered)(x)

    return map_leaves(leaf, x)


def gather(
    x: Arrays,
    axis_name: AxisName | Group,
    root: int = 0,
    *,
    axis: int = 0,
    tiled: bool = False,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> Any:
    """Gives the root the arrays of all ranks, in rank order; the others get zeros of the same shape.

    Args:
      x: array(s) of any shape and dtype.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      root: the rank that gets the arrays, a static int.
      axis: where the ranks are stacked (untiled) or joined (tiled).
      tiled: True joins along an existing dimension instead of adding one.
      algorithm: as for ``all_gather``.
      topology: as for ``all_gather``.

    Returns:
      Array(s) with a dimension p at position axis, or with dimension axis p times longer.

    Raises:
      ArgumentError: axis is out of range, root is not a rank, or an argument is unknown (EI0003).
      AxisError: the axis is not mapped here.

    Source: MPI's Gather; HCCL has none.

    >>> jax.vmap(lambda x: hccljax.gather(x, "rank"), axis_name="rank")(jnp.array([5, 6]))
    Array([[5, 6],
           [0, 0]], dtype=int32)
    """
    this = one_size(request(axis_name, algorithm, topology), "gather")
    root = checked_root(root, this.group)

    def leaf(x: jax.Array) -> jax.Array:
        position = canonical_axis(axis, x.ndim if tiled else x.ndim + 1, "axis")

        def gathered(x: jax.Array) -> jax.Array:
            run = this.run("gather", x, root=root, factor=this.group.size)
            return from_blocks(linear(x, run), position, tiled)

        return moving(gathered)(x)

    return map_leaves(leaf, x)


def all_to_all(
    x: Arrays,
    axis_name: AxisName | Group,
    split_axis: int,
    concat_axis: int,
    *,
    tiled: bool = False,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> Any:
    """Sends block i of split_axis to rank i and collects what arrives along concat_axis, as ``jax.lax.all_to_all``.

    Args:
      x: array(s) whose dimension split_axis has size p (untiled), or a multiple of p (tiled).
      axis_name: a mapped axis name, a tuple of them, or a Group.
      split_axis: the dimension that is cut into p blocks.
      concat_axis: where the received blocks are stacked (untiled) or joined (tiled).
      tiled: True keeps the number of dimensions.
      algorithm: as for ``all_gather``.
      topology: as for ``all_gather``.

    Returns:
      Array(s) with split_axis p times shorter (untiled: gone) and concat_axis p times longer (untiled: new, size p).

    Raises:
      ArgumentError: the dimension is not divisible, or an argument is unknown (EI0003).
      AxisError: the axis is not mapped here.

    Source: HCCL's AlltoAll.

    >>> jax.vmap(lambda x: hccljax.all_to_all(x, "rank", 0, 0), axis_name="rank")(jnp.arange(4).reshape(2, 2))
    Array([[0, 2],
           [1, 3]], dtype=int32)
    """
    this = one_size(request(axis_name, algorithm, topology), "all_to_all")

    def leaf(x: jax.Array) -> jax.Array:
        split = canonical_axis(split_axis, x.ndim, "split_axis")
        concat = canonical_axis(concat_axis, x.ndim, "concat_axis")
        return moving(lambda x: exchanged(x, this, split, concat, tiled))(x)

    return map_leaves(leaf, x)


def exchanged(x: jax.Array, this: Request, split: int, concat: int, tiled: bool) -> jax.Array:
    """One array with its blocks along dimension split sent to their ranks, those received along concat."""
    blocks = to_blocks(x, split, this.group.size, tiled, "all_to_all")
    run = this.run("all_to_all", x)
    if run.algorithm is native:
        return by_xla(lax.all_to_all, x, run.group, split_axis=split, concat_axis=concat, tiled=tiled)
    return from_blocks(linear(blocks, run), concat, tiled)
