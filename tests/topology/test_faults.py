"""Degraded topologies: what is slower, what is lost, and the ways round it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax.errors import ArgumentError, UnreachableError
from hccljax.timing.rates import Rates
from hccljax.timing.simulation import simulate
from hccljax.topology import Level, Topology, as_topology
from hccljax.topology.wiring import Wiring

MB = 1_000_000
MESH = Topology(levels=(Level("mesh", 4, "full_mesh", 1e9, 1e-6),))
RING = Topology(levels=(Level("ring", 6, "ring", 1e9, 1e-6),))
SWITCH = Topology(levels=(Level("switch", 4, "switch", 1e9, 1e-6),))


def seconds(topology, *pairs):
    x = jax.ShapeDtypeStruct((MB,), jnp.uint8)
    schedule = hccljax.trace(lambda v: lax.ppermute(v, "r", pairs), x, axis_sizes={"r": topology.ranks})
    return simulate(schedule, topology).seconds


def test_a_slower_link_is_slower_both_ways():
    slow = MESH.degrade(link=(1, 2), factor=0.25)
    assert seconds(slow, (1, 2)) == seconds(slow, (2, 1)) == pytest.approx(1e-6 + 4e-3)
    assert seconds(slow, (1, 3)) == pytest.approx(1e-6 + 1e-3)


def test_faults_add_up():
    slow = MESH.degrade(link=(1, 2), factor=0.5).degrade(rank=1, factor=0.5)
    assert seconds(slow, (1, 2)) == pytest.approx(1e-6 + 4e-3)
    assert seconds(slow, (3, 1)) == pytest.approx(1e-6 + 2e-3)
    assert seconds(slow, (3, 2)) == pytest.approx(1e-6 + 1e-3)


def test_a_lost_link_is_gone_round_by_a_third_member():
    lost = MESH.degrade(link=(0, 1), lost=True)
    assert seconds(lost, (0, 1)) == pytest.approx(2e-6 + 1e-3)
    assert seconds(lost, (0, 2)) == pytest.approx(1e-6 + 1e-3)


def test_two_detours_over_one_link_share_it():
    lost = MESH
    for link in ((0, 1), (0, 2)):
        lost = lost.degrade(link=link, lost=True)
    assert seconds(lost, (0, 1)) == pytest.approx(2e-6 + 1e-3)  # by way of 3
    wiring = Wiring(lost)
    both = wiring.routes(np.array([0, 0]), np.array([1, 2]))
    assert both.rate.tolist() == [0.5e9, 0.5e9]


def test_a_lost_link_of_a_ring_is_gone_round_the_other_way():
    lost = RING.degrade(link=(2, 3), lost=True)
    assert seconds(lost, (2, 3)) == pytest.approx(5e-6 + 1e-3)
    assert seconds(lost, (3, 2)) == pytest.approx(5e-6 + 1e-3)
    assert seconds(lost, (1, 3)) == pytest.approx(4e-6 + 1e-3)
    assert seconds(lost, (0, 1)) == pytest.approx(1e-6 + 1e-3)


def test_a_ring_step_with_a_lost_link():
    """The message across the gap takes five links, each of which carries another one too."""
    lost = RING.degrade(link=(2, 3), lost=True)
    assert seconds(lost, *[(r, (r + 1) % 6) for r in range(6)]) == pytest.approx(5e-6 + 1e-3)
    assert seconds(lost, *[((r + 1) % 6, r) for r in range(6)]) == pytest.approx(5e-6 + 1e-3)


@pytest.mark.parametrize(
    "topology",
    [
        SWITCH.degrade(rank=1, lost=True),
        MESH.degrade(rank=1, lost=True),
        RING.degrade(link=(0, 1), lost=True).degrade(link=(3, 4), lost=True),
        SWITCH.degrade(level=0, lost=True),
    ],
)
def test_where_no_way_is_left(topology):
    with pytest.raises(UnreachableError, match="rank 0 cannot reach rank 1"):
        seconds(topology, (0, 1))


def test_the_level_of_a_rank():
    slow = as_topology("atlas-800t-a2:2x8").degrade(rank=3, level=1, factor=0.5)
    assert seconds(slow, (3, 11)) == pytest.approx(5e-6 + MB / 12.5e9)
    assert seconds(slow, (3, 4)) == pytest.approx(1.5e-6 + MB / 56e9)
    assert seconds(slow, (2, 10)) == pytest.approx(5e-6 + MB / 25e9)


def test_a_whole_level():
    slow = as_topology("atlas-800t-a2:2x8").degrade(level=0, factor=0.1)
    assert seconds(slow, (3, 4)) == pytest.approx(1.5e-6 + MB / 5.6e9)
    assert seconds(slow, (3, 11)) == pytest.approx(5e-6 + MB / 25e9)


def test_one_slow_rank_slows_all_that_wait_for_it():
    def step(x):
        return lax.psum(x @ x, "r")

    x = jax.ShapeDtypeStruct((100, 100), jnp.float32)
    schedule = hccljax.trace(step, x, axis_sizes={"r": 4}, compute=True)
    quick, slow = (simulate(schedule, each, rates=Rates(1e12)) for each in (MESH, MESH.degrade(rank=2, computing=0.5)))
    assert slow.seconds - quick.seconds == pytest.approx(2e-6)
    assert slow.computing == pytest.approx(4e-6)
    assert "degraded: rank 2 computes at 50%" in slow.assumptions


def test_an_algorithm_on_a_degraded_server():
    """A flat ring is as slow as its slowest link."""
    whole = as_topology("atlas-800t-a2:8")
    ring = hccljax.trace(
        lambda x: hccljax.all_reduce(x, "r", algorithm="ring"),
        jax.ShapeDtypeStruct((8 * MB,), "uint8"),
        axis_sizes={"r": 8},
    )
    assert simulate(ring, whole.degrade(link=(3, 4), factor=0.5)).seconds == pytest.approx(14 * (1.5e-6 + MB / 28e9))
    assert simulate(ring, whole.degrade(link=(3, 5), factor=0.5)).seconds == simulate(ring, whole).seconds


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "expected a link or a rank"),
        ({"link": (0, 1), "rank": 1}, "expected a link or a rank"),
        ({"link": (0, 0)}, "two different ranks"),
        ({"link": (0, 4)}, "rank=4: expected an int, 0 to 3"),
        ({"link": [0, 1]}, "two different ranks"),
        ({"link": (0, 1), "level": 0}, "expected no level"),
        ({"rank": -1}, "rank=-1"),
        ({"rank": True}, "rank=True"),
        ({"rank": 0, "level": 0.0}, "level=0.0: expected an int, 0 to 0"),
        ({"rank": 0, "factor": 0}, "factor=0"),
        ({"rank": 0, "factor": 1.5}, "factor=1.5"),
        ({"rank": 0, "factor": float("nan")}, "factor=nan"),
        ({"rank": 0, "computing": 0}, "computing=0"),
        ({"level": 3}, "level=3: expected an int, 0 to 0"),
        ({"level": 0, "computing": 0.5}, "expected the rank that computes slowly"),
    ],
)
def test_bad_faults(given, words):
    with pytest.raises(ArgumentError, match=words):
        MESH.degrade(**(given if "factor" in given or "computing" in given else given | {"factor": 0.5}))


def test_faults_that_change_nothing_or_say_two_things():
    for given in ({"rank": 0}, {"level": 0}, {"link": (0, 1)}, {"rank": 0, "factor": 1, "computing": 1.0}):
        with pytest.raises(ArgumentError, match="nothing is slower; expected factor="):
            MESH.degrade(**given)
    with pytest.raises(ArgumentError, match=r"lost=True, factor=0.5\): expected one of them"):
        MESH.degrade(rank=0, lost=True, factor=0.5)


def test_links_that_are_none():
    """They are refused when they are named, and when a wiring is taken that has them no more."""
    servers = Topology(levels=(Level("pair", 2, "full_mesh", 1e9, 0.0), Level("ring", 4, "ring", 1e9, 0.0)))
    for topology, link in ((SWITCH, (0, 1)), (RING, (0, 3)), (RING, (0, 2)), (servers, (0, 3)), (servers, (0, 4))):
        with pytest.raises(ArgumentError, match="has no link between these ranks"):
            topology.degrade(link=link, factor=0.5)
    for topology, link in ((RING, (0, 5)), (RING, (3, 2)), (servers, (0, 2)), (servers, (7, 1)), (servers, (2, 3))):
        assert topology.degrade(link=link, lost=True).faults[0].link == link
    assert as_topology("article:5+3").degrade(link=(5, 7), factor=0.5).faults
    with pytest.raises(ArgumentError, match=r"degrade\(link=\(0, 1\)\): mesh \(switch\) has no link"):
        MESH.degrade(link=(0, 1), lost=True).with_level(0, links="switch")
    with pytest.raises(ArgumentError, match="says nothing of its links"):
        Topology((8, 4)).degrade(link=(0, 1), lost=True)


def test_faults_are_said():
    slow = MESH.degrade(link=(1, 2), lost=True).degrade(rank=3, level=0, factor=0.5)
    assert [str(fault) for fault in slow.faults] == ["link 1-2 lost", "rank 3 level 0 at 50% of its bandwidth"]
    least = MESH.degrade(rank=0, factor=0.004, computing=0.001)
    assert str(least.faults[0]) == "rank 0 at 0.4% of its bandwidth computes at 0.1%"
    assert hash(slow) != hash(MESH)
