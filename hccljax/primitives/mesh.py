"""The full-mesh primitives: every rank talks to every other at once (one all-to-all, one all-gather).

They lower to ``lax.all_to_all`` and ``lax.all_gather``, and add what those lack: groups under vmap, groups in a
checked shard_map, tuples of axes of which some are mapped by vmap. XLA's groups have to cover the axis: where a layout
leaves ranks out, the same blocks travel by p - 1 permutes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hccljax.layout import Layout, Shift, whole
from hccljax.primitives import compat
from hccljax.primitives.permute import permute, rank_in, received_rows, rows


def exchange(blocks: jax.Array, *, axes: tuple[str, ...], layout: Layout, label: str = "exchange") -> jax.Array:
    """blocks [p, …] → [p, …]: block i of the result is block ``rank`` of rank i, in every communicator."""
    return exchange_p.bind(blocks, axes=axes, layout=layout, label=label)


def gather(block: jax.Array, *, axes: tuple[str, ...], layout: Layout) -> jax.Array:
    """block […] → [p, …]: the blocks of all ranks of the communicator, in rank order."""
    return gather_p.bind(block, axes=axes, layout=layout)


def _groups(layout: Layout) -> Any:
    return None if layout.is_identity else layout.groups


def _exchange(x: jax.Array, *, axes: tuple[str, ...], layout: Layout, label: str) -> jax.Array:
    if not layout.covers:
        return _exchange_by_permutes(x, axes=axes, layout=layout, label=label)
    return lax.all_to_all(x, axes, 0, 0, axis_index_groups=_groups(layout))


def _gather(x: jax.Array, *, axes: tuple[str, ...], layout: Layout) -> jax.Array:
    if not layout.covers:
        return _gather_by_permutes(x, axes=axes, layout=layout)
    return lax.all_gather(x, axes, axis_index_groups=_groups(layout))


def _exchange_by_permutes(x: jax.Array, *, axes: tuple[str, ...], layout: Layout, label: str) -> jax.Array:
    rank, p = rank_in(axes, layout), layout.p
    out = jnp.zeros_like(x).at[rank].set(x[rank])
    for k in range(1, p):
        received = permute(x[(rank + k) % p], axes=axes, layout=layout, pattern=Shift(k), label=label)
        out = out.at[(rank - k) % p].set(received)
    return out


def _gather_by_permutes(x: jax.Array, *, axes: tuple[str, ...], layout: Layout) -> jax.Array:
    everything = jnp.broadcast_to(x[None], (layout.p, *x.shape))
    return _exchange_by_permutes(everything, axes=axes, layout=layout, label="gather")


def _batch_exchange(name: Any, size: int, args: Any, dims: Any, *, axes: Any, layout: Layout, label: str) -> Any:
    (x,), (dim,) = args, dims
    if name not in axes:
        x = rows(x, dim, size)
        return jnp.moveaxis(exchange(jnp.moveaxis(x, 0, 1), axes=axes, layout=layout, label=label), 1, 0), 0
    if len(axes) == 1:
        x = rows(x, dim, size)
        if layout.is_identity:
            return jnp.swapaxes(x, 0, 1), 0
        return _by_member(jnp.swapaxes(x[layout.members], 1, 2), layout), 0
    if not layout.is_identity:
        fun = jax.vmap(_Bound(_exchange_by_permutes, axes, layout, label), dim, axis_name=name, axis_size=size)
        return fun(x), 0
    x, position = rows(x, dim, size), axes.index(name)
    outer, inner = _sizes_around(axes, position)
    x = x.reshape(size, outer, size, inner, *x.shape[2:])
    x = jnp.moveaxis(jnp.swapaxes(x, 0, 2), 2, 0)  # [from row, to row, outer, inner, …]: the local swap is done
    x = x.reshape(size, size, outer * inner, *x.shape[4:])
    travelling = jnp.moveaxis(x, 2, 0)
    rest = axes[:position] + axes[position + 1 :]
    back = jnp.moveaxis(exchange(travelling, axes=rest, layout=whole(outer * inner), label=label), 0, 2)
    back = back.reshape(size, size, outer, inner, *back.shape[3:])
    back = jnp.moveaxis(back, 0, 2)  # [to row, outer, from row, inner, …]
    return back.reshape(size, outer * size * inner, *back.shape[4:]), 0


def _batch_gather(name: Any, size: int, args: Any, dims: Any, *, axes: Any, layout: Layout) -> Any:
    (x,), (dim,) = args, dims
    if name not in axes:
        return gather(rows(x, dim, size), axes=axes, layout=layout), 1
    if len(axes) == 1:
        x = rows(x, dim, size)
        if layout.is_whole:
            return (x if layout.is_identity else x[layout.members[0]]), None
        everything = x[layout.members]
        return _by_member(
            jnp.broadcast_to(everything[:, None], (*layout.members.shape, *everything.shape[1:])), layout
        ), 0
    if not layout.is_identity:
        fun = jax.vmap(_Bound(_gather_by_permutes, axes, layout), dim, axis_name=name, axis_size=size)
        return fun(x), 0
    x, position = rows(x, dim, size), axes.index(name)
    outer, inner = _sizes_around(axes, position)
    rest = axes[:position] + axes[position + 1 :]
    everything = gather(x, axes=rest, layout=whole(outer * inner))
    everything = everything.reshape(outer, inner, *everything.shape[1:])
    return jnp.moveaxis(everything, 2, 1).reshape(outer * size * inner, *everything.shape[3:]), None


def _by_member(values: jax.Array, layout: Layout) -> jax.Array:
    """values [communicators, p, …] in members order → [n, …] in axis order, zeros for those in no communicator."""
    return received_rows(values.reshape(values.shape[0] * values.shape[1], *values.shape[2:]), layout.positions)


def _sizes_around(axes: tuple[str, ...], position: int) -> tuple[int, int]:
    sizes = [1 if i == position else lax.axis_size(axis) for i, axis in enumerate(axes)]
    return int(np.prod(sizes[:position])), int(np.prod(sizes[position + 1 :]))


class _Bound:
    """fun with axes, layout and, if it takes one, label filled in."""

    def __init__(self, fun: Any, axes: tuple[str, ...], layout: Layout, label: str | None = None):
        self.fun, self.parameters = fun, {"axes": axes, "layout": layout}
        if label is not None:
            self.parameters["label"] = label

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.fun(x, **self.parameters)


def _gathered(aval: Any, *, axes: tuple[str, ...], layout: Layout) -> Any:
    return aval.update(shape=(layout.p, *aval.shape))


def _same(aval: Any, **params: Any) -> Any:
    return aval


def _transpose_exchange(cotangent: Any, x: Any, *, axes: Any, layout: Layout, label: str) -> list[jax.Array]:
    return [exchange(compat.dense(cotangent), axes=axes, layout=layout, label=label)]


def _transpose_gather(cotangent: Any, x: Any, *, axes: Any, layout: Layout) -> list[jax.Array]:
    return [exchange(compat.dense(cotangent), axes=axes, layout=layout, label="gather_reduce").sum(0)]


exchange_p = compat.define("hccl_mesh_exchange", abstract_eval=_same, implementation=_exchange, batch=_batch_exchange)
gather_p = compat.define("hccl_mesh_gather", abstract_eval=_gathered, implementation=_gather, batch=_batch_gather)
compat.set_transpose(exchange_p, _transpose_exchange)
compat.set_transpose(gather_p, _transpose_gather)
