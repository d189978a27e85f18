"""What pages change is taken back after each: registries and the environment."""

import os
from importlib import import_module

import pytest

REGISTRIES = (
    ("hccljax.algorithm.base", "_REGISTRY"),
    ("hccljax.selection.policies", "_POLICIES"),
    ("hccljax.topology.presets", "PRESETS"),
)


@pytest.fixture
def as_before():
    """Restores algorithms, policies, presets and variables."""
    found = [getattr(import_module(module), name) for module, name in REGISTRIES]
    kept = [(one, dict(one)) for one in (*found, os.environ)]
    yield
    algorithms = len(found[0])
    for one, before in kept:
        one.clear()
        one.update(before)
    if len(found[0]) < algorithms:  # candidates are remembered by how often something was registered
        import_module("hccljax.algorithm.base")._REPLACED.append(None)
