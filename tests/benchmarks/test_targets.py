"""collectives.py evaluates its targets on medians; here on made-up ones."""

from __future__ import annotations

import pytest

SMALL, LONG = 4 * 2**10, 32 * 2**20


@pytest.fixture
def module(load):
    return load("collectives")


def medians(**seconds):
    """Every candidate takes 1 s unless given."""
    names = "textbook", "ring", "H-D_R", "NHR", "NB", "mesh", "ring/ring", "double_tree", "double_ring", "pipeline"
    return dict.fromkeys(names, 1.0) | seconds


def figures(module, of_setting):
    return {finding.name: finding for finding in module.findings(of_setting)}


def test_the_ring_has_targets_at_its_worst_size_and_on_the_mean_of_all(module):
    found = figures(module, {"tuned": {SMALL: medians(ring=2.0), LONG: medians(ring=0.5)}})
    assert found["ring / textbook, worst size (4 KB), tuned"].figure == 2.0
    mean = found["ring / textbook, geometric mean over sizes, tuned"]
    assert mean.figure == pytest.approx(1.0)


def test_the_others_are_compared_with_the_ring_at_32_mb_only(module):
    found = figures(module, {"default": {SMALL: medians(mesh=50.0), LONG: medians(mesh=3.0, ring=2.0)}})
    assert found["mesh / ring, 32 MB, default"].figure == 1.5
    for other in ("double_tree", "double_ring", "pipeline"):
        assert found[f"{other} / ring, 32 MB, default"].figure == 0.5


def test_a_size_that_was_left_out_is_not_measured(module):
    found = figures(module, {"tuned": {SMALL: medians()}})
    assert found["H-D_R / ring, 32 MB, tuned"].figure is None
    assert not found["H-D_R / ring, 32 MB, tuned"].short


def test_limits_depend_on_the_setting(module):
    found = figures(module, {setting: {LONG: medians(mesh=2.0)} for setting in module.SETTINGS})
    assert found["mesh / ring, 32 MB, tuned"].short
    assert not found["mesh / ring, 32 MB, default"].short
    assert len(found) == 2 * len(module.TARGETS)
