"""Walks the jaxpr of a per-device function and hands every communication to an interpretation, in order.

The walk knows JAX's control flow; the interpretation knows what a communication means. Communications whose
results are unused are skipped, as XLA drops them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params

from hccljax.errors import ArgumentError
from hccljax.schedule.liveness import CALLS, Flags, inner_jaxpr, live, scan_used, shaped, short_name

Value = TypeVar("Value")

ONE_SHOT = frozenset(
    {
        "hccl_mesh_exchange", "hccl_mesh_gather", "all_to_all",
        "psum", "psum_invariant", "unreduced_psum", "pmax", "pmin",
        "all_gather", "all_gather_invariant", "all_gather_reduced",
        "reduce_scatter", "unreduced_reduce_scatter",
    }
)  # fmt: skip
"""Primitives in which every rank talks to every other at once."""

PERMUTES = frozenset({"hccl_permute", "ppermute"})
"""Primitives that send at most one message from each rank."""

_UNCOUNTABLE = frozenset({"ragged_all_to_all", "pbroadcast", "psend", "precv"})
_LINKED = frozenset({"hccl_linear", "hccl_reduce"})  # calls of a function that is no jaxpr yet


class Interpretation(Protocol[Value]):
    """What values and communications stand for; values compare with ``==``."""

    nothing: Value  # a constant, or an argument: there from the start

    @property
    def history(self) -> Sequence[object]:
        """The communications so far, in order, comparable with ``==``."""
        ...

    def join(self, values: Sequence[Value]) -> Value:
        """The result of a local computation on these operands."""
        ...

    def communicate(self, equation: JaxprEqn, operand: Value) -> Value:
        """The result of a communication."""
        ...

    def fork(self) -> Interpretation[Value]:
        """An independent copy, to look into another branch."""
        ...


@dataclass(frozen=True)
class Walker(Generic[Value]):
    """One walk.

    Attributes:
      interpretation: what the communications are handed to.
      axis_sizes: the mapped axes, under which inner functions are traced.
    """

    interpretation: Interpretation[Value]
    axis_sizes: Mapping[str, int]
    _traced: dict[Any, Jaxpr] = field(default_factory=dict, repr=False, compare=False)

    def walk(self, jaxpr: Jaxpr, inputs: Sequence[Value], used: Sequence[bool]) -> list[Value]:
        """The jaxpr's outputs; only what the used ones need is interpreted, the others are ``nothing``."""
        nothing = self.interpretation.nothing
        values = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atoms: Sequence[Var | Literal]) -> list[Value]:
            return [nothing if isinstance(v, Literal) else values.get(v, nothing) for v in atoms]

        for equation, outputs_used in live(jaxpr, tuple(used)).equations:
            handler = _HANDLERS.get(short_name(equation), _local)
            outputs = handler(self, equation, outputs_used, read(equation.invars))
            values.update(zip(equation.outvars, outputs, strict=True))
        return read(jaxpr.outvars)

    def traced(self, fun: Callable[..., Any], avals: Sequence[Any]) -> Jaxpr:
        """The jaxpr of a per-device function, hashable by value; traced once, for loops come back to it."""
        operands = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
        if (fun, operands) not in self._traced:
            axes = list(self.axis_sizes.items())
            self._traced[fun, operands] = jax.make_jaxpr(fun, axis_env=axes)(*operands).jaxpr
        return self._traced[fun, operands]

    def local(self, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """The outputs of an equation that does not communicate: each needs all operands."""
        return [self.interpretation.join(operands)] * len(equation.outvars)


def communication_in(jaxpr: Jaxpr) -> str | None:
    """The name of the first communication inside a jaxpr, at any depth, or None."""
    for equation in jaxpr.eqns:
        name = short_name(equation)
        if name in ONE_SHOT | PERMUTES | _UNCOUNTABLE | _LINKED:
            return name
        for inner in jaxprs_in_params(equation.params):
            found = communication_in(inner)
            if found is not None:
                return found
    return None


# One handler for each kind of equation: (walker, equation, used outputs, operands) → outputs.
Walk = Walker[Any]
Values = list[Any]
Handler = Callable[[Walk, JaxprEqn, Flags, Values], Values]


def _local(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    for inner in jaxprs_in_params(equation.params):
        found = communication_in(inner)
        if found is not None:
            raise ArgumentError(
                f"{equation.primitive.name!r} contains the communication {found!r}, and how often it runs is "
                f"unknown while tracing; expected a loop of known length: lax.scan, or lax.fori_loop with "
                f"static bounds"
            )
    return walker.local(equation, operands)


def _communication(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    axes = equation.params.get("axes", ())
    if axes and all(isinstance(axis, int) for axis in axes):  # a psum over array dimensions only
        return walker.local(equation, operands)
    result = walker.interpretation.communicate(equation, walker.interpretation.join(operands))
    return [result] * len(equation.outvars)


def _uncountable(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    raise ArgumentError(
        f"{equation.primitive.name!r} cannot be counted: its messages are not known while tracing; "
        f"expected permutes, or one of {', '.join(sorted(ONE_SHOT))}"
    )


def _call(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    return walker.walk(inner_jaxpr(equation), operands, used)


def _linked(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    # Traced unchecked, whatever the mode around it: replication types do not change what is communicated.
    return walker.walk(walker.traced(equation.params["forward"], shaped(equation.invars)), operands, used)


def _scan(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    body, reading = inner_jaxpr(equation), walker.interpretation
    first, carries = equation.params["num_consts"], equation.params["num_carry"]
    consts, carry, slices = operands[:first], operands[first : first + carries], operands[first + carries :]
    body_used = scan_used(equation, used)
    stacked = [reading.nothing] * (len(used) - carries)
    for _ in range(equation.params["length"]):
        communicated = len(reading.history)
        out = walker.walk(body, [*consts, *carry, *slices], body_used)
        stacked = [reading.join(pair) for pair in zip(stacked, out[carries:], strict=True)]
        if len(reading.history) == communicated and out[:carries] == carry:
            break  # silent, and nothing moved: the other iterations would add nothing
        carry = out[:carries]
    return [*carry, *stacked]


def _cond(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    branches = [branch.jaxpr for branch in equation.params["branches"]]
    if all(communication_in(branch) is None for branch in branches):
        return walker.local(equation, operands)
    reading = walker.interpretation
    inputs = [reading.join([operands[0], operand]) for operand in operands[1:]]
    readings = [reading, *(reading.fork() for _ in branches[1:])]
    start = len(reading.history)
    outputs = [
        Walker(each, walker.axis_sizes).walk(branch, inputs, used)
        for each, branch in zip(readings, branches, strict=True)
    ]
    expected = readings[0].history[start:]
    for k, other in enumerate(readings):
        if other.history[start:] != expected:
            names = [", ".join(map(str, each.history[start:])) or "nothing" for each in (readings[0], other)]
            raise ArgumentError(
                f"'cond' with branches that do not communicate alike: branch 0 runs {names[0]}; branch {k} "
                f"runs {names[1]}; expected the same communications in every branch, else ranks that take "
                f"different ones wait for each other: communicate outside lax.cond, and select the result"
            )
    return [reading.join([operands[0], *column]) for column in zip(*outputs, strict=True)]


_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(ONE_SHOT | PERMUTES, _communication),
    **dict.fromkeys(_UNCOUNTABLE, _uncountable),
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(_LINKED, _linked),
    "scan": _scan,
    "cond": _cond,
}
