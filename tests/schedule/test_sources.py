"""The line of the user's code, every form of control flow, and what cannot be known."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import hccljax
from hccljax import ArgumentError

MESH = AbstractMesh((4,), ("r",), axis_types=(AxisType.Auto,))
P = PartitionSpec


def shift(x):
    return lax.ppermute(x, "r", [(r, (r + 1) % 4) for r in range(4)])  # shift


def shift_by_two(x):
    return lax.ppermute(x, "r", [(r, (r + 2) % 4) for r in range(4)])


def line_of(text):
    """The number of the only line of this file that ends with a comment of that text."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    (number,) = [k for k, line in enumerate(lines, 1) if line.endswith(f"  # {text}")]
    return number


def at(text, function):
    return f"test_sources.py:{line_of(text)} in {function}"


def ring(x):
    return hccljax.all_reduce(x, "r", algorithm="ring")  # ring


def wrapped_jvp(fn):
    wrapped = jax.custom_jvp(fn)
    wrapped.defjvp(lambda primals, tangents: (fn(*primals), fn(*tangents)))
    return wrapped


def wrapped_vjp(fn):
    wrapped = jax.custom_vjp(fn)
    wrapped.defvjp(lambda x: (fn(x), None), lambda _, cotangent: (fn(cotangent),))
    return wrapped


FORMS = {
    "bare": lambda fn: fn,
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "custom_jvp": wrapped_jvp,
    "custom_vjp": wrapped_vjp,
    "scan": lambda fn: lambda x: lax.scan(lambda y, _: (fn(y), None), x, None, length=1)[0],
    "fori_loop": lambda fn: lambda x: lax.fori_loop(0, 1, lambda i, y: fn(y), x),
    "cond": lambda fn: lambda x: lax.cond(x[0] > 0, fn, fn, x),
    "switch": lambda fn: lambda x: lax.switch(jnp.int32(x[0]), [fn, fn, fn], x),
    "shard_map": lambda fn: jax.shard_map(fn, mesh=MESH, in_specs=P("r"), out_specs=P("r"), check_vma=False),
    "vmap": lambda fn: lambda x: jax.vmap(fn)(x[None])[0],
    "jit in a loop in remat": lambda fn: jax.checkpoint(lambda x: lax.fori_loop(0, 1, lambda i, y: jax.jit(fn)(y), x)),
}


def of(form, fn):
    """The schedule of fn on 24 float32 in four ranks, in that form; shard_map cuts the array itself."""
    sizes, length = ({}, 96) if form == "shard_map" else ({"r": 4}, 24)
    return hccljax.trace(FORMS[form](fn), jax.ShapeDtypeStruct((length,), jnp.float32), axis_sizes=sizes)


class TestControlFlow:
    @pytest.mark.parametrize("form", FORMS)
    def test_a_permute_is_found_with_its_line(self, form):
        (event,) = of(form, shift)
        assert (event.nbytes, event.trips, event.source.short) == (96, 1, at("shift", "shift"))

    @pytest.mark.parametrize("form", FORMS)
    def test_a_collective_of_hccljax_has_the_line_that_calls_it(self, form):
        schedule = of(form, ring)
        assert [(event.label, event.trips, event.source.short) for event in schedule] == [
            ("ring_reduce_scatter", 3, at("ring", "ring")),
            ("ring_all_gather", 3, at("ring", "ring")),
        ]

    def test_steps_of_a_group_too(self):
        def mine(x):
            return hccljax.Group("r").exchange(x, 1)  # exchange

        (event,) = hccljax.trace(mine, jnp.zeros(3), axis_sizes={"r": 4})
        assert event.source.file == __file__
        assert str(event.source) == f"{__file__}:{line_of('exchange')} in mine"

    def test_a_gradient_has_the_line_of_the_forward_pass(self):
        def loss(x):
            return (ring(x) ** 2).sum()

        schedule = hccljax.trace(jax.grad(loss), jnp.zeros(8), axis_sizes={"r": 4})
        assert {event.source.short for event in schedule} == {at("ring", "ring")}
        assert schedule.steps == 12

    def test_branches_that_are_a_loop_and_the_same_written_out(self):
        def loop(x):
            return lax.fori_loop(0, 3, lambda i, y: shift(y), x)

        def written_out(x):
            return shift(shift(shift(x)))

        for branches in ((loop, written_out), (written_out, loop)):
            fn = lambda x, branches=branches: lax.cond(x[0] > 0, *branches, x)  # noqa: E731
            schedule = hccljax.trace(fn, jnp.zeros(2), axis_sizes={"r": 4})
            assert (len(schedule), schedule.permutes, schedule.steps) == (3, 3, 3)

    def test_loops_of_the_same_length_in_both_branches_stay_loops(self):
        def loop(factor):
            return lambda x: lax.fori_loop(0, 10**6, lambda i, y: shift(y) * factor, x)

        schedule = hccljax.trace(lambda x: lax.cond(x[0] > 0, loop(1), loop(2), x), jnp.zeros(2), axis_sizes={"r": 4})
        assert (len(schedule), schedule.steps) == (1, 10**6)

    def test_an_event_waits_for_what_it_needs_in_any_branch(self):
        def chained(x):
            return shift(shift(x))

        def side_by_side(x):
            return shift(x) + shift(x + 1)

        schedule = hccljax.trace(
            lambda x: lax.cond(x[0] > 0, side_by_side, chained, x), jnp.zeros(2), axis_sizes={"r": 4}
        )
        assert [event.needs for event in schedule] == [(), (0,)]

    def test_a_cond_in_a_loop(self):
        def body(i, x):
            return lax.cond(i > 2, lambda y: shift(y) + 1, shift, x)

        schedule = hccljax.trace(lambda x: lax.fori_loop(0, 9, body, x), jnp.zeros(2), axis_sizes={"r": 4})
        assert [(event.trips, event.carried) for event in schedule] == [(9, (0,))]


class TestImplicitPsum:
    def test_the_gradient_of_a_checked_shard_map_shows_the_psum_that_jax_inserts(self):
        def step(weights, x):
            def loss(weights):
                hidden = x @ weights  # matmul
                return (hidden**2).sum()

            return weights - 0.1 * jax.grad(loss)(weights)

        mapped = jax.shard_map(step, mesh=MESH, in_specs=(P(), P("r")), out_specs=P())
        (event,) = hccljax.trace(jax.jit(mapped), jnp.zeros((5, 2)), jnp.zeros((8, 5)), axis_sizes={})
        assert (event.kind, event.primitive, event.shape, event.nbytes) == ("psum", "psum_invariant", (5, 2), 40)
        assert event.source.short == at("matmul", "loss")
        assert event.members.tolist() == [[0, 1, 2, 3]]

    def test_with_value_and_grad_it_is_the_chosen_algorithm_instead(self):
        def loss(weights, x):
            return ((x @ weights) ** 2).sum()

        def step(weights, x):
            return hccljax.value_and_grad(loss, "r", algorithm="ring")(weights, x)[1]  # step

        mapped = jax.shard_map(step, mesh=MESH, in_specs=(P(), P("r")), out_specs=P())
        schedule = hccljax.trace(mapped, jnp.zeros((5, 2)), jnp.zeros((8, 5)), axis_sizes={})
        assert [event.label for event in schedule] == ["ring_reduce_scatter", "ring_all_gather"]
        assert {event.source.short for event in schedule} == {at("step", "step")}


class TestWhatCannotBeKnown:
    def test_a_while_loop_that_communicates(self, error_of, helps):
        def wait(x):
            return lax.while_loop(lambda y: y[0] < 9, shift, x)  # while

        text = error_of(lambda: hccljax.trace(jax.jit(wait), jnp.zeros(2), axis_sizes={"r": 4}), ArgumentError)
        assert f"{__file__}:{line_of('while')} in wait: 'while' contains the communication 'ppermute'" in text
        assert f"{__file__}:{line_of('shift')} in shift" in text
        assert helps(text)

    def test_a_loop_with_a_traced_bound(self, error_of):
        def repeat(n, x):
            return lax.fori_loop(0, n, lambda i, y: ring(y), x)  # traced bound

        text = error_of(lambda: hccljax.trace(repeat, 3, jnp.zeros(8), axis_sizes={"r": 4}), ArgumentError)
        assert f"{__file__}:{line_of('traced bound')} in repeat: 'while' contains the communication 'all_reduce" in text
        assert f"{__file__}:{line_of('ring')} in ring" in text

    def test_branches_that_communicate_differently(self, error_of, helps):
        def choose(x):
            return lax.cond(x[0] > 0, shift, shift_by_two, x)  # cond

        text = error_of(lambda: hccljax.trace(choose, jnp.zeros(2), axis_sizes={"r": 4}), ArgumentError)
        assert f"{__file__}:{line_of('cond')} in choose: 'cond' with branches that do not communicate alike" in text
        assert "Shift(k=1)" in text
        assert "Shift(k=2)" in text
        assert helps(text)

    def test_loops_of_different_lengths_in_branches(self, error_of):
        def loop(trips):
            return lambda x: lax.fori_loop(0, trips, lambda i, y: shift(y), x)

        def choose(x):
            return lax.cond(x[0] > 0, loop(10**8), loop(10**8 + 1), x)

        text = error_of(lambda: hccljax.trace(choose, jnp.zeros(2), axis_sizes={"r": 4}), ArgumentError)
        assert "100,000,000 × permute" in text
        assert "100,000,001 × permute" in text

    def test_a_primitive_without_known_messages(self, error_of):
        def ragged(x):
            sizes = jnp.ones(4, jnp.int32)
            return lax.ragged_all_to_all(x, x, sizes, sizes, sizes, sizes, axis_name="r")  # ragged

        text = error_of(lambda: hccljax.trace(ragged, jnp.zeros(4), axis_sizes={"r": 4}), ArgumentError)
        assert f"{line_of('ragged')} in ragged: 'ragged_all_to_all'" in text

    @pytest.mark.parametrize("fn", [None, "all_reduce", 3])
    def test_no_function(self, error_of, fn):
        assert "trace got" in error_of(lambda: hccljax.trace(fn, jnp.zeros(2), axis_sizes={"r": 4}), ArgumentError)

    def test_an_axis_without_a_size(self, error_of):
        error_of(lambda: hccljax.trace(ring, jnp.zeros(2), axis_sizes={"other": 4}), hccljax.AxisError)
