"""Pipelines compute what one device computes, forward and backward, in the ticks that their schedules draw."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.training import column_parallel, gpipe, one_f_one_b, pipeline_schedule, row_parallel

D, V, BATCH = 4, 6, 3


def stage(params, x):
    return x + jnp.tanh(x @ params["w"] + params["b"])


def embed(params, ids):
    return params["table"][ids]


def loss(params, y, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(y @ params["head"]), labels[..., None], -1).mean()


def problem(p, m):
    """(params [p, …], microbatches, targets, loss and gradients [p, …] of one device), in float64."""
    draw = np.random.default_rng(p + m)
    table, head = draw.normal(size=(V, D)), draw.normal(size=(D, V))
    params = {
        "w": draw.normal(size=(p, D, D)),
        "b": draw.normal(size=(p, D)),
        "table": np.stack([table] * p),
        "head": np.stack([head] * p),
    }
    ids, labels = draw.integers(0, V, (2, m, BATCH))

    def whole(params):
        x = embed({"table": params["table"][0]}, ids)
        for r in range(p):
            x = stage({"w": params["w"][r], "b": params["b"][r]}, x)
        return loss({"head": params["head"][p - 1]}, x, labels)

    return params, ids, labels, jax.jit(jax.value_and_grad(whole))(params)


def by_gpipe(params, ids, labels, **options):
    def whole(params):
        outs = gpipe(stage, params, ids, "stage", embed_fn=embed, **options)
        head = hccljax.training.broadcast_from(params["head"], "stage", hccljax.Group("stage").size - 1)
        return loss({"head": head}, outs, labels)

    return jax.value_and_grad(whole)(params)


def by_1f1b(params, ids, labels):
    return one_f_one_b(stage, loss, params, ids, labels, "stage", embed_fn=embed)


def close(found, expected):
    (value, grads), (whole, theirs) = found, expected
    np.testing.assert_allclose(value, np.broadcast_to(whole, np.shape(value)), rtol=1e-12)
    for name, g in theirs.items():
        np.testing.assert_allclose(grads[name], g, rtol=1e-9, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("by", [by_gpipe, by_1f1b])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (3, 3), (4, 9), (8, 5)])
def test_loss_and_gradients_are_those_of_one_device(by, p, m):
    with jax.enable_x64(True):
        params, ids, labels, expected = problem(p, m)
        close(jax.jit(jax.vmap(by, (0, None, None), axis_name="stage"))(params, ids, labels), expected)


@pytest.mark.parametrize("by", [by_gpipe, by_1f1b])
def test_in_every_mode(by, on_ranks):
    with jax.enable_x64(True):
        params, ids, labels, expected = problem(8, 6)
        close(on_ranks(lambda _, params: by(params, ids, labels), {"stage": 8})(0.0, params), expected)


def test_without_remat_it_is_the_same():
    with jax.enable_x64(True):
        params, ids, labels, expected = problem(3, 4)
        by = partial(by_gpipe, remat=False)
        close(jax.vmap(by, (0, None, None), axis_name="stage")(params, ids, labels), expected)


@pytest.mark.parametrize("mode", ["checked", "unchecked", "vmap"])
def test_a_stage_may_be_spread_over_another_axis(mode, in_mode):
    """2 stages × 4 ranks, each a pair of tensor-parallel layers."""
    draw = np.random.default_rng(0)
    with jax.enable_x64(True):
        up, down = draw.normal(size=(2, D, 8)), draw.normal(size=(2, 8, D))
        x, y = draw.normal(size=(2, 5, BATCH, D))

        def whole(up, down):
            out = x
            for r in range(2):
                out = out + jnp.tanh(out @ up[r]) @ down[r]
            return ((out - y) ** 2).mean()

        value, (d_up, d_down) = jax.value_and_grad(whole, (0, 1))(up, down)

        def spread(params, x):
            hidden = column_parallel(x, params["up"], "model", algorithm="ring")
            return x + row_parallel(jnp.tanh(hidden), params["down"], "model", algorithm="ring")

        def step(_, up, down):
            params = {"up": up, "down": down}
            return one_f_one_b(spread, lambda _, out, y: ((out - y) ** 2).mean(), params, x, y, "stage")

        ups = np.concatenate([np.stack(np.split(up[r], 4, 1)) for r in range(2)])
        downs = np.concatenate([np.stack(np.split(down[r], 4, 0)) for r in range(2)])
        found, grads = in_mode(mode, step, {"stage": 2, "model": 4}, False)(0.0, ups, downs)
        np.testing.assert_allclose(found, np.full(8, value))
        for r in range(2):
            np.testing.assert_allclose(np.concatenate(list(grads["up"][4 * r : 4 * r + 4]), 1), d_up[r])
            np.testing.assert_allclose(np.concatenate(list(grads["down"][4 * r : 4 * r + 4]), 0), d_down[r])


def shapes(m, rows=BATCH):
    own = {"w": (D, D), "b": (D,), "table": (V, D), "head": (D, V)}
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in own.items()}
    ids = jax.ShapeDtypeStruct((m, rows), "int32")
    return params, ids, ids


def test_memory_of_1f1b_does_not_grow_with_the_number_of_micro_batches():
    def temporary(by, m):
        params, ids, labels = shapes(m, 512)
        params = jax.tree.map(lambda x: jax.ShapeDtypeStruct((4, *x.shape), x.dtype), params)
        step = jax.jit(jax.vmap(by, (0, None, None), axis_name="stage"))
        return step.lower(params, ids, labels).compile().memory_analysis().temp_size_in_bytes

    assert temporary(by_1f1b, 64) < 1.2 * temporary(by_1f1b, 8)
    assert temporary(by_gpipe, 64) > 3 * temporary(by_gpipe, 8)


def permutes(by, m):
    """Trips of each loop that sends, in the order of the program."""
    schedule = hccljax.trace(by, *shapes(m), axis_sizes={"stage": 4})
    return sum(event.trips for event in schedule if "send_recv" in event.label)


@pytest.mark.parametrize("m", [1, 8])
def test_messages_are_as_many_as_the_ticks_of_the_schedule(m):
    forward = lambda params, ids, _: gpipe(stage, params, ids, "stage", embed_fn=embed)  # noqa: E731
    assert permutes(forward, m) == m + 3
    assert permutes(by_1f1b, m) == 2 * (m + 3)


class TestSchedule:
    @pytest.mark.parametrize("name", ["gpipe", "1f1b"])
    @pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 4), (4, 1), (4, 3), (4, 12), (7, 9)])
    def test_every_micro_batch_goes_once_each_way_after_the_stage_before(self, name, p, m):
        schedule = pipeline_schedule(name, p, m)
        there, back = {}, {}
        for tick in range(schedule.ticks):
            for stage in range(p):
                for done, number in ((there, schedule.forward(tick, stage)), (back, schedule.backward(tick, stage))):
                    if number is not None:
                        assert (number, stage) not in done
                        done[number, stage] = tick
        assert len(there) == len(back) == m * p
        for i in range(m):
            assert all(there[i, r] < there[i, r + 1] and back[i, r + 1] < back[i, r] for r in range(p - 1))
            assert there[i, p - 1] <= back[i, p - 1]

    @pytest.mark.parametrize("name", ["gpipe", "1f1b"])
    @pytest.mark.parametrize(("p", "m"), [(1, 4), (2, 3), (4, 1), (4, 12), (8, 32)])
    def test_the_bubble_is_that_of_the_papers(self, name, p, m):
        assert pipeline_schedule(name, p, m).bubble == pytest.approx((p - 1) / (m + p - 1))

    @pytest.mark.parametrize(("p", "m"), [(4, 12), (3, 2), (1, 5)])
    def test_in_flight_is_what_the_table_says(self, p, m):
        for name in ("gpipe", "1f1b"):
            schedule = pipeline_schedule(name, p, m)
            for stage in range(p):
                held, most = 0, 0
                for tick in range(schedule.ticks):
                    held += schedule.forward(tick, stage) is not None
                    most = max(most, held)
                    held -= schedule.backward(tick, stage) is not None
                assert most == schedule.in_flight(stage)

    def test_it_draws_itself(self):
        assert str(pipeline_schedule("1f1b", 2, 3)) == (
            "  0 | F0    | F1    | F2 B0 | B1    | B2\n  1 |       | F0 B0 | F1 B1 | F2 B2 |"
        )

    @pytest.mark.parametrize("given", [("GPipe", 2, 2), ("1f1b", 0, 2), ("1f1b", 2, 0), ("gpipe", 2.5, 1)])
    def test_what_is_no_schedule_is_refused(self, given):
        with pytest.raises(hccljax.ArgumentError, match="expected"):
            pipeline_schedule(*given)


X = np.ones((4, 2, 3), np.float32)


@pytest.mark.parametrize(
    ("stage", "loss", "micro", "target", "says"),
    [
        (lambda w, x: x[..., :2], None, X, X, "float32\\[2, 2\\] of float32\\[2, 3\\]: expected the same shape"),
        (lambda w, x: jnp.int32(x), None, X, X, "expected the same shape and dtype"),
        (lambda w, x: x, lambda w, y, t: y, X, X, "expected a floating scalar"),
        (lambda w, x: x, None, X, X[:3], "expected one m"),
        (lambda w, x: x, None, X[:0], X[:0], "expected one m, 1 or more"),
        (lambda w, x: x, None, np.float32(1), X, "expected one m"),
        (lambda w, x: x, None, {"a": X, "b": X}, X, "expected one array, or embed_fn"),
    ],
)
def test_what_is_no_pipeline_is_refused(stage, loss, micro, target, says):
    loss = loss or (lambda w, y, t: y.mean())
    with pytest.raises(hccljax.ArgumentError, match=says):
        jax.vmap(lambda w: one_f_one_b(stage, loss, w, micro, target, "stage"), axis_name="stage")(jnp.zeros(2))


def test_an_axis_that_is_not_mapped_is_named():
    with pytest.raises(hccljax.AxisError, match="stage"):
        gpipe(lambda w, x: x, 0.0, X, "stage")
