"""Steps and permutes of every algorithm: its formula against its jaxpr, its jaxpr against compiled HLO.

    python benchmarks/step_counts.py [--all | --quick]

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

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from _devices import force

force(8)  # before jax is imported

import jax  # noqa: E402
from _per_device import PerDevice  # noqa: E402

import hccljax  # noqa: E402, F401
from hccljax.algorithm.base import OPERATORS, algorithms, registered  # noqa: E402
from hccljax.demo.inspect_hlo import PERMUTE, executed  # noqa: E402
from hccljax.schedule import Schedule  # noqa: E402

RANKS = (2, 3, 4, 5, 6, 7, 8, 16, 31, 32, 64)
LARGE = (128, 256, 512, 1024)
CHEAP = 0.4  # seconds for the cases of one number of ranks; a larger number is left out where the last one took longer
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


def compiled_text(fun: PerDevice, p: int, nbytes: int, options: dict[str, Any]) -> str:
    """The optimised HLO for p CPU devices."""
    mesh = jax.make_mesh((p,), ("rank",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:p])
    spec = jax.sharding.PartitionSpec("rank")
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped).lower(fun.operand(p, nbytes, p)).compile(options).as_text()


def permutes_in(hlo: str) -> int:
    """Collective-permutes that a run of the module executes."""
    return executed(hlo)[PERMUTE]


def counted(operator: str, algorithm: str, p: int, nbytes: int) -> Row:
    """One case without its HLO."""
    nbytes = nbytes // (4 * p) * 4 * p  # p whole blocks of float32
    fun = PerDevice(algorithm, operator, p)
    formula = fun.algorithm.steps(operator, p, nbytes)
    return Row(operator, algorithm, p, nbytes, formula, fun.schedule(p, nbytes))


def compiled(row: Row) -> Row:
    """The case with its HLO, if it is one to compile."""
    if row.p > 8 or row.operator not in COMPILED:
        return row
    fun = PerDevice(row.algorithm, row.operator, row.p)
    hlo = permutes_in(compiled_text(fun, row.p, row.nbytes, QUICK))
    if hlo == row.schedule.permutes:
        return replace(row, hlo=hlo)
    return replace(row, hlo=hlo, merged=permutes_in(compiled_text(fun, row.p, row.nbytes, UNMERGED)) - hlo)


def rows(ranks: Iterable[int]) -> Iterator[Row]:
    """Every case; of its two sizes only the short one where the long one has the same figures."""
    for operator in OPERATORS:
        for algorithm in algorithms():
            if registered(algorithm).supports(operator):
                yield from rows_of(operator, algorithm, ranks)


def rows_of(operator: str, algorithm: str, ranks: Iterable[int]) -> Iterator[Row]:
    """The cases of one algorithm's operator; large numbers of ranks only where 64 were cheap to trace."""
    seconds = 0.0
    for p in ranks:
        if p > 64 and seconds > CHEAP:
            return
        start = time.perf_counter()
        short, long = (counted(operator, algorithm, p, nbytes) for nbytes in (SHORT, LONG))
        seconds = time.perf_counter() - start
        yield short
        if long.figures != short.figures:
            yield long


def main() -> int:
    """Prints the table; 1 if something is not as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="count for every number of ranks from 2 to 64 (minutes)")
    parser.add_argument("--quick", action="store_true", help="count for 2 to 8 ranks, without compiling anything")
    options = parser.parse_args()
    ranks = (
        [p for p in RANKS if p <= 8] if options.quick else [*range(2, 65), *LARGE] if options.all else [*RANKS, *LARGE]
    )
    start, wrong, total = time.perf_counter(), 0, 0
    print(f"jax {jax.__version__}, float32, forced CPU devices\n\n{HEADER}\n{'-' * len(HEADER)}")
    for row in rows(ranks):
        row = row if options.quick else compiled(row)
        if row.p in (*RANKS, *LARGE) or row.wrong:
            print(row, flush=True)
        total, wrong = total + 1, wrong + bool(row.wrong)
    print(f"\n{total} cases, {wrong} wrong, {time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
