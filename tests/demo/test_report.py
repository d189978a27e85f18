"""What the demo shows: a bar for people, silence for pipes, figures that mean what they say."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from hccljax.demo.report import Row, largest_difference, progress, table


@pytest.fixture
def shown():
    """Prints one thing on a console of 80 columns and returns the text."""

    def text(thing, terminal=False):
        console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
        console.print(thing)
        return console.file.getvalue()

    return text


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_drawn_on_terminals_only(terminal):
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal)
    with progress(console) as bars:
        bar = bars.add_task("ring", total=3)
        for _ in range(3):
            bars.advance(bar)
    assert ("3/3" in console.file.getvalue()) == terminal
    assert bool(console.file.getvalue()) == terminal


def test_the_difference_is_the_largest_of_all_parameters_either_way():
    reference = [{"weights": np.array([[1.0, 2.0]], np.float32), "bias": np.array([3.0], np.float32)}]
    above = [{"weights": np.array([[1.0, 2.5]], np.float32), "bias": np.array([3.25], np.float32)}]
    assert largest_difference(reference, reference) == 0
    assert largest_difference(above, reference) == largest_difference(reference, above) == 0.5


def test_a_row_shows_percent_and_milliseconds(shown):
    rows = [Row("jax.lax.psum", None, 0.975, None, 0.0021), Row("level0:ring;level1:tree", 8, 0.9501, 2e-7, 0.0136)]
    lines = [line.split() for line in shown(table(rows, 32768)).splitlines()]
    assert ["jax.lax.psum", "-", "97.50%", "reference", "2.10"] in lines
    assert ["level0:ring;level1:tree", "8", "95.01%", "2.0e-07", "13.60"] in lines
    assert "all-reduce of 32,768 bytes" in shown(table(rows, 32768))
