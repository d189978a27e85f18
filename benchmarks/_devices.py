"""The one place in which benchmarks force CPU devices and tune glibc."""

from __future__ import annotations

import os
import sys

_COUNT = "--xla_force_host_platform_device_count"
_KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**34), "MALLOC_TRIM_THRESHOLD_": str(2**34)}


def force(count: int, keep_memory: bool = False) -> None:
    """Makes jax see ``count`` CPU devices; call it before jax is imported. Other XLA_FLAGS are kept.

    Args:
      count: CPU devices to force.
      keep_memory: also start this process again, with settings under which glibc keeps freed memory: else
        messages of 32 MB measure the page faults of fresh memory more than the algorithm.
    """
    if "jax" in sys.modules:
        raise RuntimeError("force() was called after jax was imported; expected it at the top of the script")
    others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(f"{_COUNT}=")]
    os.environ["XLA_FLAGS"] = " ".join([*others, f"{_COUNT}={count}"])
    # The forced devices are CPUs; without this, a machine with an accelerator would run on that instead.
    os.environ["JAX_PLATFORMS"] = "cpu"
    if keep_memory and any(os.environ.get(name) != value for name, value in _KEPT.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **_KEPT})
