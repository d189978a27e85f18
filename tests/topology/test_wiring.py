"""Wiring: which ports each message takes, by hand, on every kind of level."""

import numpy as np
import pytest

from hccljax.topology import Level, Topology, as_topology
from hccljax.topology.wiring import Wiring


def routes(topology, *pairs):
    sources, destinations = np.array(pairs).T
    return Wiring(topology).routes(sources, destinations)


def ports_of(topology, source, destination):
    (ports,) = routes(topology, (source, destination)).ports
    return {int(port) for port in ports if port}


SWITCH = Topology(levels=(Level("port", 4, "switch", 10.0, 1.0),))
MESH = Topology(levels=(Level("mesh", 4, "full_mesh", 10.0, 1.0),))
RING = Topology(levels=(Level("ring", 6, "ring", 10.0, 1.0),))
TWO = Topology(levels=(Level("mesh", 3, "full_mesh", 10.0, 1.0), Level("port", 2, "switch", 5.0, 2.0)))
KINDS = [SWITCH, MESH, RING, TWO]


def test_a_switch_has_two_ports_a_rank():
    out, inward = ports_of(SWITCH, 0, 1), ports_of(SWITCH, 2, 1)
    assert len(out & inward) == 1  # the inward port of rank 1
    assert len(ports_of(SWITCH, 0, 1) & ports_of(SWITCH, 0, 3)) == 1  # the outward port of rank 0
    assert not ports_of(SWITCH, 0, 1) & ports_of(SWITCH, 1, 0)  # it is duplex
    assert not ports_of(SWITCH, 0, 1) & ports_of(SWITCH, 2, 3)
    assert Wiring(SWITCH).ports == 1 + 2 * 4


def test_a_full_mesh_has_a_link_for_each_pair():
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    taken = [ports_of(MESH, a, b) for a, b in pairs]
    assert all(not one & other for k, one in enumerate(taken) for other in taken[k + 1 :])


def test_a_ring_goes_the_shorter_way():
    """Links are named by where they start: up from r is one port, down from r another."""
    up, down = (lambda r: ports_of(RING, r, (r + 1) % 6)), (lambda r: ports_of(RING, r, (r - 1) % 6))
    assert ports_of(RING, 0, 2) == up(0) | up(1)
    assert ports_of(RING, 0, 4) == down(0) | down(5)
    assert ports_of(RING, 5, 1) == up(5) | up(0)
    assert ports_of(RING, 0, 3) == up(0) | up(1) | up(2)  # as far both ways: up
    assert len(set().union(*(up(r) | down(r) for r in range(6)))) == 12


def test_a_ring_of_two_is_one_link_each_way():
    pair = Topology(levels=(Level("ring", 2, "ring", 10.0, 1.0),))
    assert len(ports_of(pair, 0, 1)) == len(ports_of(pair, 1, 0)) == 1
    assert not ports_of(pair, 0, 1) & ports_of(pair, 1, 0)


def test_a_ring_of_servers_is_left_and_reached_by_ones_own_links():
    """Servers in a ring, two ranks each: a message to the other place takes a link at both its ends."""
    both = Topology(levels=(Level("pair", 2, "full_mesh", 10.0, 1.0), Level("ring", 4, "ring", 5.0, 2.0)))
    assert len(ports_of(both, 0, 2)) == 1
    assert len(ports_of(both, 0, 3)) == 2
    assert ports_of(both, 0, 2) < ports_of(both, 0, 3)  # leaves by rank 0's link
    assert ports_of(both, 1, 3) < ports_of(both, 0, 3)  # arrives by rank 3's


def test_rings_of_unequal_servers_are_as_large_as_these():
    uneven = as_topology("article:5+3")
    assert routes(uneven, (7, 5), (4, 0), (5, 6)).ports.max() < Wiring(uneven).ports
    assert len(ports_of(uneven, 5, 7)) == 1  # three in a ring: the neighbour on the other side
    assert len(ports_of(uneven, 0, 3)) == 2


def test_messages_of_a_call_share_links():
    found = routes(RING, (0, 2), (1, 2), (3, 4))
    assert found.rate.tolist() == [5.0, 5.0, 10.0]
    assert found.latency.tolist() == [2.0, 1.0, 1.0]


def test_the_outermost_level_that_differs_is_crossed():
    found = routes(TWO, (0, 1), (0, 3), (0, 4), (5, 2))
    assert found.level.tolist() == [0, 1, 1, 1]
    assert found.latency.tolist() == [1.0, 2.0, 2.0, 2.0]
    assert found.rate.tolist() == [10.0, 5.0, 5.0, 5.0]
    assert len(ports_of(TWO, 0, 4) & ports_of(TWO, 0, 3)) == 1  # both leave by rank 0's port


def test_levels_of_ports():
    wiring = Wiring(TWO)
    found = wiring.routes(np.array([0, 0]), np.array([1, 4]))
    assert wiring.levels[found.ports[:, 0]].tolist() == [0, 1]
    assert wiring.levels[0] == -1
    assert len(wiring.levels) == wiring.ports


def test_oversubscription_slows_messages_down():
    thin = Topology(levels=(Level("port", 4, "switch", 10.0, 0.0, oversubscription=4.0),))
    assert routes(thin, (0, 1)).rate.tolist() == [2.5]


def test_unequal_servers():
    uneven = as_topology("atlas-800t-a2:5+3")
    found = routes(uneven, (0, 4), (4, 5), (5, 7), (3, 6))
    assert found.level.tolist() == [0, 1, 0, 1]


def test_three_levels():
    pods = as_topology("atlas-800t-a2:2x4x8")
    assert routes(pods, (0, 7), (0, 8), (0, 31), (0, 32), (63, 31)).level.tolist() == [0, 1, 1, 2, 2]


def test_two_meshes_of_a_server():
    server = as_topology("atlas-800-910:2x8")
    assert routes(server, (0, 3), (0, 4), (0, 8)).level.tolist() == [0, 1, 2]


def test_dies_of_a_super_pod():
    pod = as_topology("atlas-900-a3:2x24x16")
    found = routes(pod, (0, 1), (0, 2), (0, 16), (0, 384))
    assert [pod.levels[k].name for k in found.level] == ["SIO", "HCCS", "HCCS", "RoCE"]


@pytest.mark.parametrize("topology", KINDS, ids=["switch", "mesh", "ring", "two levels"])
def test_no_message_takes_a_port_twice_and_every_one_takes_some(topology):
    n = topology.ranks
    for a in range(n):
        for b in range(n):
            if a != b:
                (ports,) = routes(topology, (a, b)).ports
                taken = ports[ports > 0]
                assert 1 <= len(taken) == len(set(taken.tolist()))
                assert taken.max() < Wiring(topology).ports


@pytest.mark.parametrize("topology", KINDS, ids=["switch", "mesh", "ring", "two levels"])
def test_many_messages_take_the_ports_that_each_takes_alone(topology):
    n = topology.ranks
    pairs = [(r, (r + 1) % n) for r in range(n)]
    together = routes(topology, *pairs)
    for k, (a, b) in enumerate(pairs):
        assert {int(port) for port in together.ports[k] if port} == ports_of(topology, a, b)
