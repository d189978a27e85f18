"""Benchmarks are scripts: the folder is importable only while these tests run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def benchmarks():
    """The folder of the scripts."""
    return BENCHMARKS


@pytest.fixture
def load(monkeypatch):
    """load(name) imports a module of the folder as its scripts do; those that force devices cannot be imported."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module
