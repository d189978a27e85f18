"""Walks the jaxpr of a per-device function and hands every communication to an interpretation, in order.

The walk knows JAX's control flow; the interpretation knows what a communication means. Communications whose
results are unused are skipped, as XLA drops them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params

from hccljax.errors import ArgumentError
from hccljax.schedule.collective import COLLECTIVES
from hccljax.schedule.liveness import CALLS, Flags, inner_jaxpr, live, scan_used, shaped, short_name
from hccljax.schedule.source import Source, at, source_of

Value = TypeVar("Value")
Body = Callable[[list[Value]], list[Value]]
Branch = Callable[["Interpretation[Value]"], list[Value]]

_UNCOUNTABLE = frozenset({"ragged_all_to_all", "pbroadcast", "psend", "precv"})
_LINKED = frozenset({"hccl_linear", "hccl_reduce"})  # calls of a function that is no jaxpr yet


class Interpretation(Protocol[Value]):
    """What values and communications stand for."""

    nothing: Value  # a constant, or an argument: there from the start

    def enter(self, jaxpr: Jaxpr) -> None:
        """Called before the equations of a jaxpr."""
        ...

    def local(self, equation: JaxprEqn, operands: Sequence[Value]) -> Value:
        """The results of an equation that does not communicate."""
        ...

    def join(self, values: Sequence[Value]) -> Value:
        """What depends on all of these."""
        ...

    def communicate(self, equation: JaxprEqn, operand: Value, source: Source | None) -> Value:
        """The result of a communication that the user's code asks for at source."""
        ...

    def loop(self, trips: int, body: Body[Value], carry: Sequence[Value], stacked: int) -> list[Value]:
        """The last carry and the stacked outputs of a loop; body takes and gives one trip's values, carry first."""
        ...

    def alternatives(self, branches: Sequence[Branch[Value]], source: Source | None) -> list[list[Value]]:
        """The outputs of branches of which one will be taken, each a function of the interpretation to walk it in.

        Raises ArgumentError if they do not communicate alike.
        """
        ...


@dataclass(frozen=True)
class Walker(Generic[Value]):
    """One walk.

    Attributes:
      interpretation: what the communications are handed to.
      axis_sizes: the mapped axes, under which inner functions are traced.
      source: the user's line, inside a collective call of hccljax; None where equations know their own.
      inside: True inside a collective call of hccljax: what it computes belongs to the communication.
      instead: what to walk in place of a collective of ``jax.lax``: (equation) → a per-device function of its operands
        that returns a sequence of its results, equal to any other that communicates alike; None leaves it.
    """

    interpretation: Interpretation[Value]
    axis_sizes: Mapping[str, int]
    source: Source | None = None
    instead: Callable[[JaxprEqn], Callable[..., Any] | None] | None = None
    inside: bool = False
    _traced: dict[Any, Jaxpr] = field(default_factory=dict, repr=False, compare=False)

    def walk(self, jaxpr: Jaxpr, inputs: Sequence[Value], used: Sequence[bool]) -> list[Value]:
        """The jaxpr's outputs; only what the used ones need is interpreted, the others are ``nothing``."""
        nothing = self.interpretation.nothing
        self.interpretation.enter(jaxpr)
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
        reading = self.interpretation
        value = reading.join(operands) if self.inside else reading.local(equation, operands)
        return [value] * len(equation.outvars)

    def source_of(self, equation: JaxprEqn) -> Source | None:
        """The user's line that an equation comes from."""
        return self.source or source_of(equation)


def communication_in(jaxpr: Jaxpr) -> JaxprEqn | None:
    """The first communication inside a jaxpr, at any depth, or None."""
    for equation in jaxpr.eqns:
        if short_name(equation) in COLLECTIVES.keys() | _UNCOUNTABLE | _LINKED:
            return equation
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
            name = found.params["name"] if short_name(found) in _LINKED else short_name(found)
            raise ArgumentError(
                f"{at(walker.source_of(equation))}{equation.primitive.name!r} contains the communication "
                f"{name!r} ({walker.source_of(found) or 'its line is not known'}), and how often it runs is unknown "
                f"while tracing; expected a loop of known length: lax.scan, or lax.fori_loop with static bounds"
            )
    return walker.local(equation, operands)


def _communication(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    axes = equation.params.get("axes", ())
    if axes and all(isinstance(axis, int) for axis in axes):  # a psum over array dimensions only
        return walker.local(equation, operands)
    fun = None if walker.instead is None else walker.instead(equation)
    if fun is not None:
        inner = walker.traced(fun, shaped(equation.invars))
        return replace(walker, source=walker.source_of(equation), instead=None, inside=True).walk(inner, operands, used)
    operand = walker.interpretation.join(operands)
    result = walker.interpretation.communicate(equation, operand, walker.source_of(equation))
    return [result] * len(equation.outvars)


def _uncountable(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    raise ArgumentError(
        f"{at(walker.source_of(equation))}{equation.primitive.name!r} cannot be counted: its messages are not known "
        f"while tracing; expected one of {', '.join(sorted(COLLECTIVES))}"
    )


def _call(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    return walker.walk(inner_jaxpr(equation), operands, used)


def _linked(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    # Traced unchecked, whatever the mode around it: replication types do not change what is communicated.
    inner = walker.traced(equation.params["forward"], shaped(equation.invars))
    # The equations inside know the line that walked here, not the one that called the collective.
    return replace(walker, source=walker.source_of(equation), inside=True).walk(inner, operands, used)


def _scan(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    body, length = inner_jaxpr(equation), equation.params["length"]
    first, carries = equation.params["num_consts"], equation.params["num_carry"]
    consts, carry, slices = operands[:first], operands[first : first + carries], operands[first + carries :]
    body_used = scan_used(equation, used)

    def trip(carry: Values) -> Values:
        return walker.walk(body, [*consts, *carry, *slices], body_used)

    return walker.interpretation.loop(length, trip, carry, len(used) - carries)


def _cond(walker: Walk, equation: JaxprEqn, used: Flags, operands: Values) -> Values:
    branches = [branch.jaxpr for branch in equation.params["branches"]]
    if all(communication_in(branch) is None for branch in branches):
        return walker.local(equation, operands)
    reading = walker.interpretation
    inputs = [reading.join([operands[0], operand]) for operand in operands[1:]]

    def walk_of(branch: Jaxpr) -> Branch[Any]:
        return lambda interpretation: replace(walker, interpretation=interpretation).walk(branch, inputs, used)

    outputs = reading.alternatives([walk_of(branch) for branch in branches], walker.source_of(equation))
    return [reading.join([operands[0], *column]) for column in zip(*outputs, strict=True)]


_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(COLLECTIVES, _communication),
    **dict.fromkeys(_UNCOUNTABLE, _uncountable),
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(_LINKED, _linked),
    "scan": _scan,
    "cond": _cond,
}
