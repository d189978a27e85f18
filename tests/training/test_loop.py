"""A few steps on eight ranks are the same steps on one device that has the whole batch."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import hccljax
from hccljax.schedule import count

ALGORITHMS = ["ring", "tree", "H-D_R", "mesh", "level0:ring;level1:tree", "native", None]
RATE, STEPS = 0.125, 3


@pytest.fixture(scope="module")
def expected(linear, by_hand):
    """(parameters after the steps, the loss of each step): NumPy, the whole batch at once."""
    _, params, x, y = linear
    params, losses = {name: leaf.astype(np.float64) for name, leaf in params.items()}, []
    for _ in range(STEPS):
        loss, grads = by_hand(params, x.reshape(16, 3), y.reshape(16, 2))
        params = {name: params[name] - RATE * grads[name] for name in params}
        losses.append(loss)
    # Sums are exact only while float32 holds every value: then the order of additions cannot matter.
    assert all((leaf == np.float32(leaf)).all() for leaf in params.values())
    return params, np.array(losses)


def descent(loss, **options):
    """The per-device loop (params, local x, local y) → (params, losses [STEPS])."""
    grad = hccljax.value_and_grad(loss, "data", topology="2x4", **options)

    def loop(params, x, y):
        def step(params, _):
            value, grads = grad(params, x, y)
            return jax.tree.map(lambda p, g: p - RATE * g, params, grads), value

        return jax.lax.scan(step, params, length=STEPS)

    return loop


def check(run, linear, expected):
    """The run (params, x, y) → (params, losses) gives what NumPy gives."""
    _, params, x, y = linear
    trained, losses = run(params, x, y)
    for name in params:
        assert trained[name].dtype == np.float32
        np.testing.assert_array_equal(trained[name], expected[0][name].astype(np.float32))
    np.testing.assert_allclose(losses, expected[1], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_on_ranks_equal_steps_on_one_device(on_ranks, linear, expected, algorithm):
    check(on_ranks(descent(linear[0], algorithm=algorithm), replicated=True), linear, expected)


def test_steps_by_the_double_tree_do_so_too(in_mode, linear, expected):
    # In one mode only: it takes as long to compile as all the others together.
    check(in_mode("checked", descent(linear[0], algorithm="double_tree"), {"data": 8}, True), linear, expected)


def test_every_rank_has_the_same_parameters_to_the_last_bit(on_ranks, linear):
    """With data that do not add up exactly, too: ranks that drift apart train different models."""
    loss, params, *_ = linear
    draw = np.random.default_rng(5)
    x, y = draw.standard_normal((8, 2, 3), np.float32), draw.standard_normal((8, 2, 2), np.float32)
    trained, _ = on_ranks(descent(loss, algorithm="H-D_R"))(params, x, y)
    for leaf in jax.tree.leaves(trained):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[0], leaf.shape))


def test_a_loop_of_steps_communicates_what_its_all_reduces_do(linear):
    loss, params, x, y = linear
    loop = descent(loss, algorithm="ring")
    counts = count(loop, params, x[0], y[0], axis_sizes={"data": 8})
    # w, b and the loss: three rings of 14 steps in each of three steps, and nothing that jax.grad has added.
    assert (counts.permutes, counts.exchanges) == (3 * 3 * 14, 0)


def test_a_checked_step_contains_no_sum_of_its_own(in_mode, linear):
    """In a checked shard_map jax.grad sums gradients of replicated parameters: value_and_grad has to prevent that."""
    loss, params, x, y = linear
    grad = hccljax.value_and_grad(loss, "data", algorithm="ring")
    step = in_mode("checked", grad, {"data": 8}, True)
    counts = count(step, params, x, y, axis_sizes={})
    assert (counts.permutes, counts.exchanges) == (3 * 14, 0)


def test_training_can_be_differentiated(on_ranks, linear, by_hand):
    """The derivative of the loss after one step with respect to the learning rate: -⟨g(p - rate g), g(p)⟩."""
    loss, params, x, y = linear
    grad = hccljax.value_and_grad(loss, "data", algorithm="tree")

    def after_a_step(rate, params, x, y):
        _, grads = grad(params, x, y)
        stepped = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        return grad(stepped, x, y)[0]

    def derivative(rate):
        return on_ranks(lambda both, x, y: after_a_step(*both, x, y), replicated=True)((rate, params), x, y)

    flat = x.reshape(16, 3), y.reshape(16, 2)
    first = by_hand(params, *flat)[1]
    second = by_hand({name: params[name] - RATE * first[name] for name in params}, *flat)[1]
    expected = -sum((first[name] * second[name]).sum() for name in params)
    # One compilation for both directions.
    backward, forward = jax.jit(lambda rate: (jax.grad(derivative)(rate), jax.jvp(derivative, (rate,), (1.0,))[1]))(
        RATE
    )
    np.testing.assert_allclose([backward, forward], expected, rtol=1e-5)
