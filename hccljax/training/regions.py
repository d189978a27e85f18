"""The border of a tensor-parallel region: what crosses it forward, and what its gradient does on the way back.

    copy_to      x as it is            ↔  all_reduce of the gradient
    reduce_from  all_reduce            ↔  the gradient as it is
    scatter_to   this rank's block     ↔  all_gather of the gradient
    gather_from  all_gather            ↔  this rank's block of the gradient
    broadcast_from  the root's array   ↔  the gradient on the root, zeros elsewhere

Outside the region every rank holds the same array and computes the same loss, which counts once, not once for each
rank. In a checked ``shard_map`` the types say so, and jax.lax's own collectives have these gradients; where nothing is
checked (``check_vma=False``, vmap), the transpose of a psum is a psum, and a gradient taken there is p times too large.
These mean the same in all modes, and both directions run the chosen algorithm. Differentiate inside of the mapped
function: outside of an unchecked ``shard_map``, JAX divides the cotangent of a replicated result by p.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from hccljax.algorithm import Algorithm
from hccljax.algorithm.blocks import block_at, choose
from hccljax.collectives.classes import one_size
from hccljax.collectives.leaf import canonical_axis, checked_root, from_blocks, map_leaves, to_blocks
from hccljax.collectives.prepare import Request, request
from hccljax.collectives.typed import Run
from hccljax.errors import ArgumentError
from hccljax.group import AxisName, Group
from hccljax.primitives.call import Direction, linear_call
from hccljax.primitives.compat import checked_axes, varying
from hccljax.primitives.replication import vary
from hccljax.reduction import reducible
from hccljax.topology import Topology

Choice = str | Algorithm | None
Tiers = str | Topology | None


def copy_to(x: Any, axis_name: AxisName | Group, *, algorithm: Choice = None, topology: Tiers = None) -> Any:
    """x as it is, into a region where ranks compute different things with it; its gradient is summed over the ranks.

    Args:
      x: array(s) that are the same on every rank.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      algorithm: as for ``hccljax.all_reduce``; it reduces the gradient.
      topology: as for ``hccljax.all_reduce``.

    Returns:
      The same array(s), typed as varying over the axis.

    Raises:
      ArgumentError: x is typed as differing from rank to rank, or algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: f of Megatron-LM (Shoeybi et al. 2019).
    """
    this = _request(axis_name, algorithm, topology, "copy_to")

    def leaf(x: jax.Array) -> jax.Array:
        _check_same(x, this.group, "copy_to")
        back = _sums(this, x)
        return linear_call(x, Direction(_Same(this.group.axes), this.group.axes), _to_all(back), "copy_to")

    return map_leaves(leaf, x)


def reduce_from(x: Any, axis_name: AxisName | Group, *, algorithm: Choice = None, topology: Tiers = None) -> Any:
    """The sum of x over the ranks, out of the region; its gradient goes back to every rank as it is.

    Args:
      x: array(s), this rank's part of the sum.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      algorithm: as for ``hccljax.all_reduce``.
      topology: as for ``hccljax.all_reduce``.

    Returns:
      Array(s) of x's shape, typed as replicated over the axis unless the Group is partitioned.

    Raises:
      ArgumentError: algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: g of Megatron-LM (Shoeybi et al. 2019).
    """
    this = _request(axis_name, algorithm, topology, "reduce_from")

    def leaf(x: jax.Array) -> jax.Array:
        x = vary(reducible(x, "sum"), this.group.axes)
        back = Direction(_Same(this.group.axes), this.group.axes)
        return linear_call(x, _to_all(_sums(this, x)), back, "reduce_from")

    return map_leaves(leaf, x)


def scatter_to(
    x: Any, axis_name: AxisName | Group, *, axis: int = -1, algorithm: Choice = None, topology: Tiers = None
) -> Any:
    """This rank's block of x, into the region; the gradients of all blocks are gathered.

    Args:
      x: array(s) that are the same on every rank.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      axis: the dimension that is cut into p blocks; p divides its size.
      algorithm: as for ``hccljax.all_gather``; it gathers the gradient.
      topology: as for ``hccljax.all_gather``.

    Returns:
      Array(s) with the dimension p times shorter, typed as varying over the axis.

    Raises:
      ArgumentError: p does not divide the dimension, x is typed as differing from rank to rank, or algorithm or
        topology is unknown.
      AxisError: the axis is not mapped here.

    Source: Megatron-LM (Shoeybi et al. 2019).
    """
    this = _request(axis_name, algorithm, topology, "scatter_to")

    def leaf(x: jax.Array) -> jax.Array:
        _check_same(x, this.group, "scatter_to")
        blocks = to_blocks(x, canonical_axis(axis, x.ndim, "axis"), this.group.size, True, "scatter_to")
        own = Direction(_Own(this.group), this.group.axes)
        return linear_call(blocks, own, _to_all(this.run("all_gather", x)), "scatter_to")

    return map_leaves(leaf, x)


def gather_from(
    x: Any, axis_name: AxisName | Group, *, axis: int = -1, algorithm: Choice = None, topology: Tiers = None
) -> Any:
    """The blocks of all ranks joined, out of the region; each rank gets its own block of the gradient.

    Args:
      x: array(s), this rank's block.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      axis: the dimension along which the blocks are joined.
      algorithm: as for ``hccljax.all_gather``.
      topology: as for ``hccljax.all_gather``.

    Returns:
      Array(s) with the dimension p times longer, typed as replicated over the axis unless the Group is partitioned.

    Raises:
      ArgumentError: axis is out of range, or algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: Megatron-LM (Shoeybi et al. 2019).
    """
    this = _request(axis_name, algorithm, topology, "gather_from")

    def leaf(x: jax.Array) -> jax.Array:
        position = canonical_axis(axis, x.ndim, "axis")
        run = this.run("all_gather", x, factor=this.group.size)
        own = Direction(_Own(this.group), this.group.axes)
        out = linear_call(vary(x, this.group.axes), _to_all(run), own, "gather_from")
        return from_blocks(out, position, True)

    return map_leaves(leaf, x)


def broadcast_from(
    x: Any, axis_name: AxisName | Group, root: int = 0, *, algorithm: Choice = None, topology: Tiers = None
) -> Any:
    """The root's array on every rank, out of the region; only the root gets a gradient, and it counts once.

    Args:
      x: array(s); only the root's values matter.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      root: the rank whose array is sent, a static int.
      algorithm: as for ``hccljax.broadcast``.
      topology: as for ``hccljax.broadcast``.

    Returns:
      Array(s) of x's shape, typed as replicated over the axis unless the Group is partitioned.

    Raises:
      ArgumentError: root is not a rank, or algorithm or topology is unknown.
      AxisError: the axis is not mapped here.

    Source: hccljax; the last stage's output of a pipeline.
    """
    this = _request(axis_name, algorithm, topology, "broadcast_from")
    root = checked_root(root, this.group)

    def leaf(x: jax.Array) -> jax.Array:
        run = this.run("broadcast", x, root=root)
        own = Direction(_Rooted(this.group, root), this.group.axes)
        return linear_call(vary(x, this.group.axes), _to_all(run), own, "broadcast_from")

    return map_leaves(leaf, x)


@dataclass(frozen=True)
class _Rooted:
    """x on the root, zeros elsewhere."""

    group: Group
    root: int

    def __call__(self, x: jax.Array) -> jax.Array:
        x = vary(x, self.group.axes)
        return choose(self.group.rank == self.root, x, jax.numpy.zeros_like(x))


@dataclass(frozen=True)
class _Same:
    """x → x."""

    axes: tuple[str, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        return vary(x, self.axes)


@dataclass(frozen=True)
class _Own:
    """Blocks [p, …] → this rank's […]."""

    group: Group

    def __call__(self, blocks: jax.Array) -> jax.Array:
        return block_at(vary(blocks, self.group.axes), self.group.rank)


def _request(axis_name: AxisName | Group, algorithm: Choice, topology: Tiers, name: str) -> Request:
    return one_size(request(axis_name, algorithm, topology), name)


def _sums(this: Request, x: jax.Array) -> Run:
    return this.run("all_reduce", x, "sum")


def _to_all(run: Run) -> Direction:
    """A run whose result is the same on every rank, and typed so where the communicator is the whole axis."""
    group = run.group
    if not group.is_whole:
        return Direction(run, group.axes)
    return Direction(replace(run, promised=checked_axes(group.axes)), group.axes, frozenset(group.axes))


def _check_same(x: jax.Array, group: Group, name: str) -> None:
    """Raises an ArgumentError for an array that is typed as differing from rank to rank."""
    differing = sorted(set(checked_axes(group.axes)) & varying(x)) if group.is_whole else []
    if differing:
        raise ArgumentError(
            f"{name} of an array {x.dtype}{list(x.shape)} typed as varying over {', '.join(map(repr, differing))}: "
            f"expected one that is the same on every rank, as in_specs=P(), reduce_from, gather_from or all_reduce "
            f"leave it"
        )
