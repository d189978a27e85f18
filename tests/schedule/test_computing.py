"""What a rank computes between its communications, as events of a schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax.schedule.event import COMPUTE
from hccljax.schedule.work import work_within

F32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
SIZES = {"r": 4}


def kinds(schedule):
    return [(event.kind, event.trips) for event in schedule]


def traced(fn, *args):
    return hccljax.trace(fn, *args, axis_sizes=SIZES, compute=True)


def xla_flops(fn, *args):
    return jax.jit(fn).lower(*args).cost_analysis()["flops"]


def mlp(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def attention(w, x):
    q, k, v = jnp.split(x @ w, 3, -1)
    return (jax.nn.softmax(q @ k.T / 8, -1) @ v).sum()


def convolution(kernel, x):
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID").sum()


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (mlp, ([F32(256, 512), F32(512, 128)], F32(64, 256))),
        (jax.grad(mlp), ([F32(256, 512), F32(512, 128)], F32(64, 256))),
        (attention, (F32(256, 768), F32(128, 256))),
        (jax.grad(attention), (F32(256, 768), F32(128, 256))),
        (convolution, (F32(32, 16, 3, 3), F32(8, 16, 30, 30))),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (F32(4, 32, 64), F32(4, 64, 16))),
    ],
)
def test_operations_are_those_that_xla_counts(fn, args):
    assert traced(fn, *args).flops == pytest.approx(xla_flops(fn, *args), rel=0.02)


def test_segments_lie_between_communications():
    def step(a, b):
        c = lax.ppermute(a @ a, "r", [(0, 1)])
        d = b @ b  # does not need the message
        return c @ d

    schedule = traced(step, F32(8, 8), F32(8, 8))
    assert kinds(schedule) == [(COMPUTE, 1), ("permute", 1), (COMPUTE, 1), (COMPUTE, 1)]
    _, message, second, third = schedule
    assert (message.needs, second.needs, third.needs) == ((0,), (), (1,))  # computations run in order anyway
    assert [event.flops for event in schedule] == [1024, 0, 1024, 1024]
    assert [event.stream for event in schedule] == [-1, 0, -1, -1]


def test_a_message_needs_what_made_it_and_not_what_comes_later():
    def backward(w1, w2):
        g2 = lax.psum(w2 @ w2, "r")
        g1 = lax.psum(w1 @ w1, "r")
        return g1, g2

    schedule = traced(backward, F32(8, 8), F32(8, 8))
    assert [event.needs for event in schedule] == [(), (0,), (), (2,)]


def test_a_message_issued_late_still_leaves_when_its_value_is_there():
    def backward(w1, w2):
        g2, g1 = w2 @ w2, w1 @ w1
        return lax.psum(g2, "r"), lax.psum(g1, "r")

    schedule = traced(backward, F32(8, 8), F32(8, 8))
    assert kinds(schedule) == [(COMPUTE, 1), (COMPUTE, 1), ("psum", 1), ("psum", 1)]
    assert [event.needs for event in schedule] == [(), (), (0,), (1,)]


def test_counts_of_communications_do_not_change():
    def step(x):
        return hccljax.all_reduce(jnp.sin(x @ x), "r", algorithm="ring") @ x

    plain, full = hccljax.trace(step, F32(8, 8), axis_sizes=SIZES), traced(step, F32(8, 8))
    figures = [
        (s.steps, s.permutes, s.exchanges, s.rounds, s.bytes_sent.tolist(), len(s.streams)) for s in (plain, full)
    ]
    assert figures[0] == figures[1]
    assert plain.flops == 0
    assert full.flops > 2 * 2 * 8**3
    assert "compute" in full.table()
    assert str(full[0]).startswith("compute, 1,0")


def test_rows_of_computations():
    rows = traced(lambda x: lax.psum(x @ x, "r"), F32(8, 8)).rows()
    figures = [(row["kind"], row["flops"], row["bytes"], row["dtype"], row["shape"]) for row in rows]
    assert figures == [(COMPUTE, 1024, 2 * 256, "", ()), ("psum", 0, 256, "float32", (8, 8))]


def test_a_loop_that_only_computes_is_one_event():
    def step(x):
        x = lax.fori_loop(0, 10, lambda _, v: v @ v, x)
        return lax.ppermute(x, "r", [(0, 1)])

    schedule = traced(step, F32(8, 8))
    assert kinds(schedule) == [(COMPUTE, 1), ("permute", 1)]
    assert schedule[0].flops == 10 * 1024
    assert not schedule.loops


def test_a_loop_that_communicates_keeps_its_computations():
    def step(x):
        return lax.fori_loop(0, 10, lambda _, v: lax.ppermute(v @ v, "r", [(0, 1), (1, 0)]), x)

    schedule = traced(step, F32(8, 8))
    assert kinds(schedule) == [(COMPUTE, 10), ("permute", 10)]
    assert schedule[0].carried == (1,)
    assert schedule.flops == 10 * 1024


def test_a_computing_loop_inside_one_that_communicates():
    def inner(v):
        return lax.fori_loop(0, 3, lambda _, w: w @ w, v)

    def step(x):
        return lax.fori_loop(0, 10, lambda _, v: lax.ppermute(inner(v), "r", [(0, 1), (1, 0)]), x)

    schedule = traced(step, F32(8, 8))
    assert kinds(schedule) == [(COMPUTE, 10), ("permute", 10)]
    assert schedule[0].flops == 3 * 1024
    assert schedule.flops == 30 * 1024


def test_the_costliest_branch_counts():
    def step(x, which):
        x = lax.cond(which, lambda v: v @ v, lambda v: v @ v @ v, x)
        return lax.psum(x, "r")

    assert traced(step, F32(8, 8), jax.ShapeDtypeStruct((), bool)).flops == pytest.approx(2 * 1024, abs=200)


def test_branches_that_communicate_alike():
    def step(x, which):
        return lax.cond(which, lambda v: lax.psum(v @ v, "r"), lambda v: lax.psum(v, "r") @ v @ v, x)

    schedule = traced(step, F32(8, 8), jax.ShapeDtypeStruct((), bool))
    assert kinds(schedule) == [("psum", 1), (COMPUTE, 1)]
    assert schedule[1].flops == 2 * 1024


def test_a_gradient_under_scan_and_remat():
    def loss(w, x):
        layer = jax.checkpoint(lambda v, one: (jnp.tanh(lax.psum(v @ one, "r")), None))
        return lax.scan(layer, x, w)[0].sum()

    schedule = traced(jax.grad(loss), F32(5, 8, 8), F32(8, 8))
    forward = 5 * 1024
    assert schedule.flops > 4 * forward  # forward, again for the gradient, and two products for each layer


def test_elementwise_chains_move_their_ends_only():
    chain = jax.make_jaxpr(lambda x: jnp.exp(jnp.sin(x) * 2) + 1)(F32(1000)).jaxpr
    assert work_within(chain).nbytes == 2 * 4000
    product = jax.make_jaxpr(lambda x: jnp.sin(x) @ jnp.cos(x))(F32(10, 10)).jaxpr
    assert work_within(product).nbytes == 400 * (1 + 1 + 1 + 1 + 3)  # two reads, two writes, the product's three


def test_updates_of_a_part_touch_that_part():
    update = jax.make_jaxpr(lambda x, y: lax.dynamic_update_slice(x, y, (0,)))(F32(10000), F32(10)).jaxpr
    assert work_within(update).nbytes == 2 * 40


PLACES = np.arange(0, 1000, 100).reshape(10, 1)
SCATTERS = {
    "add": lax.scatter_add,
    "sub": lax.scatter_sub,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
    "": lax.scatter,
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_touch_what_they_update(name):
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    fn = lambda x, y: SCATTERS[name](x, PLACES, y, numbers)  # noqa: E731
    assert work_within(jax.make_jaxpr(fn)(F32(1_000_000), F32(10)).jaxpr) == (10 if name else 0, 2 * 40)


def test_reductions_count_their_operands():
    for fn in (lambda x: lax.reduce(x, np.float32(0), lambda a, b: a * b + 1, (0,)), lambda x: x.sum()):
        assert work_within(jax.make_jaxpr(fn)(F32(1000)).jaxpr).flops == 1000


def test_what_only_rounds_or_copies_is_no_operation():
    for fn in (lambda x: lax.reduce_precision(x, 5, 10), jnp.copy):
        assert work_within(jax.make_jaxpr(fn)(F32(1000)).jaxpr).flops == 0
    fused = jax.make_jaxpr(lambda x: jnp.exp(lax.reduce_precision(jnp.sin(x), 5, 10)))(F32(1000)).jaxpr
    assert work_within(fused) == (2000, 2 * 4000)


def test_the_result_is_what_it_was_for_unused_computations():
    def step(x):
        unused = x @ x @ x
        return lax.psum(x, "r"), np.float32(1), unused[:0]

    assert [event.kind for event in traced(lambda x: step(x)[0], F32(8, 8))] == ["psum"]


def _hybrid(w, x):
    def loss(w, x):
        hidden = hccljax.all_reduce(x @ w, "model", algorithm="mesh")
        return jnp.mean(hidden**2)

    value, grads = hccljax.value_and_grad(loss, "data", algorithm="ring")(w, x)
    return w - 0.1 * grads, value


def _in_a_loop(w, x):
    def body(x, _):
        return jnp.tanh(hccljax.all_reduce(x, "data", algorithm="tree") @ w) * 0.5, x.sum()

    x, sums = jax.lax.scan(body, x @ w, length=5)
    return hccljax.all_reduce(sums * x.mean(), "model", algorithm="ring")


@pytest.mark.parametrize("step", [_hybrid, _in_a_loop])
def test_a_chain_of_communications_leads_through_computations(step):
    """Steps and streams are those of the same program of which only communications are recorded."""
    shapes = jax.ShapeDtypeStruct((16, 16), "float32"), jax.ShapeDtypeStruct((8, 16), "float32")
    sizes = {"data": 4, "model": 8}
    alone, both = (hccljax.trace(step, *shapes, axis_sizes=sizes, compute=on) for on in (False, True))
    assert both.steps == alone.steps
    assert [event.stream for event in both if event.is_communication] == [event.stream for event in alone]
