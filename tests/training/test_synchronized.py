"""synchronized before an optimiser of optax: the same training as on one device, for models of any library."""

from __future__ import annotations

import sys

import jax
import numpy as np
import optax
import pytest

import hccljax
from hccljax.demo.inspect_hlo import executed
from hccljax.schedule import count
from hccljax.training import SynchronizedState, synchronized

RATE, EVERY = 0.125, 4


@pytest.fixture(scope="module")
def whole(linear):
    """One step of Adam on the whole batch, on one device."""
    loss, params, x, y = linear
    adam = optax.adam(RATE)
    grads = jax.grad(loss)(params, x.reshape(16, 3), y.reshape(16, 2))
    return optax.apply_updates(params, adam.update(grads, adam.init(params))[0])


def close(found, expected):
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def own_gradients(loss, params, *data):
    """The gradients of this rank."""
    return jax.grad(loss)(hccljax.as_varying(params, "data"), *data)


def test_adam_behind_it_takes_the_step_of_one_device(on_ranks, linear, whole):
    loss, params, x, y = linear
    chain = optax.chain(synchronized("data", algorithm="mesh"), optax.adam(RATE))

    def step(params, x, y):
        updates, _ = chain.update(own_gradients(loss, params, x, y), chain.init(params), params)
        return optax.apply_updates(params, updates)

    close(on_ranks(step, replicated=True)(params, x, y), whole)


def accumulation(loss, **given):
    """(params, x [EVERY, …], y) → params after EVERY small steps; given says what is told to update."""
    chain = optax.chain(synchronized("data", algorithm="ring"), optax.sgd(RATE))
    steps = optax.MultiSteps(chain, EVERY)

    def run(params, x, y):
        def step(carry, xy):
            params, state = carry
            more = {"communicate": state.mini_step == EVERY - 1} if given["told"] else {}
            updates, state = steps.update(own_gradients(loss, params, *xy), state, params, **more)
            return (optax.apply_updates(params, updates), state), state.mini_step

        (params, _), _ = jax.lax.scan(step, (params, steps.init(params)), (x, y))
        return params

    return run


@pytest.mark.parametrize("mode", ["unchecked", "vmap"])
def test_an_accumulation_is_one_step_on_all_its_data(in_mode, mode, linear, by_hand):
    loss, params, x, y = linear
    # A rank's two samples are two small steps of the four; the others repeat them.
    micro = [np.stack([leaf[:, i % 2 : i % 2 + 1] for i in range(EVERY)], 1) for leaf in (x, y)]
    expected = by_hand(params, x.reshape(16, 3), y.reshape(16, 2))[1]
    found = in_mode(mode, accumulation(loss, told=True), {"data": 8}, True)(params, *micro)
    close(found, {name: params[name] - RATE * expected[name] for name in params})


def test_an_accumulation_communicates_in_the_branch_of_the_last_step_only(in_mode, linear):
    """MultiSteps itself runs the optimiser at every small step: without being told, all of them communicate."""
    loss, params, x, y = linear
    micro = [np.repeat(leaf[:, None], EVERY, 1) for leaf in (x, y)]

    def hlo(told):
        program = in_mode("unchecked", accumulation(loss, told=told), {"data": 8}, True)
        return program.lower(params, *micro).compile().as_text()

    told, untold = hlo(True), hlo(False)
    assert " conditional(" in told
    assert executed(untold)["collective-permute"] == EVERY * 14
    outside = told.replace("branch_computations", "not_followed")
    assert executed(outside)["collective-permute"] == 0
    assert executed(told)["collective-permute"] == EVERY * 14  # the branch of a small step holds one all_reduce


def test_a_step_that_does_not_communicate_gives_zeros(linear):
    _, params, *_ = linear
    link = synchronized("data", bucket_bytes=4)
    grads = {"w": np.ones((8, 3), np.float32), "n": None, "m": optax.MaskedNode()}
    silent = lambda g: link.update(g, link.init(params), communicate=False)[0]  # noqa: E731
    found = jax.vmap(silent, axis_name="data", out_axes=None)(grads)
    assert found["w"].tolist() == [0, 0, 0]
    assert jax.tree.structure(found) == jax.tree.structure(grads)
    one = jax.tree.map(lambda leaf: leaf[0], grads)
    assert count(silent, one, axis_sizes={"data": 8}).permutes == 0


def test_it_counts_the_steps_that_it_skips(on_ranks):
    chain = optax.chain(synchronized("data", algorithm="mesh", skip_nonfinite=True), optax.sgd(1.0))

    def steps(params, grads):
        def step(carry, grad):
            params, state = carry
            updates, state = chain.update(grad, state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, state), _ = jax.lax.scan(step, (params, chain.init(params)), grads)
        return params, state[0]

    grads = np.ones((8, 3, 2), np.float32)
    grads[5, 1, 0] = np.nan
    params, state = on_ranks(steps, replicated=True)(np.zeros(2, np.float32), grads)
    assert isinstance(state, SynchronizedState)
    assert state.skipped == 1
    np.testing.assert_array_equal(params, [-2, -2])


def test_masked_leaves_are_not_sent(linear):
    _, params, *_ = linear
    link = optax.masked(synchronized("data", algorithm="ring"), {"w": True, "b": False})
    grads = {name: np.stack([leaf * r for r in range(8)]) for name, leaf in params.items()}
    found, _ = jax.vmap(lambda g: link.update(g, link.init(params)), axis_name="data")(grads)
    np.testing.assert_array_equal(found["w"][3], 3.5 * params["w"])
    np.testing.assert_array_equal(found["b"][3], 3 * params["b"])


def test_a_flax_model_trains(in_mode):
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.inner, self.outer = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            return self.outer(nnx.relu(self.inner(x)))

    graph, params = nnx.split(Model(nnx.Rngs(0)))
    check_model(in_mode, lambda params, x: (nnx.merge(graph, params)(x) ** 2).mean(), params)


def test_an_equinox_model_trains(in_mode):
    eqx = pytest.importorskip("equinox")
    params, static = eqx.partition(eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0)), eqx.is_inexact_array)
    check_model(in_mode, lambda params, x: (jax.vmap(eqx.combine(params, static))(x) ** 2).mean(), params)


def check_model(in_mode, loss, params):
    """Adam takes the step of one device for the parameters of a model."""
    x = np.random.default_rng(4).standard_normal((8, 2, 3)).astype(np.float32)
    chain = optax.chain(synchronized("data", algorithm="mesh"), optax.adam(RATE))

    def step(params, x):
        updates, _ = chain.update(own_gradients(loss, params, x), chain.init(params), params)
        return optax.apply_updates(params, updates)

    adam = optax.adam(RATE)
    expected = optax.apply_updates(params, adam.update(jax.grad(loss)(params, x.reshape(16, 3)), adam.init(params))[0])
    found = in_mode("checked", step, {"data": 8}, True)(params, x)
    assert jax.tree.structure(found) == jax.tree.structure(params)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-3)  # Adam's first step is ± the rate: a sign is all of it


def test_without_optax_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(hccljax.UnsupportedError, match=r"pip install 'hccljax\[training\]'"):
        synchronized("data")


def test_a_bad_op_is_refused_at_once():
    with pytest.raises(hccljax.ArgumentError, match="expected 'mean' or 'sum'"):
        synchronized("data", "max")


def test_hccljax_itself_does_not_import_optax():
    import subprocess

    code = "import sys, hccljax; sys.exit('optax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
