"""Grains: in a large message, runs of elements that never part are held as one.

A message of megabytes is proved as cheaply as a small one as long as every step of the kernel moves whole grains along
the last axis; where one does not, ``Uneven`` is raised and the proof starts again, element by element.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from hccljax.proof.movement import Shape


class Uneven(Exception):
    """A kernel cuts a message inside a grain."""


def held(shape: Shape, grain: int) -> Shape:
    """The shape in which an array is held: its last axis counts grains."""
    if grain == 1:
        return shape
    return (*shape[:-1], _grains(shape[-1] if shape else 1, grain))


def _grains(size: int, grain: int) -> int:
    if size % grain:
        raise Uneven
    return size // grain


def held_values(values: np.ndarray, grain: int) -> np.ndarray:
    """Known values [ranks, …] next to data: one for each grain; a scalar stays one."""
    if grain == 1 or values.ndim == 1:
        return values
    _grains(values.shape[-1], grain)
    first = values[..., ::grain]
    if values.size and values.strides[-1] and not (np.repeat(first, grain, -1) == values).all():
        raise Uneven
    return first


def held_params(equation: JaxprEqn, grain: int) -> Mapping[str, Any]:
    """The parameters of a primitive that moves elements, its last axis counted in grains."""
    params = dict(equation.params)
    if grain == 1:
        return params
    name, ndim = equation.primitive.name, len(equation.invars[0].aval.shape)  # type: ignore[attr-defined]
    last = ndim - 1
    if name == "slice":
        _require((params["strides"] or (1,))[-1] == 1)
        for key in ("start_indices", "limit_indices"):
            params[key] = (*params[key][:-1], _grains(params[key][-1], grain))
    elif name == "pad":
        *others, (low, high, inner) = params["padding_config"]
        _require(inner == 0)
        params["padding_config"] = (*others, (_signed(low, grain), _signed(high, grain), 0))
    elif name == "broadcast_in_dim":
        outer = len(params["shape"]) - 1
        _require(bool(params["broadcast_dimensions"]) and params["broadcast_dimensions"][-1] == outer)
        _require(equation.invars[0].aval.shape[-1] == params["shape"][-1])  # type: ignore[attr-defined]
    elif name == "transpose":
        _require(params["permutation"][-1] == last)
    elif name == "rev":
        _require(last not in params["dimensions"])
    elif name in ("stack", "squeeze", "expand_dims", "split", "gather") or name.startswith("scatter"):
        _whole_last_axis(name, params, equation, last, grain)
    return params


def _whole_last_axis(name: str, params: dict[str, Any], equation: JaxprEqn, last: int, grain: int) -> None:
    """These may not touch the last axis."""
    shapes = [v.aval.shape for v in (*equation.invars, *equation.outvars)]  # type: ignore[attr-defined]
    if name == "stack":
        _require(params["axis"] <= last)
    elif name == "split":
        _require(params["axis"] != last)
    elif name == "gather":
        numbers, out = params["dimension_numbers"], len(shapes[-1]) - 1
        _require(last not in numbers.collapsed_slice_dims and last not in numbers.start_index_map)
        _require(numbers.offset_dims[-1:] == (out,) and params["slice_sizes"][-1] == shapes[0][-1])
        params["slice_sizes"] = held(params["slice_sizes"], grain)
    elif name.startswith("scatter"):
        numbers, update = params["dimension_numbers"], len(shapes[2]) - 1
        _require(last not in numbers.inserted_window_dims and last not in numbers.scatter_dims_to_operand_dims)
        _require(numbers.update_window_dims[-1:] == (update,) and shapes[2][-1] == shapes[0][-1])
    else:
        _require(shapes[0][-1:] == shapes[-1][-1:])


def held_starts(starts: list[np.ndarray], full: Shape, sizes: Shape, grain: int) -> list[np.ndarray]:
    """Where windows start, clamped as XLA does, the last axis counted in grains."""
    if grain == 1:
        return starts
    *others, last = starts
    last = np.clip(last, 0, full[-1] - sizes[-1])
    _require(not (last % grain).any())
    return [*others, last // grain]


def _signed(amount: int, grain: int) -> int:
    return _grains(abs(amount), grain) * (1 if amount >= 0 else -1)


def _require(even: bool) -> None:
    if not even:
        raise Uneven
