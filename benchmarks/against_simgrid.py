"""Simulated times against SimGrid's SMPI: the same algorithms on the same links, by independent code.

    apt-get install libsimgrid-dev
    python benchmarks/against_simgrid.py [--ranks 1024]

SMPI runs an MPI program with its own collectives; the options below leave of its network model latency +
bytes/bandwidth. It adds an envelope of 16 bytes to each message, which the latency of its links makes up for. Where
SimGrid is not installed, a sentence says so.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import _devices

_devices.force(1)

import jax  # noqa: E402
from _report import Finding, bytes_text  # noqa: E402
from jax import lax  # noqa: E402

import hccljax  # noqa: E402
from hccljax.topology import Level, Topology  # noqa: E402

CLOSE = 1e-6
OPTIONS = (
    "network/model:CM02", "network/bandwidth-factor:1", "network/latency-factor:1", "network/weight-S:0",
    "network/TCP-gamma:0", "network/crosstraffic:0", "smpi/simulate-computation:no", "smpi/os:0:0:0", "smpi/or:0:0:0",
    "smpi/ois:0:0:0", "smpi/wtime:0", "smpi/send-is-detached-thresh:0", "smpi/host-speed:1Gf", "smpi/reduce:binomial",
    "smpi/bcast:binomial_tree",
)  # fmt: skip
ENVELOPE = 16  # bytes

PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
  int rank, count = atoi(argv[1]);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  float *in = calloc(count, sizeof(float)), *out = calloc(count, sizeof(float));
  double start = MPI_Wtime();
  MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  printf("took %.17g\n", MPI_Wtime() - start);
  MPI_Finalize();
  return 0;
}
"""


def doubling(x: jax.Array) -> jax.Array:
    """Recursive doubling: the whole message to the rank whose number differs in one bit, for each bit."""
    p = lax.axis_size("r")
    for k in range((p - 1).bit_length()):
        x = x + lax.ppermute(x, "r", [(r, r ^ (1 << k)) for r in range(p)])
    return x


def by(algorithm: str) -> object:
    return lambda x: hccljax.all_reduce(x, "r", algorithm=algorithm)


ALGORITHMS = {"lr": by("ring"), "rdb": doubling, "rab_rdb": by("H-D_R"), "redbcast": by("tree")}
"""SMPI's name of an all_reduce, and ours."""


@dataclass(frozen=True)
class Smpi:
    """A compiled MPI program in a folder."""

    folder: Path

    @classmethod
    def built(cls, folder: Path) -> Smpi:
        (folder / "all_reduce.c").write_text(PROGRAM)
        subprocess.run(
            ["smpicc", "-O1", "all_reduce.c", "-o", "all_reduce"], cwd=folder, check=True, capture_output=True
        )
        return cls(folder)

    def seconds(self, algorithm: str, topology: Topology, nbytes: int) -> tuple[float, float]:
        """(simulated seconds, seconds that it took to find out)."""
        p = topology.ranks
        (self.folder / "platform.xml").write_text(platform(topology))
        (self.folder / "hosts").write_text("".join(f"h{r}\n" for r in range(p)))
        command = ["smpirun", "-np", str(p), "-platform", "platform.xml", "-hostfile", "hosts"]
        command += [f"--cfg={option}" for option in (*OPTIONS, f"smpi/allreduce:{algorithm}")]
        start = time.perf_counter()
        run = subprocess.run(
            [*command, "./all_reduce", str(nbytes // 4)], cwd=self.folder, check=True, capture_output=True, text=True
        )
        took = time.perf_counter() - start
        return max(float(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("took")), took


def platform(topology: Topology) -> str:
    """A topology as SimGrid writes it: a port is a link for each direction."""
    lines = ['<?xml version="1.0"?>', '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">']
    if len(topology.levels) == 1 and topology.levels[0].links == "switch":
        (level,) = topology.levels
        half = (level.latency - ENVELOPE / level.bandwidth) / 2
        return "\n".join([
            *lines, '<platform version="4.1">',
            f'<cluster id="c" prefix="h" suffix="" radical="0-{topology.ranks - 1}" speed="1Gf" '
            f'bw="{level.bandwidth!r}Bps" lat="{half!r}s" sharing_policy="SPLITDUPLEX"/>', "</platform>",
        ])  # fmt: skip
    links, routes = ports(topology)
    hosts = [f'<host id="h{r}" speed="1Gf"/>' for r in range(topology.ranks)]
    return "\n".join([*lines, '<platform version="4.1"><zone id="z" routing="Full">', *hosts, *links, *routes,
                      "</zone></platform>"])  # fmt: skip


def ports(topology: Topology) -> tuple[list[str], list[str]]:
    """Links and routes of full meshes inside servers and a switch between them."""
    inside, between = topology.levels
    links = [
        f'<link id="{way}{r}" bandwidth="{between.bandwidth!r}Bps" '
        f'latency="{(between.latency - ENVELOPE / between.bandwidth) / 2!r}s"/>'
        for r in range(topology.ranks)
        for way in ("out", "in")
    ]
    routes = []
    for a in range(topology.ranks):
        for b in range(topology.ranks):
            if a == b:
                continue
            through = [f"out{a}", f"in{b}"]
            if a // inside.size == b // inside.size:
                through = [f"mesh{a}-{b}"]
                latency = inside.latency - ENVELOPE / inside.bandwidth
                links.append(f'<link id="{through[0]}" bandwidth="{inside.bandwidth!r}Bps" latency="{latency!r}s"/>')
            inner = "".join(f'<link_ctn id="{link}"/>' for link in through)
            routes.append(f'<route src="h{a}" dst="h{b}" symmetrical="NO">{inner}</route>')
    return links, routes


def cases() -> Iterator[tuple[str, Topology, str]]:
    for p in (2, 4, 8, 16, 64):
        for name in ALGORITHMS:
            yield name, Topology(levels=(Level("port", p, "switch", 25e9, 5e-6),)), f"one tier, {p} ranks"
    inside = Level("mesh", 4, "full_mesh", 56e9, 1.5e-6)
    for servers in (2, 4):
        for name in ("lr", "rdb", "redbcast"):  # SMPI's rab_rdb sends its halves the other way round
            yield (
                name,
                Topology(levels=(inside, Level("port", servers, "switch", 25e9, 5e-6))),
                f"two tiers, {servers}x4",
            )


def ours(algorithm: str, topology: Topology, nbytes: int) -> tuple[float, float]:
    """(simulated seconds, seconds that it took, tracing included)."""
    start = time.perf_counter()
    operand = jax.ShapeDtypeStruct((nbytes // 4,), "float32")
    schedule = hccljax.trace(ALGORITHMS[algorithm], operand, axis_sizes={"r": topology.ranks})
    found = hccljax.simulate(schedule, topology).seconds
    return found, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=1024, help="ranks of the comparison of speed; 0 leaves it out")
    parser.add_argument("--quick", action="store_true", help="4 ranks, and no comparison of speed")
    options = parser.parse_args()
    ranks = 0 if options.quick else options.ranks
    if shutil.which("smpirun") is None:
        print("SimGrid is not installed (apt-get install libsimgrid-dev): nothing was compared.")
        return
    with tempfile.TemporaryDirectory() as folder:
        smpi = Smpi.built(Path(folder))
        worst = 0.0
        print(f"{'all_reduce':<12}{'links':<24}{'message':>10}{'SMPI, us':>16}{'ours, us':>16}{'difference':>12}")
        for name, topology, what in cases():
            if options.quick and topology.ranks != 4:
                continue
            for nbytes in (topology.ranks * 64, topology.ranks << 16):
                (theirs, _), (mine, _) = smpi.seconds(name, topology, nbytes), ours(name, topology, nbytes)
                gap = abs(mine / theirs - 1)
                worst = max(worst, gap)
                print(
                    f"{name:<12}{what:<24}{bytes_text(nbytes):>10}{theirs * 1e6:>16.6f}{mine * 1e6:>16.6f}{gap:>12.1e}"
                )
        print(f"largest difference {worst:.1e}, target ≤ {CLOSE:.0e}: {'ok' if worst <= CLOSE else 'SHORT'}")
        if ranks:
            topology = Topology(levels=(Level("port", ranks, "switch", 25e9, 5e-6),))
            for name, target in (("lr", 500.0), ("rab_rdb", 10.0)):
                ours(name, topology, ranks * 64)
                (_, theirs), (_, mine) = smpi.seconds(name, topology, ranks * 1024), ours(name, topology, ranks * 1024)
                what = f"{name} on {ranks:,} ranks: SMPI {theirs:.2f} s / ours {mine:.4f} s"
                print(Finding(what, theirs / mine, target, at_least=True))


if __name__ == "__main__":
    main()
