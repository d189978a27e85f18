"""Closed forms of mesh, star and pairwise on many ranks, against the simulation of as many as it takes."""

import itertools

import numpy as np
import pytest

import hccljax
from hccljax.algorithm import registered
from hccljax.errors import UnreachableError
from hccljax.timing import exchange
from hccljax.timing.exchange import exchange_seconds
from hccljax.timing.kernel import kernel_seconds
from hccljax.topology import Level, Topology, as_topology

LINKS = ("switch", "full_mesh", "ring")
SPEEDS = [(1e9, 20e9), (20e9, 1e9)]
CASES = [
    *(("mesh", operator) for operator in ("all_gather", "scatter", "gather", "reduce_scatter", "all_to_all")),
    *(("star", operator) for operator in ("broadcast", "reduce", "scatter", "gather")),
    ("pairwise", "all_to_all"),
]


def both(name, operator, topology):
    """(closed, simulated) for small and large messages."""
    sizes = [topology.ranks * nbytes for nbytes in (1, 1 << 10, 1 << 20)]
    arguments = (operator, topology.ranks, sizes, topology)
    return exchange_seconds(name, *arguments), kernel_seconds(registered(name), *arguments)


def levels(sizes, links, bandwidths):
    given = zip(sizes, links, bandwidths, strict=True)
    return Topology(levels=tuple(Level(f"l{k}", *one, 1e-6 * (k + 1)) for k, one in enumerate(given)))


@pytest.fixture
def formula(monkeypatch):
    """Nothing is simulated in place of a formula."""
    monkeypatch.setattr(exchange, "IRREGULAR", 0)


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("p", [2, 3, 8, 13])
@pytest.mark.parametrize(("name", "operator"), CASES)
def test_exact_on_one_level(name, operator, p, links):
    np.testing.assert_allclose(*both(name, operator, levels((p,), (links,), (1e9,))), rtol=1e-9)


@pytest.mark.parametrize("bandwidths", SPEEDS)
@pytest.mark.parametrize("links", list(itertools.product(LINKS[:2], repeat=2)))
@pytest.mark.parametrize(("name", "operator"), CASES)
def test_exact_on_two_levels_whichever_is_slower(name, operator, links, bandwidths):
    for sizes in ((3, 5), (6, 2)):
        np.testing.assert_allclose(*both(name, operator, levels(sizes, links, bandwidths)), rtol=1e-9)


@pytest.mark.parametrize("bandwidths", SPEEDS)
@pytest.mark.parametrize("links", [links for links in itertools.product(LINKS, repeat=2) if "ring" in links])
@pytest.mark.parametrize(("name", "operator"), CASES)
def test_no_less_on_rings_of_servers(name, operator, links, bandwidths, formula):
    for sizes in ((4, 4), (3, 5)):
        closed, simulated = both(name, operator, levels(sizes, links, bandwidths))
        assert (closed >= simulated * (1 - 1e-9)).all()
        assert (closed <= simulated * 2.001).all()


def test_a_ring_of_64_ranks():
    """Round h: h links of 1 µs, each of which carries h messages of 1 KB; up to 32 links go one way."""
    closed, simulated = both("mesh", "all_gather", levels((64,), ("ring",), (1e9,)))
    np.testing.assert_allclose(closed, simulated, rtol=1e-9)
    assert closed[1] == pytest.approx(32 * 33 / 2 * 2.024e-6)


def test_the_articles_server():
    closed, simulated = both("pairwise", "all_to_all", as_topology("article:8"))
    np.testing.assert_allclose(closed, simulated, rtol=1e-9)


DEGRADED = [
    {"level": 1, "factor": 0.01},
    {"rank": 3, "factor": 0.5},
    {"link": (0, 1), "factor": 0.1},
    {"link": (0, 1), "lost": True},
]


@pytest.mark.parametrize("fault", DEGRADED)
@pytest.mark.parametrize(("name", "operator"), CASES)
def test_faults_are_simulated(name, operator, fault):
    topology = levels((4, 3), ("full_mesh", "switch"), (3e9, 1e9)).degrade(**fault)
    np.testing.assert_allclose(*both(name, operator, topology), rtol=1e-9)


@pytest.mark.parametrize("fault", DEGRADED)
@pytest.mark.parametrize("links", ["full_mesh", "ring"])
@pytest.mark.parametrize(("name", "operator"), CASES)
def test_faults_on_more_ranks_count_for_the_whole_level(name, operator, links, fault, formula):
    topology = levels((4, 3), (links, "switch"), (3e9, 1e9)).degrade(**fault)
    closed, simulated = both(name, operator, topology)
    assert (closed >= simulated * (1 - 1e-9)).all()


def test_what_is_lost_for_good(formula):
    for topology in (
        levels((4, 3), ("full_mesh", "switch"), (3e9, 1e9)).degrade(rank=5, lost=True),
        levels((4,), ("ring",), (1e9,)).degrade(rank=2, lost=True),
    ):
        with pytest.raises(UnreachableError, match="no other way"):
            exchange_seconds("mesh", "all_gather", topology.ranks, [8], topology)


def test_a_degraded_cluster_is_slower():
    whole = as_topology("atlas-800t-a2:64x8")
    slow = whole.degrade(level=1, factor=0.01)
    sizes = [512 << 20]
    healthy, ill = (exchange_seconds("mesh", "all_gather", 512, sizes, each) for each in (whole, slow))
    assert ill == pytest.approx(511 * (5e-6 + (1 << 20) / 0.25e9))
    assert healthy == pytest.approx(511 * (5e-6 + (1 << 20) / 25e9))


def test_unequal_servers_are_simulated():
    topology = as_topology("atlas-800t-a2:5+3")
    np.testing.assert_allclose(*both("mesh", "all_gather", topology), rtol=1e-9)
    assert hccljax.explain("all_to_all", 8 << 10, 8, topology, algorithm="fastest").outlook.prospects
