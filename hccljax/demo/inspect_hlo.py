"""What a compiled program communicates, read from its HLO, against what the algorithm should communicate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import jax

from hccljax.algorithm import Algorithm, run
from hccljax.group import Group
from hccljax.reduction import Reduction, reduction
from hccljax.schedule import count
from hccljax.selection import explain

PERMUTE, ALL_REDUCE = "collective-permute", "all-reduce"
EXCHANGES = ("all-to-all", "all-gather", "reduce-scatter")


class BypassedError(Exception):
    """A compiled program reduces otherwise than by the algorithm it was given."""


_HEADER = re.compile(r"(ENTRY )?%([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(rf" ({'|'.join((PERMUTE, ALL_REDUCE, *EXCHANGES))})(?:-start)?\(")
_CALLED = re.compile(r"(?:body|condition|to_apply|calls)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def executed(hlo: str) -> Counter[str]:
    """How often a run of the module executes each kind of collective: operations times the trips of their loops."""
    computations: dict[str, list[str]] = {}
    entry = ""
    lines: list[str] = []
    for line in hlo.splitlines():
        header = _HEADER.match(line)
        if header:
            entry = header[2] if header[1] else entry
            computations[header[2]] = lines = []
        else:
            lines.append(re.sub(r", metadata=\{.*?\}", "", line))
    return _executed(computations, entry)


def _executed(computations: dict[str, list[str]], name: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for line in computations[name]:
        total.update(_OPERATION.findall(line))
        inner: Counter[str] = Counter()
        for called in _CALLED.findall(line):
            inner += _executed(computations, called)
        for branches in _BRANCHES.findall(line):
            for branch in re.findall(r"%([\w.\-]+)", branches):
                inner |= _executed(computations, branch)  # one branch runs: the most of each kind
        trips = _TRIPS.search(line)
        if inner and " while(" in line and trips is None:
            raise ValueError(f"a loop of unknown length communicates: {line.strip()}")
        total.update({kind: times * (int(trips[1]) if trips else 1) for kind, times in inner.items()})
    return total


@dataclass(frozen=True)
class Expected:
    """What a step communicates if an algorithm all-reduces its arrays, and nobody else does.

    Attributes:
      permutes: permutes of all the all-reduces.
      exchanges: their full-mesh communications.
      native: the algorithm is XLA's own, which is an all-reduce (XLA may join those of several arrays).
    """

    permutes: int
    exchanges: int
    native: bool


def expected(arrays: Iterable[jax.ShapeDtypeStruct], ranks: int, topology: str, algorithm: str) -> Expected:
    """Counts the algorithm's own kernels, so that a step which runs another algorithm cannot agree with itself."""
    permutes, exchanges, native = 0, 0, False
    for array in arrays:
        decision = explain("all_reduce", array.size * array.dtype.itemsize, ranks, topology, algorithm)
        if decision.record is not None:
            arguments = Group("ranks", levels=decision.tiers), reduction("sum")
            counts = count(partial(_kernel, decision.record, *arguments), array, axis_sizes={"ranks": ranks})
            permutes, exchanges = permutes + counts.permutes, exchanges + counts.exchanges
            native = native or decision.algorithm == "native"
    return Expected(permutes, exchanges, native)


def _kernel(algorithm: Algorithm, group: Group, op: Reduction, x: jax.Array) -> jax.Array:
    return run(algorithm, "all_reduce", x, group, op)


def check(found: Counter[str], expected: Expected) -> None:
    """Raises BypassedError unless a program executes exactly the collectives that are expected."""
    exchanges = sum(found[kind] for kind in EXCHANGES)
    if expected.native:
        if not found[ALL_REDUCE] or found[PERMUTE] or exchanges:
            raise BypassedError(f"expected {ALL_REDUCE} and nothing else, but it runs {described(found)}")
    elif found[ALL_REDUCE]:
        raise BypassedError(f"it runs {described(found)}; expected no {ALL_REDUCE}: only XLA's own sum is one")
    elif (found[PERMUTE], exchanges) != (expected.permutes, expected.exchanges) or not found:
        raise BypassedError(
            f"expected {expected.permutes} {PERMUTE} and {expected.exchanges} of {', '.join(EXCHANGES)}, "
            f"but it runs {described(found)}"
        )


def described(found: Counter[str]) -> str:
    """The collectives of a program in words."""
    return ", ".join(f"{times} {kind}" for kind, times in sorted(found.items())) or "no collective at all"
