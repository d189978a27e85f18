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
from hccljax.group import Group
from hccljax.schedule.clock import StepClock
from hccljax.schedule.replay import replay
from hccljax.timing.simulation import simulate
from hccljax.topology import Level, Topology

P = 12
X = jax.ShapeDtypeStruct((64,), "float32")
GAMMAS = st.sampled_from([0.0, 1e-10, 1e-8])
LEVELS = st.sampled_from(["switch", "full_mesh", "ring"])
PAIRS = st.permutations(range(P)).flatmap(
    lambda to: st.sets(st.integers(0, P - 1), min_size=1).map(lambda some: [(r, to[r]) for r in sorted(some)])
)

EXCHANGES = (
    lambda x: lax.psum(x, "r"),
    lambda x: lax.all_gather(x, "r")[1],
    lambda x: Group("r", np.arange(P).reshape(3, 4).tolist()).mesh_gather(x)[1],
    lambda x: Group("r", np.arange(P).reshape(3, 4).T.tolist()).mesh_gather(x)[1],
)


class OneByOne(StepClock):
    """Times are [1, n], in seconds; each message looks up what it waits for by name."""

    def __init__(self, topology, eager, gamma):
        super().__init__()
        self.topology, self.eager, self.gamma = topology, eager, gamma
        self.free, self.done, self.combining = defaultdict(float), defaultdict(float), defaultdict(float)
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
        ports = [("link", k, a + (place - here[k]) * stride, step) for place in at]
        before = (there[k] - step) % level.size
        arrival = ("link", k, b + (before - there[k]) * stride, step)
        return level, [*ports, *([] if arrival in ports else [arrival])], hops

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
                ends.update({port: max(end, ends.get(port, 0)) for port in ports})
                there = end
                if event.reduces:
                    there = self.combining[b] = max(end, self.combining[b]) + event.nbytes * self.gamma
                times[b] = max(times[b], there)
                for rank, done in ((a, end), (b, there)):
                    after[event.stream, rank] = max(after.get((event.stream, rank), 0.0), done)
            self.free.update(ends)
        self.done.update(after)
        self.state = np.maximum(self.state, max([*self.free.values(), *self.combining.values()], default=0.0))
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
    """A loop of sends of three values among each other, some of them combined, and some after it."""
    move = st.tuples(st.one_of(PAIRS, st.sampled_from(EXCHANGES)), st.integers(0, 2), st.integers(0, 2), st.booleans())
    body = draw(st.lists(move, min_size=1, max_size=3))
    tail = draw(st.lists(move, max_size=2))
    trips = draw(st.integers(1, 40))

    def sent(moves, values):
        values = list(values)
        for who, a, b, combines in moves:
            if callable(who):
                received = who(values[a])
            else:
                received = Group("r").permute(values[a], who, "random_reduce" if combines else "random")
            values[b] = values[b] + received
        return tuple(values)

    return lambda x: sent(tail, lax.fori_loop(0, trips, lambda i, v: sent(body, v), (x, x, x)))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_random_programs(data):
    topology, eager, gamma = topologies(data.draw), data.draw(st.booleans()), data.draw(GAMMAS)
    schedule = hccljax.trace(program(data.draw), X, axis_sizes={"r": P})
    slow = OneByOne(topology, eager, gamma)
    replay(schedule.events, schedule.loops, slow, jump=False)
    found = simulate(schedule, topology, gamma=gamma, mode="eager" if eager else "ordered")
    np.testing.assert_allclose(found.seconds, slow.state[0, 0], rtol=1e-9)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_eager_is_never_slower(data):
    topology, gamma = topologies(data.draw), data.draw(GAMMAS)
    schedule = hccljax.trace(program(data.draw), X, axis_sizes={"r": P})
    eager, ordered = (simulate(schedule, topology, gamma=gamma, mode=mode).seconds for mode in ("eager", "ordered"))
    assert eager <= ordered * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_timelines_end_when_the_simulation_does(data):
    topology, gamma, mode = topologies(data.draw), data.draw(GAMMAS), data.draw(st.sampled_from(["ordered", "eager"]))
    schedule = hccljax.trace(program(data.draw), X, axis_sizes={"r": P})
    found = simulate(schedule, topology, gamma=gamma, mode=mode)
    timeline = found.timeline()
    np.testing.assert_allclose(timeline.seconds, found.seconds, rtol=1e-12)
    path = timeline.critical_path()
    assert all(a.combined == b.start for a, b in pairwise(path))
    if path:
        assert path[0].start == 0
        assert path[-1].combined == timeline.seconds
        assert [one.waited_for == "" for one in path] == [True] + [False] * (len(path) - 1)
        assert all(meets(*two, topology) for two in pairwise(path))


def meets(before, after, topology):
    """What came before is at an end of what waited for it, or, on a ring, on a link that both take."""
    met = {before.source, before.destination} & {after.source, after.destination}
    if after.waited_for == "value":
        return after.source in (before.destination, before.source)
    if after.waited_for == "combine":
        return before.destination == after.destination
    return bool(met) or (after.waited_for == "port" and topology.levels[after.level].links == "ring")
