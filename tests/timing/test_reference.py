"""The clock against a slow one that looks at one message after the other, on random programs and topologies."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import hccljax
from hccljax.schedule.clock import StepClock
from hccljax.schedule.replay import replay
from hccljax.timing.simulation import simulate
from hccljax.topology import Level, Topology

P = 12
X = jax.ShapeDtypeStruct((64,), "float32")
LEVELS = st.sampled_from(["switch", "full_mesh", "ring"])
PAIRS = st.permutations(range(P)).flatmap(
    lambda to: st.sets(st.integers(0, P - 1), min_size=1).map(lambda some: [(r, to[r]) for r in sorted(some)])
)


class OneByOne(StepClock):
    """Times are [1, n], in seconds; each message looks up what it waits for by name."""

    def __init__(self, topology, eager):
        super().__init__()
        self.topology, self.eager = topology, eager
        self.free, self.done = defaultdict(float), defaultdict(float)
        self.nothing = np.zeros((1, P))
        self.state = np.zeros((1, 1))

    def way(self, a, b):
        """(level, ports, hops) of a message."""
        sizes = [level.size for level in self.topology.levels]
        here, there = ([r // int(np.prod(sizes[:k])) % sizes[k] for k in range(len(sizes))] for r in (a, b))
        k = max(k for k in range(len(sizes)) if here[k] != there[k])
        level, stride = self.topology.levels[k], int(np.prod(sizes[:k]))
        if level.links == "switch":
            return level, [("out", k, a), ("in", k, b)], 1
        if level.links == "full_mesh":
            return level, [("to", k, a, there[k]), ("from", k, b, here[k])], 1
        ahead = (there[k] - here[k]) % level.size
        step = 1 if 2 * ahead <= level.size else -1
        hops = ahead if step == 1 else level.size - ahead
        at = [(here[k] + step * h) % level.size for h in range(hops)]
        return level, [("link", k, a + (place - here[k]) * stride, step) for place in at], hops

    def communicate(self, event, operand):
        operand = np.broadcast_to(operand, (1, P))[0]
        times = np.zeros(P)
        times[event.stays] = operand[event.stays]
        after = dict(self.done)
        for sources, destinations in event.rounds():
            ways = [self.way(a, b) for a, b in zip(sources, destinations, strict=True)]
            shared = defaultdict(int)
            for _, ports, _ in ways:
                for port in ports:
                    shared[port] += 1
            ends = {}
            for a, b, (level, ports, hops) in zip(sources, destinations, ways, strict=True):
                waits = [operand[a], *(self.free[port] for port in ports)]
                if not self.eager:
                    waits += [operand[b] * 0, self.done[event.stream, a], self.done[event.stream, b]]
                load = max(shared[port] for port in ports) if level.links == "ring" else 1
                end = max(waits) + level.latency * hops + event.nbytes * load / level.bandwidth
                times[b] = max(times[b], end)
                ends.update({port: max(end, ends.get(port, 0)) for port in ports})
                for rank in (a, b):
                    after[event.stream, rank] = max(after.get((event.stream, rank), 0.0), end)
            self.free.update(ends)
        self.done.update(after)
        self.state = np.maximum(self.state, max(self.free.values(), default=0.0))
        return times[None]


def topologies(draw):
    inner = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    sizes = [size for size in (inner, P // inner) if size > 1]
    return Topology(
        levels=tuple(
            Level(f"l{k}", size, draw(LEVELS), draw(st.sampled_from([1e9, 3e9])), draw(st.sampled_from([0.0, 1e-6])))
            for k, size in enumerate(sizes)
        )
    )


def program(draw):
    """A loop of sends of three values among each other, and some after it."""
    body = draw(st.lists(st.tuples(PAIRS, st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=3))
    tail = draw(st.lists(st.tuples(PAIRS, st.integers(0, 2), st.integers(0, 2)), max_size=2))
    trips = draw(st.integers(1, 40))

    def sent(moves, values):
        values = list(values)
        for pairs, a, b in moves:
            values[b] = values[b] + lax.ppermute(values[a], "r", pairs)
        return tuple(values)

    return lambda x: sent(tail, lax.fori_loop(0, trips, lambda i, v: sent(body, v), (x, x, x)))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_random_programs(data):
    topology, eager = topologies(data.draw), data.draw(st.booleans())
    schedule = hccljax.trace(program(data.draw), X, axis_sizes={"r": P})
    slow = OneByOne(topology, eager)
    replay(schedule.events, schedule.loops, slow, jump=False)
    found = simulate(schedule, topology, mode="eager" if eager else "ordered")
    np.testing.assert_allclose(found.seconds, slow.state[0, 0], rtol=1e-9)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_eager_is_never_slower(data):
    topology = topologies(data.draw)
    schedule = hccljax.trace(program(data.draw), X, axis_sizes={"r": P})
    eager, ordered = (simulate(schedule, topology, mode=mode).seconds for mode in ("eager", "ordered"))
    assert eager <= ordered * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_timelines_end_when_the_simulation_does(data):
    topology = topologies(data.draw)
    found = simulate(hccljax.trace(program(data.draw), X, axis_sizes={"r": P}), topology)
    timeline = found.timeline()
    np.testing.assert_allclose(timeline.seconds, found.seconds, rtol=1e-12)
    path = timeline.critical_path()
    assert all(a.combined == b.start for a, b in pairwise(path))
    if path:
        assert path[0].start == 0
        assert path[-1].combined == timeline.seconds
