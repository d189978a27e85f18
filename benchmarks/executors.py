"""The two executors and the Communicator: virtual ranks against devices, compile times, the cost of a call.

    python benchmarks/executors.py            # all of it: a minute or two, most of it for 256 devices on a few cores
    python benchmarks/executors.py --quick    # 8 devices, few repeats: does it run?

Exits with 0 if everything ran; with --strict, with 1 if a figure falls short of its target.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from _devices import force
from _report import Finding, interleaved, report

force(8)  # before jax is imported

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402

import hccljax  # noqa: E402
from hccljax import Communicator  # noqa: E402

# A compiler cache on disk would answer for the compiler.
jax.config.update("jax_enable_compilation_cache", False)

MESSAGE = 1024
"""Bytes on each rank where ranks are compared: a ring of 256 then moves one float32 a step."""

TARGETS = {
    "speed-up": Finding("ring, 256 ranks × 1 KB: devices / virtual", None, 3000, at_least=True),
    "compile": Finding("trace + compile, virtual ring: p = 1024 / p = 8", None, 1.5),
    "recompiled": Finding("programs compiled by second calls", None, 0, ""),
    "virtual call": Finding("Communicator call - bare jitted function, 1 device", None, 20, "µs"),
    "devices call": Finding("Communicator call / bare jitted function, 8 devices", None, 1.2),
}


@contextmanager
def compile_count() -> Iterator[list[str]]:
    """A list that grows by one entry for every program that XLA compiles inside the block."""
    compiled: list[str] = []

    def listen(event: str, seconds: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def on_devices(ranks: int) -> float:
    """Seconds of a ring all_reduce on as many forced devices, in a process of its own."""
    script = Path(__file__).with_name("_ring_on_devices.py")
    command = [sys.executable, str(script), str(ranks), str(MESSAGE)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def speed_up(ranks: int, rounds: int) -> float:
    """How many times faster a ring is on virtual ranks than on devices."""
    comm = Communicator(ranks, executor="virtual", algorithm="ring")
    x = comm.put(np.ones((ranks, MESSAGE // 4), np.float32))
    np.testing.assert_array_equal(comm.all_reduce(x), ranks)
    virtual = interleaved({"virtual": lambda: jax.block_until_ready(comm.all_reduce(x))}, rounds)["virtual"]
    devices = on_devices(ranks)
    print(f"ring, {ranks} ranks × 1 KB: devices {devices * 1e3:,.1f} ms (one call), virtual {virtual * 1e3:.2f} ms")
    return devices / virtual


def compile_growth(rounds: int) -> float:
    """Trace + compile of a virtual ring: p = 1024 against p = 8, the same bytes on each rank."""

    def build(p: int) -> None:
        ring = jax.vmap(partial(hccljax.all_reduce, axis_name="rank", algorithm="ring"), axis_name="rank")
        jax.jit(ring).lower(jax.ShapeDtypeStruct((p, MESSAGE), np.float32)).compile()

    calls = {p: partial(build, p) for p in (8, 1024)}
    interleaved(calls, 1)
    with compile_count() as compiled:
        seconds = interleaved(calls, rounds, before=jax.clear_caches)
    if len(compiled) < 2 * rounds:
        raise RuntimeError(f"{len(compiled)} programs compiled in {2 * rounds} builds: a cache has answered")
    print("trace + compile, virtual ring: " + ", ".join(f"p = {p} {s * 1e3:.0f} ms" for p, s in seconds.items()))
    return seconds[1024] / seconds[8]


def recompiled() -> int:
    """Programs compiled when every collective is called again with other values of the same shapes."""
    total = 0
    for executor in ("virtual", "devices"):
        comm = Communicator(8, executor=executor)
        first, second = (comm.put(np.full((8, 8, 4), value, np.float32)) for value in (1, 2))
        collectives = (
            comm.all_reduce, comm.reduce_scatter, comm.all_gather, comm.broadcast, comm.reduce, comm.scatter,
            comm.gather, comm.all_to_all, comm.barrier,
        )  # fmt: skip
        with compile_count() as compiled:
            for collective in collectives:
                jax.block_until_ready(collective(first))
        if len(compiled) < len(collectives):
            raise RuntimeError(
                f"{len(compiled)} programs compiled by {len(collectives)} first calls: the count is wrong"
            )
        with compile_count() as again:
            for collective in collectives:
                jax.block_until_ready(collective(second))
        print(f"{executor}: {len(compiled)} programs compiled by first calls, {len(again)} by second calls")
        total += len(again)
    return total


def call_costs(executor: str, rounds: int) -> dict[str, float]:
    """Median seconds of comm.all_reduce and of the same per-device function, jitted bare; 8 × 64 float32.

    The calls take turns in blocks of 50, since a call that follows its own kind finds warm caches, as in a program.
    """
    comm = Communicator(8, executor=executor)
    x = comm.put(np.ones((8, 64), np.float32))
    bare = jax.jit(_bare(executor))
    np.testing.assert_array_equal(comm.all_reduce(x), bare(x))
    calls = {
        "Communicator": lambda: jax.block_until_ready(comm.all_reduce(x)),
        "bare": lambda: jax.block_until_ready(bare(x)),
    }
    interleaved(calls, 2, block=50)
    seconds = interleaved(calls, rounds, block=50)
    figures = ", ".join(f"{name} {median * 1e6:.1f} µs" for name, median in seconds.items())
    print(f"all_reduce of 8 × 64 float32, {executor}: {figures}")
    return seconds


def _bare(executor: str) -> Callable[[jax.Array], jax.Array]:
    """What a user would write without a Communicator."""
    one_rank = partial(hccljax.all_reduce, axis_name="rank")
    if executor == "virtual":
        return jax.vmap(one_rank, axis_name="rank")
    mesh, rows = jax.make_mesh((8,), ("rank",), (jax.sharding.AxisType.Auto,)), PartitionSpec("rank")
    return jax.shard_map(lambda v: one_rank(v[0])[None], mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)


def figures(quick: bool) -> dict[str, float]:
    """Every figure that has a target."""
    found = {"recompiled": float(recompiled()), "compile": compile_growth(1 if quick else 7)}
    virtual = call_costs("virtual", 2 if quick else 100)
    devices = call_costs("devices", 2 if quick else 40)
    found["virtual call"] = (virtual["Communicator"] - virtual["bare"]) * 1e6
    found["devices call"] = devices["Communicator"] / devices["bare"]
    if quick:
        speed_up(8, 3)
    else:
        found["speed-up"] = speed_up(256, 50)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="8 devices instead of 256, few repeats")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a figure falls short")
    given = parser.parse_args()
    found = figures(given.quick)
    return report((replace(target, figure=found.get(key)) for key, target in TARGETS.items()), given.strict)


if __name__ == "__main__":
    sys.exit(main())
