"""Shared by the tests of timing: schedules of registered algorithms, and small topologies."""

from __future__ import annotations

import jax
import pytest

import hccljax
from hccljax.algorithm import registered
from hccljax.algorithm.base import GIVES_BLOCKS, REDUCING, TAKES_BLOCKS, run
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.topology import Level, Topology


@pytest.fixture(scope="session")
def schedule_of():
    """The schedule of one operator of an algorithm on p ranks, for nbytes of one rank's message."""

    def schedule_of(algorithm, operator, p, nbytes, tiers=None):
        record = registered(algorithm) if isinstance(algorithm, str) else algorithm
        shape = (p, nbytes // p) if operator in TAKES_BLOCKS else (nbytes // p,) if operator in GIVES_BLOCKS else nbytes
        op = reduction("sum") if operator in REDUCING else None
        group = Group("rank", levels=tiers)
        operand = jax.ShapeDtypeStruct(shape if isinstance(shape, tuple) else (shape,), "uint8")
        return hccljax.trace(lambda x: run(record, operator, x, group, op, 0), operand, axis_sizes={"rank": p})

    return schedule_of


@pytest.fixture(scope="session")
def uniform():
    """One level of p ranks, α = 1 µs and 1 GB/s a port or link."""
    return lambda p, links="switch": Topology(levels=(Level("links", p, links, 1e9, 1e-6),))


@pytest.fixture(scope="session")
def a2():
    """So many servers of 8: full mesh of 56 GB/s a link inside, 25 GB/s a rank between."""
    inside = Level("HCCS", 8, "full_mesh", 56e9, 1.5e-6)
    return lambda servers: Topology(levels=(inside, Level("RoCE", servers, "switch", 25e9, 5e-6)))
