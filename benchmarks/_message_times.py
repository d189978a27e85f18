"""Times all_reduce by every candidate, in one process with one setting of glibc. ``collectives.py`` starts it.

    python benchmarks/_message_times.py SETTING FIGURES ROUNDS SIZE …

Writes {size: {candidate: median seconds}} to the file FIGURES, as JSON. ROUNDS 0 takes what ``rounds_for`` says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _devices import force
from _report import bytes_text, interleaved

RANKS = 8
force(RANKS, keep_memory=sys.argv[1] == "tuned")  # before jax is imported

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

import hccljax  # noqa: E402

AXIS = "rank"
ROWS = PartitionSpec(AXIS)
PerDevice = Callable[[jax.Array], jax.Array]


def textbook_ring(x: jax.Array) -> jax.Array:
    """The ring as textbooks write it: the whole [p, chunk] buffer is carried, and every step updates one chunk."""
    p, rank = RANKS, lax.axis_index(AXIS)
    chunks = x.reshape(p, -1)
    onward = [(r, (r + 1) % p) for r in range(p)]

    def reduce_step(s: jax.Array, chunks: jax.Array) -> jax.Array:
        sent = lax.dynamic_index_in_dim(chunks, (rank - 1 - s) % p, keepdims=False)
        received = lax.ppermute(sent, AXIS, onward)
        k = (rank - 2 - s) % p
        total = lax.dynamic_index_in_dim(chunks, k, keepdims=False) + received
        return lax.dynamic_update_index_in_dim(chunks, total, k, 0)

    def gather_step(s: jax.Array, chunks: jax.Array) -> jax.Array:
        sent = lax.dynamic_index_in_dim(chunks, (rank - s) % p, keepdims=False)
        received = lax.ppermute(sent, AXIS, onward)
        return lax.dynamic_update_index_in_dim(chunks, received, (rank - 1 - s) % p, 0)

    chunks = lax.fori_loop(0, p - 1, reduce_step, chunks)
    return lax.fori_loop(0, p - 1, gather_step, chunks).reshape(x.shape)


def ours(algorithm: str, topology: str | None = None) -> PerDevice:
    return lambda x: hccljax.all_reduce(x, AXIS, algorithm=algorithm, topology=topology)


CANDIDATES: dict[str, PerDevice] = {
    "textbook": textbook_ring,
    "psum": lambda x: lax.psum(x, AXIS),
    "ring": ours("ring"),
    "H-D_R": ours("H-D_R"),
    "NHR": ours("NHR"),
    "NB": ours("NB"),
    "mesh": ours("mesh"),
    "ring/ring": ours("level0:ring;level1:ring", "2x4"),
    "double_tree": ours("double_tree"),
    "double_ring": ours("double_ring"),
    "pipeline": ours("pipeline", "2x4"),
    "NHR_pipeline": ours("NHR_pipeline", "2x4"),
    "AHC": ours("AHC", "5+3"),
    "tree": ours("tree"),
}


def rounds_for(size: int) -> int:
    """Enough rounds for a steady median, fewer for messages that take long."""
    return max(7, min(200, 2**26 // size))


def measure(size: int, rounds: int) -> dict[str, float]:
    """Median seconds of every candidate for a message of size bytes on each rank.

    The first round compiles and compares each result with the exact one; the second, still off the clock, leaves
    the allocator as the candidates leave it to each other.
    """
    mesh = jax.make_mesh((RANKS,), (AXIS,), (AxisType.Auto,))
    # Small integers: sums are exact in any order.
    values = np.random.default_rng(0).integers(-8, 8, (RANKS, size // 4)).astype(np.float32)
    x = jax.device_put(values, NamedSharding(mesh, ROWS))
    expected = values.sum(0)
    calls = {}
    for name, function in CANDIDATES.items():
        mapped = jax.shard_map(
            lambda v, f=function: f(v[0])[None], mesh=mesh, in_specs=ROWS, out_specs=ROWS, check_vma=False
        )
        calls[name] = partial(_finished, jax.jit(mapped), x)
        for row in calls[name]().addressable_shards:
            np.testing.assert_array_equal(np.asarray(row.data)[0], expected, err_msg=name)
    interleaved(calls, 1)
    return interleaved(calls, rounds)


def _finished(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return jax.block_until_ready(function(x))


def main() -> None:
    setting, figures, rounds, *sizes = sys.argv[1:]
    kept = ", ".join(
        f"{name}={os.environ.get(name, 'unset')}" for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    )
    print(f"\n{setting}: {kept}\nmedian ms (× textbook ring)", flush=True)
    print(f"{'':<10}" + "".join(f"{name:>17}" for name in CANDIDATES), flush=True)
    medians = {}
    for size in map(int, sizes):
        times = medians[size] = measure(size, int(rounds) or rounds_for(size))
        cells = (f"{seconds * 1e3:9.2f} ({seconds / times['textbook']:.2f})" for seconds in times.values())
        print(f"{bytes_text(size):<10}" + "".join(f"{cell:>17}" for cell in cells), flush=True)
    Path(figures).write_text(json.dumps(medians))


if __name__ == "__main__":
    main()
