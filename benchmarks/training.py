"""Gradients in buckets on 8 forced CPU devices: against leaf by leaf, against XLA's own psum, and their memory.

    python benchmarks/training.py            # a ResNet-50 and a transformer of 12 layers: a few minutes
    python benchmarks/training.py --quick    # a small network, few repeats: does it run?

All candidates take turns in one process. Gradients are float32; glibc keeps freed memory, but what is longer than its
64 MB heaps still costs page faults, and long buckets more of them than short ones: 1 MB is the best for these devices,
where a leaf of more than that gains nothing by being packed. Without a limit XLA's CPU scheduler packs all buckets
before the first one is reduced, so that its threads find work, and long buckets take more memory than gradients and two
buckets; with in_flight=1 a bucket is packed when the one before it is reduced.
Exits with 0 if everything ran; with --strict, with 1 if a figure falls short of its target.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from _devices import force
from _report import Finding, interleaved, report

RANKS = 8
force(RANKS, keep_memory=True)  # before jax is imported

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

import hccljax  # noqa: E402
from hccljax.demo import data, train  # noqa: E402
from hccljax.demo.devices import cpu_mesh, servers  # noqa: E402
from hccljax.demo.inspect_hlo import executed  # noqa: E402

AXIS, ROWS, MB = "rank", PartitionSpec("rank"), 2**20
BUCKETS = (MB, 4 * MB, 25 * MB)
IN_FLIGHT = 1
LONGEST = 16 * MB
ALGORITHM = "ring"

Shapes = list[tuple[int, ...]]
Reduce = Callable[[list[jax.Array]], list[jax.Array]]


def resnet50() -> Shapes:
    """The 161 parameters of a ResNet-50, 25.6 M elements, in the order of the forward pass."""
    shapes: Shapes = [(7, 7, 3, 64), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for size, before, after in ((1, channels, width), (3, width, width), (1, width, 4 * width)):
                shapes += [(size, size, before, after), (after,), (after,)]
            if block == 0:
                shapes += [(1, 1, channels, 4 * width), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


def transformer(layers: int = 12, d: int = 384, vocabulary: int = 8192) -> Shapes:
    """A decoder of 12 layers: 147 parameters, 24.4 M elements."""
    layer: Shapes = [(d,), (d,), (d, 3 * d), (3 * d,), (d, d), (d,), (d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return [(vocabulary, d), *layer * layers, (d,), (d,)]


def small() -> Shapes:
    """For --quick."""
    return transformer(layers=2, d=64, vocabulary=256)


def candidates() -> dict[str, Reduce]:
    """By name; each takes one rank's gradients."""
    found: dict[str, Reduce] = {
        "psum": lambda grads: lax.psum(grads, AXIS),
        "leaf by leaf": lambda grads: hccljax.all_reduce(grads, AXIS, algorithm=ALGORITHM),
    }
    for size in BUCKETS:
        found[f"{size // MB} MB"] = partial(_in_buckets, size, None)
        found[f"{size // MB} MB, {IN_FLIGHT} in flight"] = partial(_in_buckets, size, IN_FLIGHT)
    return found


def _in_buckets(size: int, in_flight: int | None, grads: list[jax.Array]) -> list[jax.Array]:
    return hccljax.sync_gradients(grads, AXIS, "sum", algorithm=ALGORITHM, bucket_bytes=size, in_flight=in_flight)


def on_devices(reduce: Reduce, x: list[jax.Array]) -> Any:
    """The compiled program; gradients and results have a row for each rank."""
    mesh = x[0].sharding.mesh

    def local(rows: list[jax.Array]) -> list[jax.Array]:
        return [out[None] for out in reduce([row[0] for row in rows])]

    mapped = jax.shard_map(local, mesh=mesh, in_specs=ROWS, out_specs=ROWS, check_vma=False)
    return jax.jit(mapped).lower(x).compile()


def gradients(shapes: Shapes) -> list[jax.Array]:
    """Small integers, exact in any sum, a row on each device."""
    mesh = jax.make_mesh((RANKS,), (AXIS,), (AxisType.Auto,))
    draw, rows = np.random.default_rng(0), NamedSharding(mesh, ROWS)
    return [jax.device_put(draw.integers(-8, 8, (RANKS, *shape)).astype(np.float32), rows) for shape in shapes]


def of_model(name: str, shapes: Shapes, rounds: int) -> Iterator[Finding]:
    """Times and memory of one model's gradients."""
    x = gradients(shapes)
    nbytes = 4 * sum(int(np.prod(shape)) for shape in shapes)
    print(f"\n{name}: {len(shapes)} leaves, {nbytes / MB:.1f} MB of gradients", flush=True)
    programs = {each: on_devices(reduce, x) for each, reduce in candidates().items()}
    for each, program in programs.items():
        for out, leaf in zip(program(x), x, strict=True):
            np.testing.assert_array_equal(np.asarray(out)[3], np.asarray(leaf).sum(0), err_msg=each)
    calls = {each: lambda program=program: jax.block_until_ready(program(x)) for each, program in programs.items()}
    interleaved(calls, 1)
    seconds = interleaved(calls, rounds)
    memory = {each: program.memory_analysis().temp_size_in_bytes for each, program in programs.items()}
    for each in programs:
        temporary = memory[each] / MB
        print(f"  {each:<20}{1e3 * seconds[each]:9.1f} ms{temporary:9.1f} MB temporary memory on a device", flush=True)
    best = min((f"{size // MB} MB" for size in BUCKETS), key=seconds.__getitem__)
    flat = flat_ratio(nbytes, rounds)
    yield Finding(
        f"{name}: leaf by leaf / buckets of 1 MB", seconds["leaf by leaf"] / seconds["1 MB"], 1.5, at_least=True
    )
    yield Finding(
        f"{name}: leaf by leaf / the best buckets ({best})", seconds["leaf by leaf"] / seconds[best], 1.5, at_least=True
    )
    yield Finding(
        f"{name}: buckets of 1 MB / psum, of {ALGORITHM} / psum of one array",
        seconds["1 MB"] / seconds["psum"] / flat,
        1,
    )
    for size in BUCKETS:
        for each in (f"{size // MB} MB", f"{size // MB} MB, {IN_FLIGHT} in flight"):
            ratio = memory[each] / (nbytes + 2 * size)
            yield Finding(f"{name}: temporary memory, {each}, / (gradients + 2 buckets)", ratio, 1)


def flat_ratio(nbytes: int, rounds: int) -> float:
    """The algorithm's own ratio to psum: gradients as one array, of up to 16 MB lest it measure page faults."""
    x = gradients([(min(nbytes, LONGEST) // 4,)])
    each: dict[str, Reduce] = {"psum": candidates()["psum"], ALGORITHM: candidates()["leaf by leaf"]}
    programs = {name: on_devices(reduce, x) for name, reduce in each.items()}
    calls = {name: lambda program=program: jax.block_until_ready(program(x)) for name, program in programs.items()}
    interleaved(calls, 1)
    seconds = interleaved(calls, rounds)
    print(
        f"  one array of {x[0].nbytes // RANKS / MB:.1f} MB: "
        + ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in seconds.items()),
        flush=True,
    )
    return seconds[ALGORITHM] / seconds["psum"]


def native_step() -> Finding:
    """The demo's training step by ``native`` has the collectives of the one by ``lax.psum``."""
    mesh = cpu_mesh(RANKS)
    plan = train.Plan(mesh, data.load()[0], 1, 0)
    ours = executed(plan.compiled(train.by_algorithm("native", servers(RANKS))).as_text())
    theirs = executed(plan.compiled(train.by_psum).as_text())
    differ = sum(((ours - theirs) + (theirs - ours)).values())
    print(f"\ndemo step: native {dict(ours)}, lax.psum {dict(theirs)}")
    return Finding("demo step: collectives by native that psum has not, or the reverse", differ, 0, "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small network, 3 repeats")
    parser.add_argument("--repeats", type=int, default=0, help="calls of each candidate (default: 7)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a figure falls short")
    given = parser.parse_args()
    models = {"small": small()} if given.quick else {"ResNet-50": resnet50(), "transformer": transformer()}
    rounds = given.repeats or (3 if given.quick else 7)
    findings = [finding for name, shapes in models.items() for finding in of_model(name, shapes, rounds)]
    return report([*findings, native_step()], given.strict)


if __name__ == "__main__":
    sys.exit(main())
