"""The permute primitive: one step of an algorithm, the same under shard_map, under vmap and in the jaxpr.

It lowers to ``lax.ppermute``. ``lax.ppermute`` itself cannot be used: under vmap it refuses partial permutations and
accepts duplicate destinations, and over a tuple of axes it numbers ranks in mesh order.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hccljax.layout import Layout, Pair, Pairs, Pattern, Shift, whole
from hccljax.partition import Uneven
from hccljax.primitives import compat
from hccljax.primitives.replication import axis_index


def permute(x: jax.Array, *, axes: tuple[str, ...], layout: Layout | Uneven, pattern: Pattern, label: str) -> jax.Array:
    """Sends x along pattern inside every communicator of layout at once; who receives nothing gets zeros."""
    return permute_p.bind(x, axes=axes, layout=layout, pattern=pattern, label=label)


def axis_pairs(axes: tuple[str, ...], layout: Layout | Uneven, pattern: Pattern) -> tuple[tuple[str, ...], list[Pair]]:
    """(axes in mesh order, pairs numbered in that order): what ``lax.ppermute`` needs."""
    pairs = layout.expand(pattern)
    ordered = compat.mesh_order(axes)
    if ordered != axes:
        numbers = np.arange(layout.n).reshape([lax.axis_size(axis) for axis in ordered])
        renumbered = numbers.transpose([ordered.index(axis) for axis in axes]).reshape(-1)
        pairs = [(int(renumbered[s]), int(renumbered[d])) for s, d in pairs]
    return ordered, pairs


def flat_index(axes: tuple[str, ...]) -> jax.Array:
    """This device's index along axes, flattened in the order given: int32 scalar."""
    index = axis_index(axes[0])
    for axis in axes[1:]:
        index = index * np.int32(lax.axis_size(axis)) + axis_index(axis)
    return index


def rank_in(axes: tuple[str, ...], layout: Layout | Uneven) -> jax.Array:
    """This device's rank inside its communicator: int32 scalar."""
    index = flat_index(axes)
    return index if layout.is_identity else jnp.asarray(layout.ranks)[index]


def _implementation(
    x: jax.Array, *, axes: tuple[str, ...], layout: Layout | Uneven, pattern: Pattern, label: str
) -> jax.Array:
    ordered, pairs = axis_pairs(axes, layout, pattern)
    with jax.named_scope(label):
        return lax.ppermute(x, ordered, pairs)


def _abstract(x: Any, **params: Any) -> Any:
    return x


def _transpose(cotangent: Any, x: Any, *, axes: Any, layout: Any, pattern: Pattern, label: str) -> list[jax.Array]:
    return [permute_p.bind(compat.dense(cotangent), axes=axes, layout=layout, pattern=pattern.inverse(), label=label)]


def _batch(
    name: Any, size: int, args: Any, dims: Any, *, axes: Any, layout: Layout | Uneven, pattern: Pattern, label: str
) -> Any:
    (x,), (dim,) = args, dims
    if name not in axes:
        return permute_p.bind(x, axes=axes, layout=layout, pattern=pattern, label=label), dim
    x = rows(x, dim, size)
    if len(axes) > 1:
        return _decomposed(x, axes, axes.index(name), layout, pattern, label), 0
    if isinstance(pattern, Shift) and layout.is_identity:
        return jnp.roll(x, pattern.k, 0), 0
    source = np.full(size, -1)
    for s, d in layout.expand(pattern):
        source[d] = s
    return received_rows(x, source), 0


def rows(x: jax.Array, dim: int | None, size: int) -> jax.Array:
    """The operand of a batching rule with the mapped axis first, [size, …]."""
    if dim is None:
        return lax.broadcast_in_dim(x, (size, *x.shape), tuple(range(1, x.ndim + 1)))
    return jnp.moveaxis(x, dim, 0)


def received_rows(x: jax.Array, source: np.ndarray) -> jax.Array:
    """out[d] = x[source[d]], zeros where source[d] is -1; x [rows, …]."""
    taken = x.at[np.maximum(source, 0)].get(mode="promise_in_bounds")
    if (source >= 0).all():
        return taken
    mask = lax.broadcast_in_dim(jnp.asarray(source >= 0), taken.shape, (0,))
    return lax.select(mask, taken, lax.full_like(taken, 0))


def _decomposed(
    x: jax.Array, axes: Any, position: int, layout: Layout | Uneven, pattern: Pattern, label: str
) -> jax.Array:
    """One axis of several is mapped by this vmap: rows move locally, the rest travels over the remaining axes.

    Rows whose remaining-axes pairs agree travel together in one permute.
    """
    rest = axes[:position] + axes[position + 1 :]
    rest_sizes = [lax.axis_size(axis) for axis in rest]
    full = [*rest_sizes[:position], x.shape[0], *rest_sizes[position:]]
    rest_count = int(np.prod(rest_sizes))
    travels: dict[Pair, list[Pair]] = {}
    for s, d in layout.expand(pattern):
        (s_row, s_rest), (d_row, d_rest) = (_split_index(i, full, position) for i in (s, d))
        travels.setdefault((s_row, d_row), []).append((s_rest, d_rest))
    together: dict[tuple[Pair, ...], list[Pair]] = {}
    for rows_moved, between in travels.items():
        together.setdefault(tuple(sorted(between)), []).append(rows_moved)
    here = flat_index(rest)
    out = lax.full_like(x, 0)
    for pairs, moved in together.items():
        sources, targets = (np.array(ends) for ends in zip(*moved, strict=True))
        block = x.at[sources].get(mode="promise_in_bounds")
        if any(s != d for s, d in pairs):
            block = permute_p.bind(block, axes=rest, layout=whole(rest_count), pattern=Pairs(pairs), label=label)
        arrives = np.zeros(rest_count, bool)
        arrives[[d for _, d in pairs]] = True
        mask = jnp.asarray(arrives)[here]
        out = out.at[targets].set(jnp.where(mask, block, out[targets]))
    return out


def _split_index(index: int, sizes: list[int], position: int) -> tuple[int, int]:
    """A flat index as (coordinate at position, flat index of the remaining coordinates)."""
    coordinates = list(np.unravel_index(index, sizes))
    row = int(coordinates.pop(position))
    remaining = sizes[:position] + sizes[position + 1 :]
    return row, int(np.ravel_multi_index(coordinates, remaining))


permute_p = compat.define("hccl_permute", abstract_eval=_abstract, implementation=_implementation, batch=_batch)
compat.set_transpose(permute_p, _transpose)
