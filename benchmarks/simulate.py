"""How fast schedules are simulated, choices made and explained, and how good the choices are.

    python benchmarks/simulate.py [--quick]

Every target stands beside its figure. Tracing is part of the time of a simulation.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator

import _devices

_devices.force(1)

import jax  # noqa: E402
from _report import Finding  # noqa: E402

import hccljax  # noqa: E402
from hccljax.selection.choice import choose  # noqa: E402
from hccljax.selection.cost import Field, fastest  # noqa: E402
from hccljax.topology import Level, Topology, as_topology  # noqa: E402

RANKS = 16_384
MIB, GIB = 1 << 20, 1 << 30


def median(work: Callable[[], object], times: int = 5) -> float:
    """Seconds that work takes, the median of several times."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def simulated(algorithm: str, operator: str, topology: Topology) -> None:
    """Traces and simulates one collective of 1 KiB a block on all ranks."""
    call = getattr(hccljax, operator)
    x = jax.ShapeDtypeStruct((topology.ranks, 256) if operator == "all_to_all" else (topology.ranks * 256,), "float32")
    blocks = (0, 0) if operator == "all_to_all" else ()
    fn = lambda x: call(x, "r", *blocks, algorithm=algorithm)  # noqa: E731
    hccljax.simulate(hccljax.trace(fn, x, axis_sizes={"r": topology.ranks}), topology)


def speed(ranks: int = RANKS) -> Iterator[Finding]:
    one = Topology(levels=(Level("port", ranks, "switch", 25e9, 5e-6),))
    two = as_topology(f"atlas-800t-a2:{ranks // 8}x8")
    for what, topology in (("one tier", one), ("two tiers", two)):
        for name, operator in (
            ("H-D_R", "all_reduce"),
            ("NHR", "all_reduce"),
            ("tree", "all_reduce"),
            ("bruck", "all_to_all"),
        ):
            seconds = median(lambda: simulated(name, operator, topology), 3)  # noqa: B023
            yield Finding(f"{name} {operator} on {ranks:,} ranks, {what}", seconds, 1.0, "s")
        seconds = median(lambda: simulated("ring", "all_reduce", topology), 3)  # noqa: B023
        yield Finding(f"ring all_reduce on {ranks:,} ranks, {what}", seconds, 2.0, "s")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Finding("most memory of all of that", memory, 1000, "MB")


def choices() -> Iterator[Finding]:
    big, sizes = as_topology("atlas-800t-a2:128x8"), [MIB, 3 * MIB, 77_777, 10_000, 256 * MIB, 12 * MIB, 500_000]
    str(hccljax.explain("all_reduce", MIB, big.ranks, big))
    times = []
    for nbytes in sizes * 3:
        start = time.perf_counter()
        str(hccljax.explain("all_reduce", nbytes, big.ranks, big))
        times.append(time.perf_counter() - start)
    yield Finding("explain on 1,024 ranks, after the first call (median)", 1e3 * statistics.median(times), 100, "ms")
    small, times = as_topology("atlas-800t-a2:4x8"), []
    choose("all_reduce", MIB, small.ranks, "fastest", small)
    for nbytes in range(100_000, 100_000_000, 4_567_890):
        start = time.perf_counter()
        choose("all_reduce", nbytes, small.ranks, "fastest", small)
        times.append(time.perf_counter() - start)
    yield Finding('choosing "fastest" at a further call site (median)', 1e3 * statistics.median(times), 5, "ms")


def quality() -> Iterator[Finding]:
    """Predicted times against bandwidth bound and latency together."""
    for spec in ("4x8", "32x8"):
        topology = as_topology(f"atlas-800t-a2:{spec}")
        for operator in ("all_reduce", "all_gather", "reduce_scatter"):
            for nbytes, limit, buffer in ((GIB, 1.05, 512 * MIB), (GIB, 1.05, 200 * MIB), (64 * MIB, 1.15, 200 * MIB)):
                bound = hccljax.lower_bound(operator, nbytes, topology)
                field = Field(operator, topology, buffer)
                best, _, _ = fastest(field, nbytes)
                seconds = float(field.seconds(best.record, [nbytes])[0])
                what = f"{operator} of {nbytes // MIB} MiB on {spec}, buffer {buffer // MIB} MiB: {best.algorithm}"
                yield Finding(what, seconds / (bound.bandwidth + bound.latency), limit)


def main() -> None:
    parser = argparse.ArgumentParser(description="Targets of simulation and choice, with their figures.")
    parser.add_argument("--quick", action="store_true", help="64 ranks in place of 16,384")
    quick = parser.parse_args().quick
    for part in (lambda: speed(64 if quick else RANKS), choices, quality):
        for finding in part():
            print(finding, flush=True)


if __name__ == "__main__":
    main()
