"""Steps and permutes of every algorithm: its formula against its jaxpr, its jaxpr against compiled HLO.

    python benchmarks/step_counts.py

formula    the record's own steps(operator, p, bytes)
steps      longest chain of dependent communications in the jaxpr; has to equal the formula
permutes   permutes executed, after dead-code elimination; has to equal HLO
one-shot   full-mesh communications executed (all-to-all, all-gather, psum …); HLO has no permutes for them
rounds     steps if a rank sends and receives at most one message at a time; a one-shot takes p - 1
HLO        collective-permutes compiled for p CPU devices, times the trips of the loops around them (p ≤ 8);
           where XLA merges identical ones, the note says how many, found by compiling without that pass

An algorithm that works over all tiers (pipeline) has servers of two ranks here, where p is even.

Exits with 1 if a figure is not what it has to be.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from _devices import force

force(8)  # before jax is imported

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import hccljax  # noqa: E402, F401
from hccljax.algorithm.base import OPERATORS, algorithms, registered, run  # noqa: E402
from hccljax.group import Group  # noqa: E402
from hccljax.reduction import reduction  # noqa: E402
from hccljax.schedule import Schedule, trace  # noqa: E402

RANKS = (2, 3, 4, 5, 6, 7, 8, 16, 31, 32, 64)
COMPILED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
# Algorithms change their shape with the size of the message: one size on each side of every threshold. Bytes.
SHORT, LONG = 16 * 1024, 64 * 2**20
# Code quality does not change which permutes there are, but takes half of the compile time.
QUICK = {"xla_backend_optimization_level": 0}
UNMERGED = {**QUICK, "xla_disable_hlo_passes": "cse"}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    nbytes is the whole message, p blocks; merged is how many more permutes the HLO has if XLA merges none.
    """

    operator: str
    algorithm: str
    p: int
    nbytes: int
    formula: int
    schedule: Schedule
    hlo: int | None = None
    merged: int = 0

    @property
    def figures(self) -> tuple[int, ...]:
        """What makes a second size worth a line."""
        schedule = self.schedule
        return (self.formula, schedule.steps, schedule.permutes, schedule.exchanges, schedule.rounds)

    @property
    def wrong(self) -> list[str]:
        """What is not as it has to be."""
        wrong = []
        if self.formula != self.schedule.steps:
            also = ", formula = rounds" if self.formula == self.schedule.rounds else ""
            wrong.append(f"formula ≠ steps{also}")
        if self.hlo is not None and self.hlo + self.merged != self.schedule.permutes:
            wrong.append("HLO ≠ permutes")
        return wrong

    @property
    def note(self) -> str:
        """What is wrong, else why the HLO has fewer permutes, or none."""
        if self.wrong:
            return f"WRONG: {'; '.join(self.wrong)}"
        if self.merged:
            return f"XLA merges {self.merged} identical permutes"
        if self.algorithm == "native":
            return "XLA's own collective: nothing to compare"
        if self.schedule.exchanges and not self.schedule.permutes:
            return "one-shot only: no permutes"
        return "one-shot beside permutes" if self.schedule.exchanges else ""

    def __str__(self) -> str:
        schedule, hlo = self.schedule, "" if self.hlo is None else str(self.hlo)
        return (
            f"{self.operator:<15}{self.algorithm:<13}{self.p:>4}{self.nbytes:>12,}{self.formula:>9}{schedule.steps:>7}"
            f"{schedule.permutes:>10}{schedule.exchanges:>10}{schedule.rounds:>8}{hlo:>6}  {self.note}".rstrip()
        )


HEADER = (
    f"{'operator':<15}{'algorithm':<13}{'p':>4}{'bytes':>12}{'formula':>9}{'steps':>7}"
    f"{'permutes':>10}{'one-shot':>10}{'rounds':>8}{'HLO':>6}"
)


class PerDevice:
    """One operator of one algorithm as a per-device function of one array."""

    def __init__(self, algorithm: str, operator: str, p: int):
        self.algorithm, self.operator, self.group = registered(algorithm), operator, Group("rank")
        if self.algorithm.over is not None:
            tiers = (p,) if p % 2 else (2, p // 2)
            self.algorithm, self.group = self.algorithm.over(tiers), Group("rank", levels=tiers)

    def __call__(self, x: jax.Array) -> jax.Array:
        return run(self.algorithm, self.operator, x, self.group, reduction("sum"), 0)

    def operand(self, p: int, nbytes: int, ranks: int = 1) -> jax.ShapeDtypeStruct:
        """One rank's operand of a message of nbytes, for that many ranks one after the other."""
        block = nbytes // p // 4
        shape = {"all_gather": (block,), "gather": (block,)}.get(self.operator, (p * block,))
        if self.operator in ("reduce_scatter", "scatter", "all_to_all"):
            shape = (p, block)
        return jax.ShapeDtypeStruct((ranks * shape[0], *shape[1:]), jnp.float32)


def compiled_text(fun: PerDevice, p: int, nbytes: int, options: dict[str, Any]) -> str:
    """The optimised HLO for p CPU devices."""
    mesh = jax.make_mesh((p,), ("rank",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:p])
    spec = jax.sharding.PartitionSpec("rank")
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped).lower(fun.operand(p, nbytes, p)).compile(options).as_text()


def permutes_in(hlo: str) -> int:
    """Collective-permutes that a run of the module executes."""
    computations, entry, name = {}, "", ""
    for line in hlo.splitlines():
        header = re.match(r"(ENTRY )?%([\w.\-]+) \(.*\{$", line)
        if header:
            name = header[2]
            computations[name] = []
            entry = name if header[1] else entry
        elif name:
            computations[name].append(re.sub(r", metadata=\{.*?\}", "", line))
    return _executed(computations, entry)


def _executed(computations: dict[str, list[str]], name: str) -> int:
    total = 0
    for line in computations[name]:
        total += bool(re.search(r" collective-permute(-start)?\(", line))
        called = re.findall(r"(?:body|condition|to_apply|calls)=%([\w.\-]+)", line)
        inner = sum(_executed(computations, other) for other in called)
        trips = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
        if " while(" in line and inner and trips is None:
            raise ValueError(f"a loop of unknown length contains collective-permutes: {line.strip()}")
        total += inner * (int(trips[1]) if trips else 1)
        for branches in re.findall(r"branch_computations=\{(.*?)\}", line):
            total += max(_executed(computations, other) for other in re.findall(r"%([\w.\-]+)", branches))
    return total


def counted(operator: str, algorithm: str, p: int, nbytes: int) -> Row:
    """One case without its HLO."""
    nbytes = nbytes // (4 * p) * 4 * p  # p whole blocks of float32
    fun = PerDevice(algorithm, operator, p)
    schedule = trace(fun, fun.operand(p, nbytes), axis_sizes={"rank": p})
    return Row(operator, algorithm, p, nbytes, fun.algorithm.steps(operator, p, nbytes), schedule)


def compiled(row: Row) -> Row:
    """The case with its HLO, if it is one to compile."""
    if row.p > 8 or row.operator not in COMPILED:
        return row
    fun = PerDevice(row.algorithm, row.operator, row.p)
    hlo = permutes_in(compiled_text(fun, row.p, row.nbytes, QUICK))
    if hlo == row.schedule.permutes:
        return replace(row, hlo=hlo)
    return replace(row, hlo=hlo, merged=permutes_in(compiled_text(fun, row.p, row.nbytes, UNMERGED)) - hlo)


def rows() -> Iterator[Row]:
    """Every case; of its two sizes only the short one where the long one has the same figures."""
    for operator in OPERATORS:
        for algorithm in algorithms():
            if registered(algorithm).supports(operator):
                for p in RANKS:
                    short, long = (counted(operator, algorithm, p, nbytes) for nbytes in (SHORT, LONG))
                    yield compiled(short)
                    if long.figures != short.figures:
                        yield compiled(long)


def main() -> int:
    """Prints the table; 1 if something is not as it has to be."""
    start, wrong, total = time.perf_counter(), 0, 0
    print(f"jax {jax.__version__}, float32, forced CPU devices\n\n{HEADER}\n{'-' * len(HEADER)}")
    for row in rows():
        print(row, flush=True)
        total, wrong = total + 1, wrong + bool(row.wrong)
    print(f"\n{total} cases, {wrong} wrong, {time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
