"""Which equations of a jaxpr are needed for the outputs that somebody uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

Flags = tuple[bool, ...]

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "shard_map": "jaxpr",
}
"""Primitives that run one jaxpr once, and the parameter that holds it."""


def short_name(equation: JaxprEqn) -> str:
    """The primitive's name; an asynchronous ``…_start`` is the communication, its ``…_done`` is local."""
    return str(equation.primitive.name).removesuffix("_start")


def shaped(atoms: Iterable[Var | Literal]) -> list[Any]:
    """The abstract values of arrays; JAX types them as any abstract value."""
    return [v.aval for v in atoms]


def inner_jaxpr(equation: JaxprEqn) -> Jaxpr:
    """The only jaxpr of a call or a scan."""
    inner: Any = equation.params[CALLS.get(short_name(equation), "jaxpr")]
    return inner if isinstance(inner, Jaxpr) else inner.jaxpr


@dataclass(frozen=True)
class Live:
    """What the used outputs of a jaxpr need.

    Attributes:
      equations: the needed equations in order, each with a flag for every output: is it used?
      inputs: a flag for every input of the jaxpr: is it used?
    """

    equations: tuple[tuple[JaxprEqn, Flags], ...]
    inputs: Flags


@lru_cache(maxsize=512)  # a loop's body is walked once for each trip
def live(jaxpr: Jaxpr, used: Flags) -> Live:
    """Backward liveness, given which outputs are used.

    Equations with effects, such as printing, are needed whatever is used.
    """
    needed = _variables(jaxpr.outvars, used)
    kept = []
    for equation in reversed(jaxpr.eqns):
        flags = tuple(v in needed for v in equation.outvars)
        if any(flags) or _has_effect(equation):
            kept.append((equation, flags))
            needed |= _variables(equation.invars, _inputs_used(equation, flags))
    return Live(tuple(reversed(kept)), tuple(v in needed for v in jaxpr.invars))


def _variables(atoms: Iterable[Var | Literal], flags: Flags) -> set[Var]:
    return {v for v, flag in zip(atoms, flags, strict=True) if flag and not isinstance(v, Literal)}


def _has_effect(equation: JaxprEqn) -> bool:
    # The axes that an equation communicates over are recorded as effects too, but keep nothing alive.
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects)


def _inputs_used(equation: JaxprEqn, used: Flags) -> Flags:
    name = short_name(equation)
    if name in CALLS:
        return live(inner_jaxpr(equation), used).inputs
    if name == "scan":
        return live(inner_jaxpr(equation), scan_used(equation, used)).inputs
    if name == "cond":
        branches = [live(branch.jaxpr, used).inputs for branch in equation.params["branches"]]
        return (True, *(any(flags) for flags in zip(*branches, strict=True)))
    return (True,) * len(equation.invars)


def scan_used(equation: JaxprEqn, used: Flags) -> Flags:
    """The outputs of a scan's body that are used: by the scan's own outputs, or by a later iteration."""
    body = inner_jaxpr(equation)
    consts, carries = equation.params["num_consts"], equation.params["num_carry"]
    while True:
        read = live(body, used).inputs[consts : consts + carries]
        wider = (*(a or b for a, b in zip(used[:carries], read, strict=True)), *used[carries:])
        if wider == used:
            return used
        used = wider
