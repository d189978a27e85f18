"""The drop-in module: ``from hccljax import lax`` instead of ``from jax import lax``.

The collectives are hccljax's, with ``jax.lax``'s signatures; HCCL_ALGO and the default policy choose the algorithm.
Every other name of ``jax.lax`` is passed through. What differs, and why:

- ``axis_index_groups`` works under vmap and in a checked ``shard_map``, where ``jax.lax`` (0.10.2) does not take it;
  there the result stays varying, since the groups hold different values. ``psum``, ``pmean``, ``pmax`` and ``pmin``
  take groups of unequal size too, and ``psum(1, axis)`` is an array then, since it depends on the rank.
  (``jax.lax.psum`` takes those in an unchecked ``shard_map``, not on TPU; its ``psum(1, axis)`` and ``pmean`` count the
  first group's ranks everywhere.)
- ``ppermute`` takes partial permutations under vmap, and numbers the ranks of a tuple of axes in the order given;
  ``jax.lax.ppermute`` numbers them in mesh order, unlike its own ``axis_index``.
- ``pbroadcast`` works on CPU.
- An untiled ``all_to_all`` whose split_axis and concat_axis differ has a gradient, and keeps its shape where vmap has
  not batched its operand; ``psum`` takes a vmap axis inside a checked ``shard_map``. ``jax.lax`` (0.10.2) fails in all
  three.
- The gradient of ``all_gather(to="invarying")`` in an unchecked ``shard_map`` sums over the ranks, as that of a plain
  ``all_gather`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax as _lax

import hccljax.collectives as collectives
from hccljax.collectives.leaf import as_array, canonical_axis
from hccljax.collectives.reductions import reduced
from hccljax.errors import ArgumentError, shown
from hccljax.group import Group
from hccljax.primitives.compat import unreduced

Groups = Sequence[Sequence[int]] | None

OURS = (
    "all_gather", "all_to_all", "pbroadcast", "pmax", "pmean", "pmin", "ppermute", "pshuffle", "psum", "psum_scatter",
    "pswapaxes",
)  # fmt: skip
"""What is hccljax's own here."""

__all__ = sorted({*OURS, *(name for name in vars(_lax) if not name.startswith("_"))})


def __getattr__(name: str) -> Any:
    return getattr(_lax, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_lax)})


def psum(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """``jax.lax.psum``: the sum over a mapped axis, on every rank; ``psum(1, axis)`` is the axis size, a Python int.

    Args:
      x: array(s) of any shape; bool is summed as int32.
      axis_name: a mapped axis name or a tuple of them; ints are positional axes, summed on the spot.
      axis_index_groups: lists of axis indices that cover the axis; each list is summed on its own.

    Returns:
      Array(s) of x's shape (less the positional axes).

    Raises:
      ArgumentError: groups that overlap or do not cover the axis.
      AxisError: the axis is not mapped here.
    """
    names, positions = _axes(axis_name, axis_index_groups)
    if not names and not positions:
        return x
    leaves = jax.tree.leaves(x)
    if names and not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        group = _group(names, axis_index_groups)
        group.resolved  # noqa: B018  (raises for an unmapped axis)
        return jax.tree.map(lambda leaf: _times(leaf, group.size_here, positions), x)
    if any(set(names) & unreduced(leaf) for leaf in leaves if isinstance(leaf, jax.core.Tracer)):
        return _lax.psum(x, axis_name, axis_index_groups=axis_index_groups)
    return _reduce(x, "sum", names, positions, axis_index_groups)


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """``jax.lax.pmean``: the mean over a mapped axis, on every rank; arguments and errors as for ``psum``."""
    names, positions = _axes(axis_name, axis_index_groups)
    traced = [leaf for leaf in jax.tree.leaves(x) if isinstance(leaf, jax.core.Tracer)]
    if names and not positions and traced and not any(set(names) & unreduced(leaf) for leaf in traced):
        return _reduce(x, "mean", names, positions, axis_index_groups)
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    size = psum(1, axis_name, axis_index_groups=axis_index_groups)
    return jax.tree.map(lambda leaf: leaf / size, total)


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """``jax.lax.pmax``: the maximum over a mapped axis, on every rank; without derivative. Arguments as ``psum``."""
    return _reduce(x, "max", *_axes(axis_name, axis_index_groups), axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Groups = None) -> Any:
    """``jax.lax.pmin``: the minimum over a mapped axis, on every rank; without derivative. Arguments as ``psum``."""
    return _reduce(x, "min", *_axes(axis_name, axis_index_groups), axis_index_groups)


def all_gather(
    x: Any,
    axis_name: Any,
    *,
    axis_index_groups: Groups = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> Any:
    """``jax.lax.all_gather``: the arrays of all ranks on every rank; see ``hccljax.all_gather``."""
    names = _named(axis_name)
    if not names:
        return x
    if to == "reduced":
        return _lax.all_gather(x, axis_name, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled, to=to)
    return collectives.all_gather(x, _group(names, axis_index_groups), axis=axis, tiled=tiled, to=to)


def psum_scatter(
    x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Groups = None, tiled: bool = False
) -> Any:
    """``jax.lax.psum_scatter``: block r of the sum on rank r; see ``hccljax.reduce_scatter``."""
    names = _named(axis_name)
    if not names:
        return x
    if any(set(names) & unreduced(leaf) for leaf in jax.tree.leaves(x) if isinstance(leaf, jax.core.Tracer)):
        return _lax.psum_scatter(
            x, axis_name, scatter_dimension=scatter_dimension, axis_index_groups=axis_index_groups, tiled=tiled
        )
    group = _group(names, axis_index_groups)
    return collectives.reduce_scatter(x, group, scatter_dimension=scatter_dimension, tiled=tiled)


def all_to_all(
    x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Groups = None, tiled: bool = False
) -> Any:
    """``jax.lax.all_to_all``: block i of split_axis goes to rank i; see ``hccljax.all_to_all``."""
    group = _group(_named(axis_name), axis_index_groups)
    return collectives.all_to_all(x, group, split_axis, concat_axis, tiled=tiled)


def ppermute(x: Any, axis_name: Any, perm: Iterable[Sequence[int]]) -> Any:
    """``jax.lax.ppermute``: x sent along (source, destination) pairs; see ``hccljax.send_recv``."""
    return collectives.send_recv(x, _group(_named(axis_name), None), perm)


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """``jax.lax.pbroadcast``: the source's x on every rank; see ``hccljax.broadcast``. Works on CPU."""
    return collectives.broadcast(x, _group(_named(axis_name), None), source)


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """``jax.lax.pshuffle``: rank i receives x of rank perm[i]; perm names every rank once."""
    group = _group(_named(axis_name), None)
    if sorted(perm) != list(range(group.size)):
        raise ArgumentError(f"perm={shown(perm)}: expected every rank 0 to {group.size - 1} exactly once")
    return collectives.send_recv(x, group, list(zip(perm, range(group.size), strict=True)))


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Groups = None) -> Any:
    """``jax.lax.pswapaxes``: swaps the mapped axis with a positional one of the same size."""
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def _axes(axis_name: Any, groups: Groups) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """(named axes, positional axes) of jax.lax's axis_name."""
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    positions = tuple(axis for axis in axes if isinstance(axis, int))
    if positions and groups is not None:
        raise ArgumentError(
            f"axis_name={shown(axis_name)} has positional axes; axis_index_groups takes named axes only"
        )
    return tuple(axis for axis in axes if not isinstance(axis, int)), positions


def _named(axis_name: Any) -> tuple[Any, ...]:
    """The axes of a collective that takes no positional ones."""
    names, positions = _axes(axis_name, None)
    if positions:
        raise ArgumentError(f"axis_name={shown(axis_name)} has positional axes; expected mapped axis names only")
    return names


def _group(names: tuple[Any, ...], groups: Groups) -> Group:
    return Group(names, groups)


def _reduce(x: Any, op: str, names: tuple[Any, ...], positions: tuple[int, ...], groups: Groups) -> Any:
    if positions:
        x = jax.tree.map(lambda leaf: _reduce_positions(leaf, op, positions), x)
    # A mean of what is the same everywhere is that value, which programs take for granted: jax.lax says nothing.
    return reduced(x, _group(names, groups), op, warns=op != "mean") if names else x


def _reduce_positions(leaf: Any, op: str, positions: tuple[int, ...]) -> jax.Array:
    array = as_array(leaf)
    axes = tuple(canonical_axis(position, array.ndim, "axis_name") for position in positions)
    if op == "sum":
        return jnp.sum(array, axes, dtype=jnp.int32 if array.dtype == jnp.bool_ else array.dtype)
    return (jnp.max if op == "max" else jnp.min)(array, axes)


def _times(leaf: Any, size: int | jax.Array, positions: tuple[int, ...]) -> Any:
    """The sum of a constant over size ranks, without communication: a Python number stays one."""
    python = isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool)
    if python and isinstance(size, int) and not positions:
        return type(leaf)(size) * leaf
    array = _reduce_positions(leaf, "sum", positions) if positions else as_array(leaf)
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.int32)
    return array * jnp.asarray(size, array.dtype)
