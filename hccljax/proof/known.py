"""Values known while proving: ranks, indices, conditions. Each is a NumPy array [ranks, …], or [1, …] if all agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from hccljax.proof.movement import Shape, aligned


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """As XLA divides: integers towards zero."""
    if not np.issubdtype(x.dtype, np.integer):
        return np.divide(x, y)
    quotient = np.abs(x) // np.where(y == 0, 1, np.abs(y))
    return (np.sign(x) * np.sign(y) * quotient).astype(x.dtype)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": np.fmod,
    "max": np.maximum, "min": np.minimum, "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shift_left": np.left_shift, "shift_right_arithmetic": np.right_shift,
    "clamp": lambda low, x, high: np.clip(x, low, high),
}  # fmt: skip


def evaluated(equation: JaxprEqn, operands: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
    """The results of a local primitive on known operands; one not listed here is run by JAX, rank by rank."""
    name, params = equation.primitive.name, equation.params
    if name == "convert_element_type":
        return [operands[0].astype(params["new_dtype"])]
    if name == "iota":
        spread = [-1 if d == params["dimension"] else 1 for d in range(len(params["shape"]))]
        counted = np.arange(params["shape"][params["dimension"]], dtype=params["dtype"]).reshape(spread)
        return [np.broadcast_to(counted, params["shape"])[None]]
    if name in _ELEMENTWISE:
        dtype = equation.outvars[0].aval.dtype  # type: ignore[attr-defined]
        return [np.asarray(_ELEMENTWISE[name](*_same_rank(operands, shapes[0]))).astype(dtype, copy=False)]
    rows = zip(*aligned(operands), strict=True)
    outputs = [equation.primitive.bind(*map(jax.numpy.asarray, row), **params) for row in rows]
    if not equation.primitive.multiple_results:
        return [np.stack([np.asarray(output) for output in outputs])]
    return [np.stack([np.asarray(output) for output in column]) for column in zip(*outputs, strict=True)]


def _same_rank(operands: Sequence[np.ndarray], shape: Shape) -> list[np.ndarray]:
    """Scalars among arrays (clamp's bounds) get dimensions to broadcast along."""
    return [x if x.ndim == len(shape) + 1 else x.reshape(len(x), *(1,) * len(shape)) for x in operands]
