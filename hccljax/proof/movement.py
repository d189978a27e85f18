"""How local primitives move values, in NumPy, for all ranks at once: arrays are [ranks, …], or [1, …] if all agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Rule = Callable[[Mapping[str, Any], Sequence[np.ndarray], Shape], np.ndarray]
"""(parameters, operands, shape of one rank's result) → result."""


def aligned(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays with as many ranks each."""
    ranks = max(len(array) for array in arrays)
    return [array if len(array) == ranks else np.broadcast_to(array, (ranks, *array.shape[1:])) for array in arrays]


def _same(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    return operands[0]


def _reshape(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    return operands[0].reshape(len(operands[0]), *shape)


def _broadcast(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    x = operands[0]
    spread = [1] * len(shape)
    for axis, size in zip(params["broadcast_dimensions"], x.shape[1:], strict=True):
        spread[axis] = size
    return np.broadcast_to(x.reshape(len(x), *spread), (len(x), *shape))


def _transpose(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    return operands[0].transpose(0, *(axis + 1 for axis in params["permutation"]))


def _reverse(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    return np.flip(operands[0], tuple(axis + 1 for axis in params["dimensions"]))


def _concatenate(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    return np.concatenate(aligned(operands), params["dimension"] + 1)


def _stack(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    return np.stack(aligned(operands), params["axis"] + 1)


def _slice(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    strides = params["strides"] or (1,) * len(shape)
    cuts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return operands[0][(slice(None), *(slice(*cut) for cut in cuts))]


def _pad(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    x, value = aligned(operands)
    out = np.empty((len(x), *shape), x.dtype)
    out[...] = value.reshape(-1, *(1 for _ in shape))
    into, taken = [slice(None)], [slice(None)]
    for (low, _, inner), size, length in zip(params["padding_config"], shape, x.shape[1:], strict=True):
        kept = [k for k in range(length) if 0 <= low + k * (inner + 1) < size]
        taken.append(slice(kept[0], kept[-1] + 1) if kept else slice(0, 0))
        first = low + kept[0] * (inner + 1) if kept else 0
        into.append(slice(first, first + (kept[-1] - kept[0]) * (inner + 1) + 1, inner + 1) if kept else slice(0, 0))
    out[tuple(into)] = x[tuple(taken)]
    return out


def _select(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    which, *cases = operands
    which = which.reshape(len(which), *(which.shape[1:] or (1,) * len(shape)))
    if len(cases) == 1:
        return cases[0]
    if len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    which, *cases = np.broadcast_arrays(which, *cases)
    return np.take_along_axis(np.stack(cases), which[None].astype(np.intp), 0)[0]


def _window(starts: Sequence[np.ndarray], sizes: Shape, shape: Shape, ranks: int) -> tuple[Any, ...]:
    """The index of a window of sizes in arrays [ranks, *shape] that starts elsewhere on every rank."""
    clamped = [np.clip(at, 0, full - size) for at, full, size in zip(starts, shape, sizes, strict=True)]
    if all((at == at[0]).all() for at in clamped):
        return (slice(None), *(slice(int(at[0]), int(at[0]) + size) for at, size in zip(clamped, sizes, strict=True)))
    cut = max(axis for axis, size in enumerate(sizes) if size != shape[axis]) + 1
    index: list[Any] = [np.arange(ranks).reshape(-1, *(1,) * cut)]
    for axis, at in enumerate(clamped[:cut]):
        inside = np.arange(sizes[axis]).reshape(-1, *(1,) * (cut - axis - 1))
        index.append(at.reshape(-1, *(1,) * cut) + inside)
    return tuple(index)


def _dynamic_slice(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    x, *starts = operands
    ranks = max(len(operand) for operand in operands)
    x = np.broadcast_to(x, (ranks, *x.shape[1:])) if any(len(at) > 1 for at in starts) else x
    return x[_window(starts, shape, x.shape[1:], len(x))]


def _dynamic_update_slice(params: Mapping[str, Any], operands: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    x, update, *starts = operands
    ranks = max(len(operand) for operand in operands)
    out = np.array(np.broadcast_to(x, (ranks, *x.shape[1:])))
    out[_window(starts, update.shape[1:], shape, ranks)] = update
    return out


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("convert_element_type", "copy", "copy_p", "reduce_precision", "stop_gradient", "pcast", "pvary",
         "hccl_invariant", "hccl_weak", "device_put", "sharding_constraint"), _same
    ),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "rev": _reverse,
    "concatenate": _concatenate,
    "stack": _stack,
    "slice": _slice,
    "pad": _pad,
    "select_n": _select,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}  # fmt: skip
"""Primitives whose result consists of elements of their operands."""

INDICES = {"select_n": slice(0, 1), "dynamic_slice": slice(1, None), "dynamic_update_slice": slice(2, None)}
"""Operands that say where, not what."""
