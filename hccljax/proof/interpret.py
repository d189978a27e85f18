"""Interprets the jaxpr of a per-device function for all ranks at once: data as where it comes from, the rest as is.

An array of *data* holds codes (see ``terms``). Everything else a kernel computes with, such as ranks, indices and
conditions, is *known*: a plain NumPy array. Both have the ranks in front, [ranks, …], or [1, …] if all ranks agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from hccljax.proof.control import CONTROL
from hccljax.proof.exchange import exchanged, permuted, sources
from hccljax.proof.grain import held, held_params, held_starts, held_values
from hccljax.proof.indexing import gather, scatter
from hccljax.proof.known import evaluated
from hccljax.proof.movement import INDICES, RULES, aligned
from hccljax.proof.terms import SHIFT, UNRECEIVED, UNSET, Terms
from hccljax.proof.values import AXIS, Data, Value, unprovable
from hccljax.schedule.collective import COLLECTIVES
from hccljax.schedule.liveness import live, shaped, short_name
from hccljax.schedule.ranks import Ranks
from hccljax.schedule.reading import event_of

_COMBINING = {"add": "add", "add_any": "add", "mul": "mul", "max": "max", "min": "min"}
_REDUCING = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min"}
_SCATTERING = {"scatter": None, "scatter-add": "add", "scatter-mul": "mul", "scatter-max": "max", "scatter-min": "min"}
_ON_KNOWN: dict[str, Any] = {"add": np.add, "max": np.maximum, "min": np.minimum}


class Interpreter:
    """One interpretation on p ranks."""

    def __init__(self, p: int, terms: Terms, grain: int = 1):
        self.p, self.terms, self.grain = p, terms, grain
        self.traced: dict[Any, Any] = {}
        self._ranks = Ranks({AXIS: p})
        self._wiring: dict[int, tuple[JaxprEqn, np.ndarray]] = {}  # the equation is kept, so that its id stays its own

    def walk(
        self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Value], used: Sequence[bool]
    ) -> list[Value | None]:
        """The jaxpr's outputs; None for those that are not used."""
        values: dict[Any, Value | None] = dict(zip(jaxpr.invars, inputs, strict=True))
        values.update((v, np.asarray(c)[None]) for v, c in zip(jaxpr.constvars, consts, strict=True))

        def read(atoms: Sequence[Any]) -> list[Any]:
            return [np.asarray(v.val)[None] if type(v) is Literal else values.get(v) for v in atoms]

        for equation, outputs_used in live(jaxpr, tuple(used)).equations:
            name, operands = short_name(equation), read(equation.invars)
            if name in CONTROL:
                outputs = CONTROL[name](self, equation, operands, outputs_used)
            elif name in COLLECTIVES:
                outputs = [self._communicated(name, equation, operand) for operand in operands]
            else:
                outputs = self._local(name, equation, operands)
            values.update(zip(equation.outvars, outputs, strict=True))
        return read(jaxpr.outvars)

    def data(self, value: Value) -> np.ndarray:
        """The codes of a value; a known one is a constant of the kernel's own."""
        if isinstance(value, Data):
            return value.codes
        return self.terms.constant(held_values(value, self.grain))

    def select(self, which: np.ndarray, cases: Sequence[Value]) -> Value:
        """cases[which] on each rank, which [ranks] being known."""
        known = not any(isinstance(case, Data) for case in cases)
        arrays = [case if isinstance(case, np.ndarray) and known else self.data(case) for case in cases]
        *arrays, ranks = aligned([*arrays, np.broadcast_to(0, which.shape)])
        out = np.stack(arrays)[np.broadcast_to(which, ranks.shape), np.arange(len(ranks))]
        return out if known else Data(out)

    def _combine(self, left: np.ndarray, right: np.ndarray, primitive: str) -> np.ndarray:
        return self.terms.combine(left, right, primitive)

    def _communicated(self, name: str, equation: JaxprEqn, operand: Value) -> Value:
        if id(equation) not in self._wiring:
            event = event_of(equation, self._ranks, index=0)
            wiring = sources(event, self.p) if event.is_permute else event.members
            self._wiring[id(equation)] = (equation, wiring)
        wiring = self._wiring[id(equation)][1]
        known = not isinstance(operand, Data)
        values = operand if isinstance(operand, np.ndarray) else operand.codes
        values = np.broadcast_to(values, (self.p, *values.shape[1:]))
        if COLLECTIVES[name].sends_once:
            out = permuted(values, wiring, 0 if known else UNRECEIVED << SHIFT)
        else:
            combine = (lambda a, b, primitive: _ON_KNOWN[primitive](a, b)) if known else self._combine
            out = exchanged(name, equation, values, wiring, combine)
        return out if known else Data(out)

    def _local(self, name: str, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        if any(type(operand) is Data for operand in operands) and name != "optimization_barrier":
            return self._on_data(name, equation, operands)
        if name == "axis_index":
            return [np.arange(self.p, dtype=np.int32)]
        if name == "empty":
            shape = held(shaped(equation.outvars)[0].shape, self.grain)
            return [Data(np.full((1, *shape), UNSET << SHIFT, np.int64))]
        if name == "optimization_barrier":
            return list(operands)
        known: list[np.ndarray] = list(operands)  # type: ignore[arg-type]
        shapes = [aval.shape for aval in shaped(equation.outvars)]
        if name in RULES and name != "convert_element_type":
            return [RULES[name](equation.params, known, shapes[0])]
        return list(evaluated(equation, known, shapes))

    def _on_data(self, name: str, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        if name in _COMBINING:
            left, right = (self.data(operand) for operand in operands)
            return [Data(self._combine(left, right, _COMBINING[name]))]
        if name in _REDUCING:
            return [Data(self._reduced(equation, self.data(operands[0]), _REDUCING[name]))]
        if name not in RULES and name not in ("gather", "split") and name not in _SCATTERING:
            raise unprovable(f"computes {name!r} on the data")
        if name == "convert_element_type" and not np.issubdtype(equation.params["new_dtype"], np.inexact):
            raise unprovable(f"converts the data to {equation.params['new_dtype']}")
        where = INDICES.get(name, slice(1, 2) if name == "gather" or name in _SCATTERING else slice(0, 0))
        indices = range(len(operands))[where]
        if any(isinstance(operands[i], Data) for i in indices):
            raise unprovable(f"takes an index or a condition of {name!r} from the data")
        arrays: list[np.ndarray] = [
            operand if i in indices else self.data(operand)  # type: ignore[misc]
            for i, operand in enumerate(operands)
        ]
        return [Data(codes) for codes in self._moved(name, equation, arrays)]

    def _moved(self, name: str, equation: JaxprEqn, arrays: list[np.ndarray]) -> list[np.ndarray]:
        params = held_params(equation, self.grain)
        shape = held(shaped(equation.outvars)[0].shape, self.grain)
        if name == "split":
            return np.split(arrays[0], np.cumsum(params["sizes"])[:-1], params["axis"] + 1)
        if name == "select_n":
            arrays[0] = held_values(arrays[0], self.grain)
        if name.startswith("dynamic_"):
            first = INDICES[name].start
            full, window = shaped(equation.invars)[0].shape, shaped(equation.invars)[1].shape
            sizes = params["slice_sizes"] if name == "dynamic_slice" else window
            arrays[first:] = held_starts(arrays[first:], full, sizes, self.grain)
        try:
            if name in RULES:
                return [RULES[name](params, arrays, shape)]
            if name == "gather":
                return [gather(params, arrays, shape)]
            out, index, updates = scatter(params, arrays, shape)
        except IndexError:
            raise unprovable(f"indexes the data with {name!r} out of bounds, or at the same place twice") from None
        by = _SCATTERING[name]
        out[index] = updates if by is None else self._combine(out[index], updates, by)
        return [out]

    def _reduced(self, equation: JaxprEqn, codes: np.ndarray, primitive: str) -> np.ndarray:
        """Combined along array axes, in order."""
        held(shaped(equation.outvars)[0].shape, self.grain)  # the last axis stays what it is
        for axis in sorted(equation.params["axes"], reverse=True):
            if not codes.shape[axis + 1]:
                raise unprovable(f"reduces an axis of length 0 with {equation.primitive.name!r}")
            rows = list(np.moveaxis(codes, axis + 1, 0))
            codes = rows[0]
            for row in rows[1:]:
                codes = self._combine(codes, row, primitive)
        return codes
