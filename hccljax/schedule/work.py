"""Work: how many operations and how much memory traffic the equations of a jaxpr take on one rank.

Operations are counted as XLA's cost analysis does: 2 for each product that a matrix product or a convolution adds up,
one for each element of an elementwise equation or of a reduction's operand, none for what only moves data.

Memory: XLA fuses elementwise equations with each other and with what reads them. So an elementwise result is written
only if something else than an elementwise equation reads it, and such an equation reads those operands that were
written. Slices and updates of a part touch that part. All other equations read their operands and write their results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params

from hccljax.schedule.liveness import shaped, short_name


class Work(NamedTuple):
    """Floating-point operations, and bytes read and written."""

    flops: float = 0.0
    nbytes: float = 0.0

    def plus(self, other: Work) -> Work:
        """Both, one after the other."""
        return Work(self.flops + other.flops, self.nbytes + other.nbytes)

    def times(self, trips: float) -> Work:
        """The same, so many times."""
        return Work(self.flops * trips, self.nbytes * trips)


_VIEWS = frozenset(
    {
        "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "broadcast", "bitcast_convert_type", "copy", "pvary",
        "pcast", "stop_gradient", "optimization_barrier", "split", "slice", "rev", "iota", "axis_index", "transpose",
        "convert_element_type", "reduce_precision", "select_n", "empty", "hccl_invariant",
    }
)  # fmt: skip
"""Fused like elementwise equations, and no operations: they move or choose."""

_MOVES = frozenset({"concatenate", "pad", "device_put", "sort"})
"""Read and written as wholes, without operations; sort's comparisons are not counted."""

_PARTS = {"dynamic_slice": -1, "gather": -1, "dynamic_update_slice": 1}
"""Read and written in part: the operand that is as large as the part, -1 for the result. See ``_part`` for scatters."""

_REDUCTIONS = ("reduce_", "argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")

_WITH_RULES = ("custom_call", "pallas_call", "reduce", "sort")
"""Their jaxprs combine two elements, or cannot be looked into: no calls. So are those of scatters."""


def work_of(equation: JaxprEqn, traffic: Mapping[int, float]) -> Work:
    """The work of one equation that does not communicate; what it calls is counted with it.

    A while loop of unknown length counts as one trip, a cond as its costliest branch, and a kernel that JAX cannot look
    into as memory traffic alone.
    """
    name = short_name(equation)
    inner = [jaxpr if isinstance(jaxpr, Jaxpr) else jaxpr.jaxpr for jaxpr in jaxprs_in_params(equation.params)]
    if inner and name not in _WITH_RULES and not name.startswith("scatter"):
        works = [work_within(jaxpr) for jaxpr in inner]
        if name == "cond":
            return max(works)
        total = Work()
        for work in works:
            total = total.plus(work)
        return total.times(equation.params["length"]) if name == "scan" else total
    return Work(_flops(name, equation), traffic.get(id(equation), 0.0))


def work_within(jaxpr: Jaxpr) -> Work:
    """The work of all equations of a jaxpr."""
    total, moved = Work(), traffic_of(jaxpr)
    for equation in jaxpr.eqns:
        total = total.plus(work_of(equation, moved))
    return total


def _flops(name: str, equation: JaxprEqn) -> float:
    out = sum(_size(aval) for aval in shaped(equation.outvars))
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        (left, *_) = shaped(equation.invars)
        return 2.0 * out * math.prod(left.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = shaped(equation.invars)[1]
        features = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * out * _size(kernel) / features
    if name in _VIEWS or name in _MOVES or name in _PARTS:
        return 0.0
    if name == "reduce":
        operands = shaped(equation.invars)  # the second half of them are where each reduction starts
        return float(sum(_size(aval) for aval in operands[: len(operands) // 2]))
    if name.startswith(_REDUCTIONS):
        return float(sum(_size(aval) for aval in shaped(equation.invars)))
    if name.startswith("scatter"):
        return float(_size(shaped(equation.invars)[-1])) if name != "scatter" else 0.0
    return float(out)


@lru_cache(maxsize=512)
def traffic_of(jaxpr: Jaxpr) -> Mapping[int, float]:
    """Bytes that each equation of a jaxpr reads and writes, by its id; the jaxpr is kept, so that ids stay."""
    fused = set(map(id, filter(_fuses, jaxpr.eqns)))
    written = {v for v in jaxpr.outvars if not isinstance(v, Literal)} | set(jaxpr.invars) | set(jaxpr.constvars)
    for equation in jaxpr.eqns:
        if id(equation) not in fused:
            written |= _variables(equation.invars) | set(equation.outvars)
    return {
        id(equation): _moved(equation, written)
        for equation in jaxpr.eqns
        if not (short_name(equation) in _VIEWS and id(equation) in fused and not _copies(equation, written))
    }


def _moved(equation: JaxprEqn, written: set[Var]) -> float:
    part = _part(short_name(equation))
    if part is not None:
        return 2 * _bytes((equation.outvars if part < 0 else equation.invars)[part].aval)
    moving = [v for v in _variables(equation.invars) if v in written] + [v for v in equation.outvars if v in written]
    return sum(_bytes(v.aval) for v in moving)


def _part(name: str) -> int | None:
    """The operand that is as large as the part an equation touches, -1 for its result; None if it touches wholes."""
    return 2 if name.startswith("scatter") else _PARTS.get(name)


def _fuses(equation: JaxprEqn) -> bool:
    name = short_name(equation)
    if name in _VIEWS:
        return True
    heavy = name in _MOVES or _part(name) is not None or name.startswith((*_REDUCTIONS, "dot_general", "conv_general"))
    return not heavy and not any(True for _ in jaxprs_in_params(equation.params))


def _copies(equation: JaxprEqn, written: set[Var]) -> bool:
    """True if a view ends where something else reads it: only then its bytes move."""
    return short_name(equation) in ("convert_element_type", "transpose", "select_n", "rev") and any(
        v in written for v in equation.outvars
    )


def _variables(atoms: Iterable[Any]) -> set[Var]:
    return {v for v in atoms if not isinstance(v, Literal)}


def _size(aval: Any) -> int:
    return math.prod(aval.shape) if hasattr(aval, "shape") else 0


def _bytes(aval: Any) -> float:
    if not hasattr(aval, "shape") or not aval.shape:
        return 0.0  # scalars stay in registers
    return float(_size(aval) * getattr(aval.dtype, "itemsize", 0))
