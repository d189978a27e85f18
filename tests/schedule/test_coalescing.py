"""Runs of computations become one event where nobody can tell."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hccljax
from hccljax.schedule.event import COMPUTE

X = jax.ShapeDtypeStruct((8, 8), jnp.float32)
PRODUCT = 2 * 8**3


def traced(fn, *args):
    return hccljax.trace(fn, *(args or (X,)), axis_sizes={"r": 4}, compute=True)


def shape(schedule):
    return [(event.kind, event.needs) for event in schedule]


def test_a_run_is_one_event():
    schedule = traced(lambda x: lax.psum(jnp.tanh(x @ x) @ x + 1, "r"))
    assert shape(schedule) == [(COMPUTE, ()), ("psum", (0,))]
    assert schedule.flops == pytest.approx(2 * PRODUCT, rel=0.2)


def test_a_run_ends_where_a_message_needs_what_it_has_so_far():
    def step(x):
        a = x @ x
        b = a @ x
        return lax.psum(a, "r"), lax.psum(b, "r")

    assert shape(traced(step)) == [(COMPUTE, ()), (COMPUTE, ()), ("psum", (0,)), ("psum", (1,))]


def test_a_run_ends_before_what_waits_for_another_message():
    def step(x):
        a = lax.psum(x, "r")
        b = x @ x  # needs no message
        return b @ a

    assert shape(traced(step)) == [("psum", ()), (COMPUTE, ()), (COMPUTE, (0,))]


def test_what_waits_for_the_same_message_is_one_run():
    def step(x):
        a = lax.psum(x, "r")
        return (a @ a) @ a

    assert shape(traced(step)) == [("psum", ()), (COMPUTE, (0,))]


def test_runs_do_not_leave_their_loop():
    def step(x):
        x = x @ x
        x = lax.fori_loop(0, 3, lambda _, v: lax.ppermute(v @ v, "r", [(0, 1)]), x)
        return x @ x

    schedule = traced(step)
    assert [(event.kind, event.trips, event.loop) for event in schedule] == [
        (COMPUTE, 1, None),
        (COMPUTE, 3, 0),
        ("permute", 3, 0),
        (COMPUTE, 1, None),
    ]
    assert schedule.loops[0].events == range(1, 3)
    assert schedule[3].needs == (2,)


def test_what_a_loop_hands_on_is_kept_apart():
    def body(carry, _):
        x, y = carry
        y = y @ y  # handed on, and not what is sent
        x = lax.ppermute(x @ x, "r", [(0, 1), (1, 0)])
        return (x, y), None

    schedule = traced(lambda x: lax.scan(body, (x, x), None, length=4)[0])
    assert [(event.kind, event.trips) for event in schedule] == [(COMPUTE, 4), (COMPUTE, 4), ("permute", 4)]


def test_steps_are_those_of_the_communications_alone():
    def step(x):
        for _ in range(3):
            x = lax.psum(x @ x, "r")
        return x @ x

    full, plain = traced(step), hccljax.trace(step, X, axis_sizes={"r": 4})
    assert (full.steps, full.exchanges, full.rounds) == (plain.steps, plain.exchanges, plain.rounds)
    assert [event.stream for event in full if event.is_communication] == [event.stream for event in plain]


def test_a_long_program_is_traced_in_time_that_grows_with_it():
    """4,000 equations in few events; the count is what is checked, no clock."""

    def step(x):
        for k in range(1000):
            x = jnp.tanh(x * (1.0 + k)) + 1
            if k % 100 == 99:
                x = lax.psum(x, "r")
        return x

    schedule = traced(step)
    assert len(schedule) == 20
    assert schedule.flops == pytest.approx(1000 * 3 * 64, rel=0.4)
