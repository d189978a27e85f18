"""Lower bounds against figures worked out by hand."""

import pytest

from hccljax.errors import ArgumentError
from hccljax.timing.bounds import lower_bound
from hccljax.topology import Level, Topology

GB = 1e9
SWITCH = Level("RoCE", 16, "switch", 25 * GB, 5e-6)
MESH = Level("HCCS", 8, "full_mesh", 56 * GB, 1.5e-6)
FOUR_SERVERS = Topology(levels=(MESH, Level("RoCE", 4, "switch", 25 * GB, 5e-6)))
N = 1 << 30


@pytest.mark.parametrize(
    ("operator", "seconds"),
    [
        ("all_reduce", 2 * 15 / 16 * N / 25e9),
        ("all_gather", 15 / 16 * N / 25e9),
        ("reduce_scatter", 15 / 16 * N / 25e9),
        ("all_to_all", 15 / 16 * N / 25e9),
        ("scatter", 15 / 16 * N / 25e9),
        ("gather", 15 / 16 * N / 25e9),
        ("broadcast", N / 25e9),
        ("reduce", N / 25e9),
    ],
)
def test_one_port_a_rank(operator, seconds):
    bound = lower_bound(operator, N, Topology(levels=(SWITCH,)))
    assert bound.bandwidth == pytest.approx(seconds, rel=1e-12)
    assert bound.latency == pytest.approx(4 * 5e-6)  # 16 ranks, doubling
    assert (bound.cut, bound.binds) == ("rank", "bandwidth of a rank's ports")


def test_links_of_a_full_mesh_count_together():
    bound = lower_bound("all_reduce", N, Topology(levels=(MESH,)))
    assert bound.bandwidth == pytest.approx(2 * 7 / 8 * N / (7 * 56e9))
    assert bound.latency == 1.5e-6  # one message reaches everybody


def test_a_server_is_the_narrowest_node():
    """Four servers of 8 ports: 2 · 3/4 of the message through 200 GB/s; a rank alone has 417 GB/s."""
    bound = lower_bound("all_reduce", N, FOUR_SERVERS)
    assert bound.bandwidth == pytest.approx(2 * 3 / 4 * N / 200e9)
    assert bound.cut == "HCCS"
    assert "HCCS" in bound.binds
    exchange = lower_bound("all_to_all", N, FOUR_SERVERS)
    assert exchange.bandwidth == pytest.approx(8 * 24 / 32 * N / 200e9)


def test_unequal_servers():
    """The server of 3 has 3 ports of its own: the whole message has to leave it."""
    levels = (Level("HCCS", 5, "full_mesh", 56 * GB, 0), Level("RoCE", 2, "switch", 25 * GB, 5e-6))
    bound = lower_bound("all_reduce", N, Topology(servers=(5, 3), levels=levels))
    assert bound.bandwidth == pytest.approx(N / 75e9)
    # A rank there has two links to its own server, not four as one of the server of 5, and its port: 3 GB/s at most.
    slow = (Level("HCCS", 5, "full_mesh", 1 * GB, 0), Level("RoCE", 2, "switch", 1 * GB, 5e-6))
    alone = lower_bound("all_gather", N, Topology(servers=(5, 3), levels=slow))
    assert alone.bandwidth == pytest.approx(7 / 8 * N / (3 * GB))
    assert alone.cut == "rank"


def test_root_decides_for_rooted_operators():
    levels = (Level("HCCS", 5, "full_mesh", 56 * GB, 0), Level("RoCE", 2, "switch", 25 * GB, 5e-6))
    topology = Topology(servers=(5, 3), levels=levels)
    assert lower_bound("scatter", N, topology, root=0).bandwidth == pytest.approx(3 / 8 * N / 75e9)
    assert lower_bound("scatter", N, topology, root=7).bandwidth == pytest.approx(5 / 8 * N / 75e9)


def test_small_messages_are_bound_by_latency():
    bound = lower_bound("all_reduce", 8, FOUR_SERVERS)
    assert bound.binds == "latency"
    assert bound.seconds == bound.latency == 5e-6


def test_one_rank_needs_nothing():
    assert lower_bound("all_reduce", N, Topology(levels=(Level("x", 1, "switch", 1.0, 1.0),))).seconds == 0


def test_a_spec_in_place_of_a_topology():
    assert lower_bound("all_reduce", N, "atlas-800t-a2:4x8") == lower_bound("all_reduce", N, FOUR_SERVERS)
    assert lower_bound("all_reduce", N, "4x8") == lower_bound("all_reduce", N, FOUR_SERVERS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sum", N, "4x8"), "operator='sum'"),
        (("all_reduce", -1, "4x8"), "nbytes=-1"),
        (("all_reduce", 1.5, "4x8"), "nbytes=1.5"),
        (("all_reduce", N, None), "topology None"),
        (("scatter", N, "4x8", 32), "root=32: expected an int, 0 to 31"),
        (("scatter", N, "4x8", 1.0), "root=1.0: expected an int, 0 to 31"),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        lower_bound(*arguments)
