"""Ports that nobody has to wait for are left out, and it makes no difference."""

import jax
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax.algorithm import algorithms, registered
from hccljax.group import Group
from hccljax.timing.settling import makespans, settled
from hccljax.topology import Level, Topology

X = jax.ShapeDtypeStruct((8000,), "uint8")


def waited_for(fn, topology, **options):
    """(ports that messages wait for, ports that messages take)."""
    run = settled(hccljax.trace(fn, X, axis_sizes={"r": topology.ranks}), topology, **options)
    taken = {int(port) for rounds in run.rounds.values() for one in rounds for port in one.ports.reshape(-1)} - {0}
    found = {int(port) for port in np.flatnonzero(run.cells)}
    assert found <= taken
    assert sorted(run.cells[list(found)]) == list(range(1, len(found) + 1))
    return len(found), len(taken)


@pytest.mark.parametrize("links", ["switch", "full_mesh"])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "NHR", "NB", "H-D_R"])
def test_no_port_of_a_collective_that_goes_step_by_step(algorithm, links, uniform):
    ports, taken = waited_for(lambda x: hccljax.all_reduce(x, "r", algorithm=algorithm), uniform(8, links))
    assert ports == 0
    assert taken > 8


def test_a_switch_in_an_exchange_but_no_full_mesh(uniform):
    assert waited_for(lambda x: lax.psum(x, "r"), uniform(8)) == (16, 16)
    assert waited_for(lambda x: lax.psum(x, "r"), uniform(8, "full_mesh")) == (0, 2 * 8 * 7)


def test_ports_that_two_streams_share(uniform):
    """0 → 1 and 0 → 2 leave by one port of a switch; the ports at which they arrive are their own."""
    both = lambda x: (lax.ppermute(x, "r", [(0, 1)]), lax.ppermute(x, "r", [(0, 2)]))  # noqa: E731
    assert waited_for(both, uniform(3)) == (1, 3)
    assert waited_for(both, uniform(3, "full_mesh")) == (0, 4)


def test_links_that_carry_what_others_send(uniform):
    onwards = lambda k: lambda x: lax.ppermute(x, "r", [(r, (r + k) % 8) for r in range(8)])  # noqa: E731
    assert waited_for(onwards(1), uniform(8, "ring")) == (0, 8)
    assert waited_for(onwards(2), uniform(8, "ring")) == (8, 8)


def test_a_link_that_forwards_is_not_its_senders_alone(uniform):
    """0 → 3 crosses the link from 1 to 2, which neither end of 1 → 2 knows of; 8,000 bytes take 8 µs."""
    fn = lambda x: lax.ppermute(lax.ppermute(x, "r", [(0, 3)]), "r", [(1, 2)])  # noqa: E731
    assert waited_for(fn, uniform(8, "ring")) == (1, 3)
    schedule = hccljax.trace(fn, X, axis_sizes={"r": 8})
    assert hccljax.simulate(schedule, uniform(8, "ring")).seconds == pytest.approx((3 + 8 + 1 + 8) * 1e-6)


def test_every_port_where_streams_have_no_order(uniform):
    ring = lambda x: hccljax.all_reduce(x, "r", algorithm="ring")  # noqa: E731
    assert waited_for(ring, uniform(8), mode="eager") == (16, 16)


@pytest.mark.parametrize("faults", [(), ({"rank": 1, "factor": 0.3},), ({"link": (2, 3), "lost": True},)])
@pytest.mark.parametrize("links", [("full_mesh", "switch"), ("switch", "switch"), ("ring", "ring")])
@pytest.mark.parametrize("name", [name for name in algorithms() if name != "native"])
def test_times_are_those_with_all_ports(name, links, faults, schedule_of):
    record = registered(name).over((4, 3)) if registered(name).over else registered(name)
    operator = next(each for each in ("all_reduce", "reduce", "all_to_all") if record.supports(each))
    topology = Topology(levels=tuple(Level(f"l{k}", (4, 3)[k], links[k], 3e9 - k * 2e9, 1e-6) for k in range(2)))
    if faults and links[0] == "switch" and "link" in faults[0]:
        faults = ({"rank": 1, "level": 0, "factor": 0.5},)
    for fault in faults:
        topology = topology.degrade(**fault)
    schedule = schedule_of(record, operator, 12, 12 << 10, (4, 3))
    without, with_all = (settled(schedule, topology, gamma=1e-10) for _ in range(2))
    with_all.__dict__["cells"] = np.arange(with_all.wiring.ports)
    scales = [0.01, 1.0, 1000.0]
    np.testing.assert_array_equal(makespans(without, scales), makespans(with_all, scales))


def test_of_two_groups_at_once(uniform):
    """Two communicators in one event, and one of them again in a stream of its own."""

    def fn(x):
        halves = Group("r", [[0, 1, 2, 3], [4, 5, 6, 7]]).shift(x, 1)
        return halves, lax.ppermute(x, "r", [(0, 1), (1, 0)])

    assert waited_for(fn, uniform(8)) == (4, 16)
