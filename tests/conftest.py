"""The one place where tests get their devices and compiler: 8 forced CPU devices, no HCCL settings, quick builds."""

import os
import re
from functools import partial
from importlib import import_module

import hypothesis
import pytest

# XLA compiles most of these programs to run them once: these options take a ring and its derivatives from 2.1 s to
# 0.45 s (jaxlib 0.10.2). Tests of bits ask for ``usual_compiler``.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
USUAL = {
    "xla_backend_optimization_level": 3,
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": 32,
}
flags = [f"--{name}={str(value).lower()}" for name, value in QUICK.items()]
flags = [os.environ.get("XLA_FLAGS", ""), *flags, "--xla_force_host_platform_device_count=8"]
os.environ["XLA_FLAGS"] = " ".join(flags).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
for name in [name for name in os.environ if name.startswith("HCCL_")]:
    del os.environ[name]
# No test asserts on elapsed time, and a deadline would.
hypothesis.settings.register_profile("hccljax", deadline=None)
hypothesis.settings.load_profile("hccljax")


@pytest.fixture(scope="session")
def error_of():
    """The text of the HcclError that a call raises; its class has to be exactly ``kind``."""

    def error_of(call, kind):
        with pytest.raises(import_module("hccljax").HcclError) as caught:
            call()
        assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"
        return str(caught.value)

    return error_of


@pytest.fixture(scope="session")
def helps():
    """Whether a message says what would have been right."""
    ways_out = r"expected|; use |; pass |choose another|put the second|belongs to exactly one"
    return lambda message: re.search(ways_out, message)


@pytest.fixture
def usual_compiler(monkeypatch):
    """jax.jit as users have it, for tests whose result could depend on the compiler's options."""
    monkeypatch.setattr("jax.jit", partial(import_module("jax").jit, compiler_options=USUAL))
