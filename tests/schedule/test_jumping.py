"""Loops that jump to their end: the same figures as a walk that takes every trip and knows no Schedule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax

from hccljax import trace
from hccljax.algorithm.base import algorithms, registered, run
from hccljax.algorithm.hierarchical import hierarchy
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule.clock import PortClock, StepClock
from hccljax.schedule.replay import replay
from hccljax.schedule.walk import Walker

P = 5
SIZES = {"r": P}
X = jax.ShapeDtypeStruct((2,), jnp.float32)


def send(x, pairs):
    return lax.ppermute(x, "r", pairs)


def ring(x):
    return send(x, [(r, (r + 1) % P) for r in range(P)])


def two_buffers(x):
    """One buffer rests while the other one travels: times grow by the same every second trip."""
    return lax.fori_loop(0, 41, lambda i, ab: (ring(ab[1]), ab[0]), (x, x))


def three_buffers(x):
    return lax.fori_loop(0, 50, lambda i, abc: (ring(abc[2]), abc[0], abc[1]), (x, x, x))


def overtaken(x):
    """A slow chain starts 40 trips ahead of one that is twice as fast: it is overtaken in the middle of the loop."""

    def body(i, carry):
        slow, fast = carry
        slow, fast = send(slow, [(0, 1), (1, 0)]), send(send(fast, [(2, 3), (3, 2)]), [(2, 3), (3, 2)])
        return slow, fast

    slow = lax.fori_loop(0, 40, lambda i, y: send(y, [(0, 1), (1, 0)]), x)
    slow, fast = lax.fori_loop(0, 100, body, (slow, x))
    return send(slow + fast, [(0, 2), (3, 4)])


def overtaken_inside(x):
    """The same, and the two meet in every trip."""

    def body(i, carry):
        slow, fast, _ = carry
        slow, fast = send(slow, [(0, 1), (1, 0)]), send(send(fast, [(1, 2), (2, 1)]), [(2, 3), (3, 2)])
        return slow, fast, send(slow + fast, [(1, 4)])

    slow = lax.fori_loop(0, 60, lambda i, y: send(y, [(0, 1), (1, 0)]), x)
    return lax.fori_loop(0, 150, body, (slow, x, x))


def constant_inside(x):
    """The body waits for something from before the loop, until the loop has caught up with it."""
    early = lax.fori_loop(0, 30, lambda i, y: ring(y), x)
    return lax.fori_loop(0, 80, lambda i, y: send(y + early, [(0, 1), (1, 2)]) + y, x)


def chain(x):
    return lax.fori_loop(0, 60, lambda i, y: send(y, [(0, 1), (1, 2), (2, 3)]), x)


def nested(x):
    def outer(i, y):
        return lax.fori_loop(0, 9, lambda j, z: ring(z) + y, send(y, [(0, 3)]))

    return lax.fori_loop(0, 20, outer, x)


def stacked(x):
    def body(y, row):
        y = ring(y)
        return y, send(row, [(0, 1)])

    last, rows = lax.scan(body, x, jnp.zeros((30, 2)))
    return send(rows[3], [(1, 2)]), last


def exchanges(x):
    def body(i, y):
        return lax.psum(send(y, [(0, 1)]), "r") + lax.all_gather(y, "r").sum(0)

    return lax.fori_loop(0, 30, body, x)


PROGRAMS = [
    two_buffers, three_buffers, overtaken, overtaken_inside, constant_inside, chain, nested, stacked, exchanges,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_loop_that_jumps_ends_where_the_full_walk_ends(program, full_walk, figures):
    assert figures(trace(program, X, axis_sizes=SIZES)) == full_walk(program, X, axis_sizes=SIZES)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_clocks_of_a_replay_without_jumps_show_the_same(program):
    schedule = trace(program, X, axis_sizes=SIZES)
    for clock in (StepClock, lambda: PortClock(P)):
        jumping, walking = clock(), clock()
        replay(schedule.events, schedule.loops, jumping)
        replay(schedule.events, schedule.loops, walking, jump=False)
        np.testing.assert_array_equal(jumping.state, walking.state)


@pytest.mark.parametrize("p", [3, 8, 13])
@pytest.mark.parametrize("name", algorithms())
def test_every_algorithm_has_the_figures_of_the_full_walk(name, p, full_walk, figures):
    algorithm = registered(name)
    operator = next(name for name in ("all_reduce", "reduce", "all_to_all") if algorithm.supports(name))
    x = jax.ShapeDtypeStruct((p, 1 << 18), jnp.float32)
    fn = lambda x: run(algorithm, operator, x, Group("r"), reduction("sum"))  # noqa: E731
    assert figures(trace(fn, x, axis_sizes={"r": p})) == full_walk(fn, x, axis_sizes={"r": p})


@pytest.mark.parametrize("operator", ["all_reduce", "all_gather", "broadcast"])
def test_so_has_a_hierarchy(operator, full_walk, figures):
    levels = hierarchy((registered("ring"), registered("H-D_R"), registered("mesh")), (3, 2, 2))
    fn = lambda x: run(levels, operator, x, Group("r", levels=(3, 2, 2)), reduction("sum"))  # noqa: E731
    x = jax.ShapeDtypeStruct((24,), jnp.float32)
    assert figures(trace(fn, x, axis_sizes={"r": 12})) == full_walk(fn, x, axis_sizes={"r": 12})


class TestSize:
    def test_a_ring_of_16384_ranks_is_two_events(self):
        fn = lambda x: run(registered("ring"), "all_reduce", x, Group("r"), reduction("sum"))  # noqa: E731
        schedule = trace(fn, jax.ShapeDtypeStruct((1 << 20,), jnp.float32), axis_sizes={"r": 16384})
        assert len(schedule) == 2
        assert (schedule.steps, schedule.rounds, schedule.permutes) == (32766, 32766, 32766)
        assert schedule.bytes_sent.tolist() == [32766 * 256] * 16384

    def test_ten_to_the_twelve_trips(self):
        fn = lambda x: lax.fori_loop(0, 10**6, lambda i, y: lax.fori_loop(0, 10**6, lambda j, z: ring(z), y), x)  # noqa: E731
        schedule = trace(fn, X, axis_sizes=SIZES)
        assert (schedule.permutes, schedule.max_bytes_sent) == (10**12, 8 * 10**12)

    def test_a_billion_trips_in_which_buffers_take_turns(self):
        fn = lambda x: lax.fori_loop(0, 10**9, lambda i, ab: (ring(ab[1]), ab[0]), (x, x))  # noqa: E731
        schedule = trace(fn, X, axis_sizes=SIZES)
        assert (schedule.steps, schedule.rounds) == (5 * 10**8, 10**9)

    def test_a_billion_silent_trips_that_exchange_values(self):
        def fn(x):
            early, late = lax.fori_loop(0, 10**9 + 1, lambda i, ab: (ab[1] + 1, ab[0]), (x, ring(x)))
            return ring(early), ring(ring(late))

        schedule = trace(fn, X, axis_sizes=SIZES)
        assert [event.needs for event in schedule] == [(), (0,), (), (2,)]


OPERATIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 2), st.permutations(range(P)), st.integers(1, P)),
    st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("swap"), st.integers(0, 2), st.integers(0, 2)),
)
BODIES = st.recursive(
    st.lists(OPERATIONS, min_size=1, max_size=4),
    lambda inner: st.lists(st.one_of(OPERATIONS, st.tuples(st.just("loop"), st.integers(0, 12), inner)), max_size=4),
    max_leaves=3,
)


def program_of(body):
    """A function of three values that the operations send, add up and swap."""

    def run_body(values):
        values = list(values)
        for name, *operands in body:
            if name == "send":
                k, order, sent = operands
                values[k] = send(values[k], [(order[i], order[(i + 1) % P]) for i in range(sent)])
            elif name == "add":
                values[operands[0]] = values[operands[0]] + values[operands[1]]
            elif name == "swap":
                a, b = operands
                values[a], values[b] = values[b], values[a]
            else:
                trips, inner = operands
                once = program_of(inner)
                values = list(lax.fori_loop(0, trips, lambda i, v, once=once: once(v), tuple(values)))
        return tuple(values)

    return run_body


@settings(max_examples=60, deadline=None)
@given(BODIES, st.integers(2, 40))
def test_random_loops_have_the_figures_of_the_full_walk(full_walk, figures, body, trips):
    fn = lambda x: lax.fori_loop(0, trips, lambda i, v: program_of(body)(v), (x, x, x))  # noqa: E731
    assert figures(trace(fn, X, axis_sizes=SIZES)) == full_walk(fn, X, axis_sizes=SIZES)


class Needs:
    """An interpretation of every trip; a value is the events it is computed from, numbered as they first come."""

    nothing = frozenset()

    def __init__(self):
        self.numbers, self.needs = {}, {}

    def enter(self, jaxpr):
        pass

    def local(self, equation, operands):
        return self.join(operands)

    def join(self, values):
        return frozenset().union(*values)

    def communicate(self, equation, operand, source):
        number = self.numbers.setdefault(id(equation), len(self.numbers))
        self.needs[number] = self.needs.get(number, frozenset()) | operand
        return frozenset({number})

    def loop(self, trips, body, carry, stacked):
        carry = list(carry)
        for _ in range(trips):
            carry = body(carry)
        return carry


@example(
    [("send", 0, range(P), 3), ("loop", 2, [("send", 0, range(P), 3), ("add", 0, 1)]), ("send", 1, range(P), 3)], 2
)
@settings(max_examples=60, deadline=None)
@given(BODIES, st.integers(2, 12))
def test_random_loops_need_what_their_trips_need(body, trips):
    fn = lambda x: lax.fori_loop(0, trips, lambda i, v: program_of(body)(v), (x, x, x))  # noqa: E731
    reading = Needs()
    jaxpr = jax.make_jaxpr(fn, axis_env=list(SIZES.items()))(X).jaxpr
    Walker(reading, SIZES).walk(jaxpr, [reading.nothing] * len(jaxpr.invars), [True] * len(jaxpr.outvars))
    found = {event.index: {*event.needs, *event.carried} for event in trace(fn, X, axis_sizes=SIZES)}
    assert found == reading.needs
