"""gather and scatter in NumPy, for all ranks at once: what ``x[indices]`` and ``x.at[indices].set(…)`` become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hccljax.proof.movement import Shape

_AS_FAR_AS_POSSIBLE = {"CLIP", "PROMISE_IN_BOUNDS"}


def gather(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    """operand [ranks, …], indices [ranks, …, k] → the slices of operand that start there."""
    x, indices = operands
    numbers = params["dimension_numbers"]
    where, inside = _places(
        x.shape[1:],
        indices,
        params["slice_sizes"],
        numbers.offset_dims,
        (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims),
        numbers.start_index_map,
        dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)),
        len(shape),
    )
    if params["mode"].name not in _AS_FAR_AS_POSSIBLE and not inside.all():
        raise IndexError
    return x[_on_ranks(where, x, indices)].reshape(-1, *shape)


def scatter(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> tuple[np.ndarray, Any, Any]:
    """(a copy of the operand, where the updates go, the updates); the places of one rank have to differ."""
    x, indices, updates = operands
    numbers = params["dimension_numbers"]
    inserted = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = iter(updates.shape[1 + d] for d in numbers.update_window_dims)
    sizes = tuple(1 if d in inserted else next(windows) for d in range(len(shape)))
    where, inside = _places(
        x.shape[1:],
        indices,
        sizes,
        numbers.update_window_dims,
        inserted,
        numbers.scatter_dims_to_operand_dims,
        dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)),
        updates.ndim - 1,
    )
    ranks = max(len(operand) for operand in operands)
    index = _on_ranks(where, np.broadcast_to(x, (ranks, *x.shape[1:])), indices)
    flat = np.ravel_multi_index(np.broadcast_arrays(*index), (ranks, *shape)) if updates.size else np.zeros(0)
    if not inside.all() or np.unique(flat).size != flat.size:
        raise IndexError
    return np.array(np.broadcast_to(x, (ranks, *x.shape[1:]))), index, updates


def _on_ranks(where: list[np.ndarray], x: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, ...]:
    ranks = max(len(x), len(indices))
    rank = np.arange(ranks) if len(x) > 1 else np.zeros(ranks, int)
    return (rank.reshape(-1, *(1,) * (where[0].ndim - 1)) if where else rank, *where)


def _places(
    full: Shape,
    indices: np.ndarray,
    sizes: Sequence[int],
    window: Sequence[int],
    dropped: Sequence[int],
    mapped: Sequence[int],
    batched: Mapping[int, int],
    ndim: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """For each operand dimension the index of every result element, [ranks, …]; and whether the starts are inside.

    Dimensions of the result in ``window`` run inside a slice, the others over the indices.
    """
    outer = [d for d in range(ndim) if d not in window]
    spread = [1] * ndim
    for d, size in zip(outer, indices.shape[1:-1], strict=True):
        spread[d] = size
    running = iter(window)
    inside = np.ones(1, bool)
    where = []
    for d, size in enumerate(full):
        at = np.zeros((1,) * (ndim + 1), np.int64)
        if d in mapped:
            starts = indices[..., list(mapped).index(d)].astype(np.int64)
            inside = inside & ((starts >= 0) & (starts <= size - sizes[d])).all()
            at = np.clip(starts, 0, size - sizes[d]).reshape(len(indices), *spread)
        if d in batched:
            axis = outer[batched[d]]
            at = np.arange(size).reshape(1, *(-1 if k == axis else 1 for k in range(ndim)))
        if d not in dropped:
            axis = next(running)
            at = at + np.arange(sizes[d]).reshape(1, *(-1 if k == axis else 1 for k in range(ndim)))
        where.append(at)
    return where, inside
