"""all_reduce on 8 forced CPU devices: every algorithm against a textbook ring, XLA's own psum and each other.

    python benchmarks/collectives.py            # all of it: several minutes
    python benchmarks/collectives.py --quick    # short messages, few repeats: does it run?

All candidates take turns in one process, so that what disturbs one disturbs all; only ratios of medians have targets.
Messages are float32. It is done twice, with glibc's default settings and with settings under which glibc keeps freed
memory ("tuned"): with the default ones, long messages measure page faults more than algorithms.
Exits with 0 if everything ran; with --strict, with 1 if a figure falls short of its target.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _report import Finding, bytes_text, geometric_mean, report

SIZES = (4 * 2**10, 64 * 2**10, 2**20, 8 * 2**20, 32 * 2**20)
QUICK_SIZES = (4 * 2**10,)  # compiling takes the time
LONG = 32 * 2**20
SETTINGS = ("tuned", "default")

# {size: {candidate: median seconds}}
Medians = dict[int, dict[str, float]]


@dataclass(frozen=True)
class Target:
    """The greatest good ratio of two candidates.

    Attributes:
      above, below: the candidates.
      over: ``"worst"`` or ``"mean"`` (geometric) of all sizes, or one size in bytes.
      limit: for each setting that has one.
    """

    above: str
    below: str
    over: str | int
    limit: dict[str, float]


TARGETS = (
    Target("ring", "textbook", "worst", {"tuned": 1.1, "default": 1.1}),
    Target("ring", "textbook", "mean", {"tuned": 1.0, "default": 1.0}),
    Target("H-D_R", "ring", LONG, {"tuned": 1.2, "default": 2.2}),
    Target("NHR", "ring", LONG, {"tuned": 1.2, "default": 2.2}),
    Target("NB", "ring", LONG, {"tuned": 1.5, "default": 2.2}),
    Target("mesh", "ring", LONG, {"tuned": 1.0, "default": 2.2}),
    Target("ring/ring", "ring", LONG, {"tuned": 1.5, "default": 2.2}),
    Target("double_tree", "ring", LONG, {"tuned": 2.5, "default": 2.2}),
    Target("double_ring", "ring", LONG, {"tuned": 1.5, "default": 2.2}),
    Target("pipeline", "ring", LONG, {"tuned": 1.5, "default": 2.2}),
)


def findings(medians: dict[str, Medians]) -> Iterator[Finding]:
    """Every target of the settings that were measured, with its figure."""
    for setting, of_size in medians.items():
        for target in TARGETS:
            where, figure = _found(target, of_size)
            yield Finding(f"{target.above} / {target.below}, {where}, {setting}", figure, target.limit[setting])


def _found(target: Target, of_size: Medians) -> tuple[str, float | None]:
    """(over which sizes, figure); the figure is None if the size was not measured."""
    found = {size: times[target.above] / times[target.below] for size, times in of_size.items()}
    if target.over == "worst":
        worst = max(found, key=found.__getitem__)
        return f"worst size ({bytes_text(worst)})", found[worst]
    if target.over == "mean":
        return "geometric mean over sizes", geometric_mean(found.values())
    return bytes_text(target.over), found.get(target.over)


def measured(setting: str, sizes: list[int], repeats: int) -> Medians:
    """The medians of one setting, from a process of its own: glibc reads its settings when a process starts."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        script = Path(__file__).with_name("_message_times.py")
        arguments = [setting, str(figures), str(repeats), *map(str, sizes)]
        subprocess.run([sys.executable, str(script), *arguments], env=environment, check=True)
        return {int(size): times for size, times in json.loads(figures.read_text()).items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES", help="bytes on each rank, multiples of 32")
    parser.add_argument("--repeats", type=int, default=0, help="calls of each candidate (default: 7 to 200 by size)")
    parser.add_argument("--settings", choices=[*SETTINGS, "both"], default="both", help="of glibc (default: both)")
    parser.add_argument("--quick", action="store_true", help="one small size, 3 repeats, unless given")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a figure falls short")
    given = parser.parse_args()
    given.sizes = given.sizes or list(QUICK_SIZES if given.quick else SIZES)
    given.repeats = given.repeats or (3 if given.quick else 0)
    if any(size < 32 or size % 32 for size in given.sizes):
        parser.error(f"--sizes {given.sizes}: expected multiples of 32, one float32 for each of 8 blocks at least")
    return given


def main() -> int:
    given = arguments()
    settings = SETTINGS if given.settings == "both" else (given.settings,)
    return report(
        findings({setting: measured(setting, given.sizes, given.repeats) for setting in settings}), given.strict
    )


if __name__ == "__main__":
    sys.exit(main())
