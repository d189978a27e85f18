"""What the demo tests share: a way to run the program as a user does, and a plan small enough to compile often."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from hccljax.demo.data import Digits
from hccljax.demo.devices import cpu_mesh
from hccljax.demo.train import Plan


@pytest.fixture(scope="session")
def python():
    """Runs the interpreter on arguments, with no devices forced and nothing inherited from the tests."""

    def run(*arguments, **environment):
        clean = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
        return subprocess.run(
            [sys.executable, *arguments],
            env={**clean, "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def plan():
    """One step on 4 devices and invented digits."""
    draw = np.random.default_rng(0)
    digits = Digits(draw.random((128, 64), np.float32), draw.integers(0, 10, 128, np.int32))
    return Plan(cpu_mesh(4), digits, epochs=1, seed=0)
