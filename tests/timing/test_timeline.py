"""Timelines: every message where it belongs, and the chain that takes all the time."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax import Rates
from hccljax.topology import Level, Topology

X = jax.ShapeDtypeStruct((1000,), jnp.uint8)


def on(links, p, alpha=1e-6):
    return Topology(levels=(Level("links", p, links, 1e9, alpha),))


def timeline_of(fn, topology, *args, **options):
    args = args or (X,)
    schedule = hccljax.trace(fn, *args, axis_sizes={"r": topology.ranks}, compute=bool(options.get("rates")))
    return hccljax.simulate(schedule, topology, **options).timeline()


def spans(intervals):
    return [(one.source, one.destination, round(one.start * 1e6, 6), round(one.end * 1e6, 6)) for one in intervals]


def test_messages_of_a_chain():
    def chain(x):
        x = lax.ppermute(x, "r", [(0, 1)])
        x = lax.ppermute(x, "r", [(1, 2)])
        return lax.ppermute(x, "r", [(2, 3)])

    timeline = timeline_of(chain, on("switch", 4))
    assert spans(timeline) == [(0, 1, 0, 2), (1, 2, 2, 4), (2, 3, 4, 6)]
    assert spans(timeline.critical_path()) == spans(timeline)
    assert timeline.seconds == pytest.approx(6e-6)


def test_a_port_decides():
    """Two messages to one rank: the second waits for its port, not for a value."""
    both = lambda x: (lax.ppermute(x, "r", [(0, 2)]), lax.ppermute(x, "r", [(1, 2)]))  # noqa: E731
    timeline = timeline_of(both, on("switch", 3))
    assert spans(timeline) == [(0, 2, 0, 2), (1, 2, 2, 4)]
    assert spans(timeline.critical_path()) == [(0, 2, 0, 2), (1, 2, 2, 4)]
    assert spans(timeline_of(both, on("full_mesh", 3))) == [(0, 2, 0, 2), (1, 2, 0, 2)]


def test_loops_are_run_trip_by_trip():
    ring = lambda x: lax.fori_loop(0, 5, lambda _, v: lax.ppermute(v, "r", [(r, (r + 1) % 4) for r in range(4)]), x)  # noqa: E731
    timeline = timeline_of(ring, on("switch", 4))
    assert len(timeline) == 20
    assert [timeline[index].trip for index in range(0, 20, 4)] == [0, 1, 2, 3, 4]
    path = timeline.critical_path()
    assert [one.trip for one in path] == [0, 1, 2, 3, 4]
    assert all(before.destination == after.source for before, after in pairwise(path))


def test_the_slow_link_is_on_the_path():
    slow = on("full_mesh", 8).degrade(link=(3, 4), factor=0.1)
    ring = lambda x: hccljax.all_reduce(x, "r", algorithm="ring")  # noqa: E731
    path = timeline_of(ring, slow).critical_path()
    assert sum((one.source, one.destination) == (3, 4) for one in path) >= len(path) // 2


def test_computation_is_on_the_path():
    x = jax.ShapeDtypeStruct((100, 100), jnp.float32)
    step = lambda x: lax.ppermute(x @ x, "r", [(0, 1)]) @ x  # noqa: E731
    path = timeline_of(step, on("switch", 2), x, rates=Rates(1e12)).critical_path()
    assert [(one.level, one.name) for one in path] == [(-1, "compute"), (0, "permute"), (-1, "compute")]
    assert str(path[0]).endswith("rank 0 computes")
    assert [one.start for one in path[1:]] == [one.end for one in path[:-1]]


def test_combining_belongs_to_the_receiver():
    reduce = lambda x: hccljax.reduce(x, "r", algorithm="tree")  # noqa: E731
    (first, *_) = timeline_of(reduce, on("switch", 4), gamma=1e-9)
    assert first.end - first.start == pytest.approx(2e-6)
    assert first.combined - first.end == pytest.approx(1e-6)


def test_what_a_rank_does_is_sorted_by_start():
    timeline = timeline_of(lambda x: hccljax.all_reduce(x, "r", algorithm="tree"), on("switch", 8))
    for rank in range(8):
        mine = timeline.of_rank(rank)
        starts = [one.start for one in mine]
        assert starts == sorted(starts)
        assert all(rank in (one.source, one.destination) for one in mine)
    assert sum(len(timeline.of_rank(rank)) for rank in range(8)) == 2 * len(timeline)


def test_indices():
    timeline = timeline_of(lambda x: lax.ppermute(x, "r", [(0, 1), (1, 0)]), on("switch", 2))
    assert timeline[-1].source == 1
    with pytest.raises(IndexError):
        timeline[2]
    assert len(list(timeline)) == 2


@pytest.mark.parametrize(
    "algorithm", ["ring", "tree", "NHR", "H-D_R", "double_tree", "mesh", "pipeline", "NHR_pipeline"]
)
def test_a_rank_sends_one_message_at_a_time_over_each_port(algorithm):
    """By the ports' numbers: no two messages are on one at the same time."""
    topology = hccljax.topology.as_topology("atlas-800t-a2:2x4")
    timeline = timeline_of(
        lambda x: hccljax.all_reduce(x, "r", algorithm=algorithm, topology="2x4"),
        topology,
        jax.ShapeDtypeStruct((8 << 10,), jnp.uint8),
    )
    used = {}
    for one in timeline:
        level = topology.levels[one.level]
        ends = [("out", one.level, one.source), ("in", one.level, one.destination)]
        if level.links == "full_mesh":
            ends = [("link", one.level, one.source, one.destination)]
        for port in ends:
            used.setdefault(port, []).append((one.start, one.end))
    for intervals in used.values():
        starts, stops = np.array(sorted(intervals)).T
        assert (starts[1:] >= stops[:-1] - 1e-15).all()


class TestWhatIsWaitedFor:
    def test_a_value_a_stream_a_port(self):
        """0 → 1 → 2 one after the other; 3 → 2 and 1 → 3 in streams of their own, which share ports with them."""

        def sends(x):
            y = lax.ppermute(lax.ppermute(x, "r", [(0, 1)]), "r", [(1, 2)])
            return y, lax.ppermute(x, "r", [(3, 2)]), lax.ppermute(x, "r", [(1, 3)])

        timeline = timeline_of(sends, on("switch", 4))
        assert spans(timeline) == [(0, 1, 0, 2), (1, 2, 2, 4), (3, 2, 4, 6), (1, 3, 4, 6)]
        assert [one.waited_for for one in timeline] == ["", "value", "port", "port"]
        assert [one.waited_for for one in timeline.critical_path()] == ["", "value", "port"]

    def test_the_receiver_is_not_done_with_its_stream(self):
        """Rank 4 of a tree's reduce has what it sends from the start; rank 0 still has others to hear."""
        timeline = timeline_of(lambda x: hccljax.reduce(x, "r", algorithm="tree"), on("full_mesh", 5))
        assert spans(timeline) == [(1, 0, 0, 2), (3, 2, 0, 2), (2, 0, 2, 4), (4, 0, 4, 6)]
        assert [one.waited_for for one in timeline] == ["", "", "value", "stream"]

    def test_computations_wait_for_each_other(self):
        x = jax.ShapeDtypeStruct((100, 100), jnp.float32)

        def step(x):
            early = lax.ppermute(x @ x, "r", [(0, 1)])
            return early, lax.ppermute(x @ x.T, "r", [(1, 0)])

        path = timeline_of(step, on("switch", 2), x, rates=Rates(1e9)).critical_path()
        assert [(one.name, one.waited_for) for one in path] == [
            ("compute", ""), ("compute", "compute"), ("permute", "value"),
        ]  # fmt: skip

    def test_a_receiver_combines_one_message_after_the_other(self):
        """A star's reduce on links of their own: all messages arrive at 2 µs, and are combined in 3 µs each."""
        fn = lambda x: hccljax.reduce(x, "r", algorithm="star")  # noqa: E731
        path = timeline_of(fn, on("full_mesh", 4), gamma=3e-9).critical_path()
        assert spans(path) == [(1, 0, 0, 2), (2, 0, 5, 5), (3, 0, 8, 8)]
        assert [(round(one.combined * 1e6), one.waited_for) for one in path] == [
            (5, ""),
            (8, "combine"),
            (11, "combine"),
        ]

    def test_who_held_up_a_port_counts_until_it_arrived(self):
        """On one port the messages queue; what the receiver does with the first two is hidden behind the third."""
        fn = lambda x: hccljax.reduce(x, "r", algorithm="star")  # noqa: E731
        path = timeline_of(fn, on("switch", 4), gamma=1e-9).critical_path()
        assert [(round(one.start * 1e6), round(one.combined * 1e6)) for one in path] == [(0, 2), (2, 4), (4, 7)]
        assert [one.waited_for for one in path] == ["", "port", "port"]
