"""python -m hccljax.demo as a user runs it: once, on the real digits."""

from __future__ import annotations

import re

import pytest

# One algorithm of permutes, one of exchanges and one with levels; 8 epochs are enough for 94 %.
ARGUMENTS = ("--algorithms", "tree", "mesh", "level0:mesh;level1:ring", "--epochs", "8")
ROW = re.compile(r"^ +(\S+) +(\d+|-) +([\d.]+)% +(\S+) +([\d.]+) *$", re.MULTILINE)


@pytest.fixture(scope="module")
def finished(python):
    return python("-m", "hccljax.demo", *ARGUMENTS)


@pytest.fixture(scope="module")
def rows(finished):
    """{name: (steps, accuracy, difference, milliseconds)}, the table as printed."""
    return {name: values for name, *values in ROW.findall(finished.stdout)}


def test_it_succeeds_and_has_nothing_to_complain_about(finished):
    assert (finished.returncode, finished.stderr) == (0, "")


def test_the_table_has_the_reference_first_and_every_algorithm_asked_for(rows):
    assert list(rows) == ["jax.lax.psum", "tree", "mesh", "level0:mesh;level1:ring"]


def test_every_run_recognises_the_digits(rows):
    assert all(float(accuracy) > 94 for _, accuracy, _, _ in rows.values())


def test_parameters_differ_from_those_of_psum_by_roundings_only(rows):
    differences = {name: values[2] for name, values in rows.items()}
    assert differences.pop("jax.lax.psum") == "reference"
    assert all(float(difference) < 1e-4 for difference in differences.values())


def test_steps_are_those_of_one_all_reduce_on_eight_devices(rows):
    # A tree of 8 leaves goes up and down 3 levels; a mesh scatters and gathers; 2 servers of 4 take the mesh's two
    # steps inside and a ring of 2 between.
    assert [values[0] for values in rows.values()] == ["-", "6", "2", "4"]


def test_steps_take_time(rows):
    assert all(float(values[3]) > 0 for values in rows.values())


def test_it_says_what_it_found_in_the_compiled_programs(finished):
    _, found = finished.stdout.split("Checked in the compiled HLO")
    # Five all-reduces a step: four arrays of parameters and the loss.
    assert "\n  tree: 30 collective-permute\n" in found
    assert "\n  mesh: 5 all-gather, 5 all-to-all\n" in found
    assert "\n  level0:mesh;level1:ring: 5 all-gather, 5 all-to-all, 10 collective-permute\n" in found


def test_without_a_terminal_there_is_no_progress_bar_and_no_escape_sequence(finished):
    assert "\x1b" not in finished.stdout
    assert "\r" not in finished.stdout
    assert len(finished.stdout.splitlines()) < 25


def test_lines_fit_eighty_columns(finished):
    assert max(map(len, finished.stdout.splitlines())) <= 80
