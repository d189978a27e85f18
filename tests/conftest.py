"""The one place where tests get their devices: 8 forced CPU devices, and an environment without HCCL settings."""

import os

FLAG = "--xla_force_host_platform_device_count=8"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()
os.environ["JAX_PLATFORMS"] = "cpu"
for name in [name for name in os.environ if name.startswith("HCCL_")]:
    del os.environ[name]
