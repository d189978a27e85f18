"""How long `import hccljax` takes, JAX's own import included, against `import jax`.

    python benchmarks/import_time.py [--runs 7] [--strict]

Each import has an interpreter of its own; the two take turns, so that other work of the machine slows down both. The
first run of each is thrown away: it compiles files to the bytecode that later ones find. PYTHONDONTWRITEBYTECODE, which
would keep it from doing so, is taken back: an installed package has its bytecode beside it.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from _report import Finding, report

TARGET = 1.2
CODE = "import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"


def seconds(module: str) -> float:
    """What one import takes in a new interpreter."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", CODE.format(module=module)]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    return float(done.stdout)


def medians(runs: int) -> dict[str, float]:
    """Median seconds of each import."""
    times: dict[str, list[float]] = {"jax": [], "hccljax": []}
    for _ in range(runs + 1):
        for module, found in times.items():
            found.append(seconds(module))
    return {module: statistics.median(found[1:]) for module, found in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=7, help="imports of each")
    parser.add_argument("--quick", action="store_true", help="one import of each")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if the target is missed")
    options = parser.parse_args()
    print(f"python {platform.python_version()}, {os.cpu_count()} CPUs")
    found = medians(1 if options.quick else options.runs)
    for module, median in found.items():
        print(f"import {module:<8}{1e3 * median:>8.0f} ms")
    return report([Finding("import hccljax / import jax", found["hccljax"] / found["jax"], TARGET)], options.strict)


if __name__ == "__main__":
    sys.exit(main())
