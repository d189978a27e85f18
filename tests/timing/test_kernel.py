"""Kernels traced once and timed for any size: whatever was asked before, the answer is the same."""

import numpy as np
import pytest

from hccljax.algorithm import registered
from hccljax.timing import kernel
from hccljax.timing.kernel import kernel_level_bytes, kernel_schedule, kernel_seconds
from hccljax.timing.settling import settled
from hccljax.timing.simulation import simulate
from hccljax.topology import as_topology

A2 = as_topology("atlas-800t-a2:8")
SIZES = [0, 8, 200 << 10, 8 << 20]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(kernel, "_RUNS", {})


@pytest.mark.parametrize("name", ["NHR", "NB", "ring", "mesh"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3]])
def test_sizes_may_come_in_any_order(name, order):
    """A message without bytes comes first: what is kept for others of its form must not be of no bytes."""
    record = registered(name)
    for k in order:
        (seconds,) = kernel_seconds(record, "all_reduce", 8, [SIZES[k]], A2)
        expected = simulate(kernel_schedule(record, "all_reduce", 8, SIZES[k]), A2).seconds
        assert seconds == pytest.approx(expected), SIZES[k]


def test_bytes_of_a_size_after_none():
    record = registered("NHR")
    assert kernel_level_bytes(record, "all_reduce", 8, 0, A2) == (0,)
    assert kernel_level_bytes(record, "all_reduce", 8, 200 << 10, A2)[0] >= 200 << 10


def test_the_oldest_run_goes(monkeypatch):
    monkeypatch.setattr(kernel, "_MOST", 2)
    for operator in ("all_gather", "reduce_scatter", "all_reduce"):
        kernel_seconds(registered("ring"), operator, 8, [800], A2)
    assert [key[1] for key in kernel._RUNS] == ["reduce_scatter", "all_reduce"]


def test_runs_on_one_topology_share_its_wiring():
    runs = [settled(kernel_schedule(registered(name), "all_reduce", 8, 800), A2) for name in ("ring", "NHR")]
    assert runs[0].wiring is runs[1].wiring
    np.testing.assert_array_equal(runs[0].places, np.arange(8))
