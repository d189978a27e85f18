"""The benchmarks run to their end; what they measure here means nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest


def run(benchmarks, *command):
    """The lines that a script prints, once it has succeeded. It finds the package beside it, installed or not."""
    path = os.pathsep.join(filter(None, [str(benchmarks.parent), os.environ.get("PYTHONPATH")]))
    script, *options = command
    done = subprocess.run(
        [sys.executable, str(benchmarks / script), *options],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_collectives_measures_every_candidate_under_both_settings(benchmarks):
    lines = run(benchmarks, "collectives.py", "--quick")
    assert "tuned: MALLOC_MMAP_THRESHOLD_=17179869184, MALLOC_TRIM_THRESHOLD_=17179869184" in lines
    assert "default: MALLOC_MMAP_THRESHOLD_=unset, MALLOC_TRIM_THRESHOLD_=unset" in lines
    candidates = ["textbook", "psum", "ring", "H-D_R", "NHR", "NB", "mesh", "ring/ring", "double_tree"]
    candidates += ["double_ring", "pipeline", "NHR_pipeline", "AHC", "tree"]
    assert [line.split() for line in lines].count(candidates) == 2
    rows = [line for line in lines if line.startswith("4 KB ")]
    assert [row.count("(") for row in rows] == [len(candidates)] * 2
    assert sum("≤" in line for line in lines) >= 16


def test_executors_reports_every_target(benchmarks):
    lines = run(benchmarks, "executors.py", "--quick")
    reported = [line.split()[-1] for line in lines if "≤" in line or "≥" in line]
    assert len(reported) >= 5
    assert {"ok", "SHORT", "measured"} >= set(reported)
    recompiled = next(line for line in lines if line.startswith("programs compiled by second calls"))
    assert recompiled.split()[-4:] == ["0", "≤", "0", "ok"]


def test_training_reports_every_target(benchmarks):
    lines = run(benchmarks, "training.py", "--quick")
    reported = [line.split()[-1] for line in lines if "≤" in line or "≥" in line]
    assert len(reported) >= 7
    assert {"ok", "SHORT"} >= set(reported)
    native = next(line for line in lines if line.startswith("demo step: collectives"))
    assert native.split()[-4:] == ["0", "≤", "0", "ok"]


def test_step_counts_finds_nothing_wrong(benchmarks):
    lines = run(benchmarks, "step_counts.py", "--quick")
    assert " 0 wrong, " in lines[-1]
    assert int(lines[-1].split()[0]) >= 400


def test_bytes_on_wire_finds_nothing_wrong(benchmarks):
    lines = run(benchmarks, "bytes_on_wire.py", "--ranks", "8")
    assert lines[-1] == "0 wrong"
    optimal = [line for line in lines if line.startswith("reduce_scatter") and line.endswith(" 1.00")]
    assert len(optimal) >= 6


def test_rank_tables_reports_its_target(benchmarks):
    assert run(benchmarks, "rank_tables.py")[-1].split()[-1] in ("ok", "SHORT")


def test_simulate_reports_every_target(benchmarks):
    lines = run(benchmarks, "simulate.py", "--quick")
    assert len(lines) >= 10
    assert {line.split()[-1] for line in lines} <= {"ok", "SHORT"}
    assert sum("NHR_pipeline" in line and line.endswith("ok") for line in lines) >= 4


def test_against_simgrid_agrees_or_says_that_it_is_not_there(benchmarks):
    lines = run(benchmarks, "against_simgrid.py", "--quick")
    if shutil.which("smpirun") is None:
        assert lines == ["SimGrid is not installed (apt-get install libsimgrid-dev): nothing was compared."]
    else:
        assert lines[-1].startswith("largest difference ")
        assert lines[-1].endswith(": ok")


@pytest.mark.parametrize("sizes", [["100"], ["0"], ["-32"], ["4096", "16"]])
def test_collectives_rejects_a_size_that_does_not_divide_into_blocks(benchmarks, sizes):
    done = subprocess.run(
        [sys.executable, str(benchmarks / "collectives.py"), "--sizes", *sizes], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "expected multiples of 32" in done.stderr
