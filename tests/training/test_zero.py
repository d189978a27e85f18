"""ZeRO: the steps of one device, with 1/p of the state, of the gradients or of the parameters on each rank."""

from __future__ import annotations

from functools import partial

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

import hccljax
from hccljax.training import (
    flat_layout,
    gather_parameters,
    global_norm,
    scatter_gradients,
    shard_parameters,
    shard_specs,
    sharded_value_and_grad,
    zero,
)

P = PartitionSpec
ROWS = 24


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["in"]["w"] + params["in"]["b"])
    return ((hidden @ params["out"] * params["scale"] - y) ** 2).mean()


@pytest.fixture
def problem():
    """(params, x, y) in float64; 46 elements, which neither 3 nor 8 divides; with a 0-d and an absent leaf."""
    draw = np.random.default_rng(2)
    with jax.enable_x64(True):
        params = {
            "in": {"w": draw.normal(size=(3, 7)), "b": draw.normal(size=7)},
            "nothing": None,
            "out": draw.normal(size=(7, 2)),
            "scale": np.float64(1.5),
        }
        yield params, draw.normal(size=(ROWS, 3)), draw.normal(size=(ROWS, 2))


def on_one_device(optimiser, params, x, y, steps=3):
    """(parameters after some steps, the last loss)."""
    state, value = optimiser.init(params), None
    for _ in range(steps):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimiser.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params, value


def close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def rows(x, p):
    return x.reshape(p, ROWS // p, -1)


@pytest.mark.parametrize(("p", "stage", "algorithm"), [(1, 2, None), (2, 1, "native"), (3, 2, "ring"), (8, 2, "H-D_R")])
def test_the_state_is_sharded_and_the_steps_are_those_of_one_device(problem, p, stage, algorithm):
    params, x, y = problem
    optimiser = zero(optax.adamw(1e-2), "data", stage=stage, algorithm=algorithm, bucket_bytes=160)

    def train(params, x, y):
        state = optimiser.init(params)
        for _ in range(3):
            grads = jax.grad(loss)(params, x, y)
            updates, state = optimiser.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params, state

    every = jax.jit(jax.vmap(train, (None, 0, 0), axis_name="data"))
    found, state = every(params, rows(x, p), rows(y, p))
    close(jax.tree.map(lambda leaf: leaf[p - 1], found), on_one_device(optax.adamw(1e-2), params, x, y)[0])
    # "out" with "scale" is a bucket of 15 elements, "w" one of 21 since it fills a bucket alone, "b" one of 7.
    elements = sorted(leaf.shape[1] for leaf in state[0].mu)
    assert elements == sorted(-(-n // p) for n in (15, 21, 7))


def test_it_trains_in_every_mode(problem, mode):
    """In a shard_map the state stays on the ranks from step to step, and parameters come and leave replicated."""
    params, x, y = problem
    optimiser = zero(optax.adam(1e-2), "data", algorithm="mesh")
    expected = on_one_device(optax.adam(1e-2), params, x, y, 2)[0]

    def step(params, state, x, y):
        own = hccljax.as_varying(params, "data")
        updates, state = optimiser.update(jax.grad(loss)(own, x, y), state, params)
        return optax.apply_updates(params, updates), state

    if mode == "vmap":
        init = jax.vmap(optimiser.init, None, axis_name="data", axis_size=8)
        step = jax.vmap(step, (None, 0, 0, 0), (None, 0), axis_name="data")
        x, y = rows(x, 8), rows(y, 8)
    else:
        mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
        specs = shard_specs(jax.eval_shape(optax.adam(1e-2).init, flat_layout(params, 8).shards), "data")
        mapped = partial(jax.shard_map, mesh=mesh, check_vma=mode == "checked")
        init = mapped(optimiser.init, in_specs=P(), out_specs=specs)
        step = mapped(step, in_specs=(P(), specs, P("data"), P("data")), out_specs=(P(), specs))
    state, step = jax.jit(init)(params), jax.jit(step)
    for _ in range(2):
        params, state = step(params, state, x, y)
    close(params, expected)


def test_parameters_in_shards_train_as_whole_ones_do(problem, on_ranks):
    params, x, y = problem
    layout = flat_layout(params, 8, bucket_bytes=160)
    grad = sharded_value_and_grad(loss, layout, "data", algorithm="mesh")
    optimiser = optax.adam(1e-2)

    def train(params, x, y):
        shards = shard_parameters(params, layout, "data")
        state = optimiser.init(shards)
        for _ in range(3):
            value, grads = grad(shards, x, y)
            updates, state = optimiser.update(grads, state, shards)
            shards = optax.apply_updates(shards, updates)
        return gather_parameters(shards, layout, "data", algorithm="mesh"), value

    found, value = on_ranks(train)(params, rows(x, 8), rows(y, 8))
    expected, last = on_one_device(optimiser, params, x, y)
    close(jax.tree.map(lambda leaf: leaf[5], found), expected)
    np.testing.assert_allclose(value, np.full(8, last))


def test_flatten_places_the_shards_of_all_ranks(problem):
    params, _, _ = problem
    layout = flat_layout(params, 8)
    own = jax.vmap(lambda _: shard_parameters(params, layout, "data"), axis_name="data")(jnp.zeros(8))
    for shard, whole, shape in zip(own, layout.flatten(params), layout.shards, strict=True):
        assert shard.shape == (8, *shape.shape)
        np.testing.assert_array_equal(shard.reshape(-1), whole)
    close(layout.unflatten(layout.flatten(params)), params)


def test_what_travels_is_a_gather_and_a_scatter_for_each_bucket(problem):
    params, x, _ = problem
    layout = flat_layout(params, 8, bucket_bytes=160)
    grad = sharded_value_and_grad(loss, layout, "data", algorithm="ring")
    local = [jax.ShapeDtypeStruct((3, n), x.dtype) for n in (3, 2)]

    def labels(function):
        return [event.label for event in hccljax.trace(function, layout.shards, *local, axis_sizes={"data": 8})]

    found = labels(lambda shards, x, y: grad(shards, x, y)[1])
    assert found == ["ring_all_gather"] * 3 + ["ring_reduce_scatter"] * 3
    again = jax.checkpoint(lambda shards, x, y: loss(gather_parameters(shards, layout, "data", algorithm="ring"), x, y))
    found = labels(jax.value_and_grad(again))
    assert sorted(found) == ["ring_all_gather"] * 6 + ["ring_reduce_scatter"] * 3


def test_stage_2_sends_half_as_much_as_stage_1_before_the_step(problem):
    params, x, _ = problem
    local = [jax.ShapeDtypeStruct((3, n), x.dtype) for n in (3, 2)]

    def sent(stage):
        optimiser = zero(optax.sgd(1e-2), "data", stage=stage, algorithm="ring")

        def step(x, y):
            return optimiser.update(jax.grad(loss)(params, x, y), optimiser.init(params))[0]

        return hccljax.trace(step, *local, axis_sizes={"data": 8}).bytes_sent.max()

    assert sent(1) == 1.5 * sent(2)


def test_mixed_dtypes_have_buckets_of_their_own():
    params = {"a": jnp.ones(5, jnp.bfloat16), "b": jnp.arange(3.0), "c": jnp.ones((), jnp.bfloat16)}
    layout = flat_layout(params, 4)
    assert [(shard.shape, shard.dtype.name) for shard in layout.shards] == [((1,), "float32"), ((2,), "bfloat16")]
    found = jax.vmap(
        lambda _: gather_parameters(shard_parameters(params, layout, "data"), layout, "data"), axis_name="data"
    )(jnp.zeros(4))
    assert jax.tree.map(lambda leaf: (leaf.shape[1:], leaf.dtype), found) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), params
    )
    np.testing.assert_array_equal(found["b"][2], params["b"])


@pytest.mark.parametrize("tree", [{}, {"a": None}, [], {"e": jnp.zeros((0, 3))}])
def test_trees_without_elements_come_back(tree):
    layout = flat_layout(tree, 4)
    found = jax.vmap(
        lambda _: gather_parameters(shard_parameters(tree, layout, "data"), layout, "data"), axis_name="data",
        axis_size=4,
    )(jnp.zeros(4))  # fmt: skip
    assert jax.tree.structure(found) == jax.tree.structure(tree)


def test_the_norm_is_that_of_the_whole(on_ranks):
    x = np.arange(24.0, dtype=np.float32).reshape(8, 3)
    found = on_ranks(lambda _, x: global_norm({"x": x, "n": None}, "data"), replicated=True)(0.0, x)
    np.testing.assert_allclose(found, np.linalg.norm(x), rtol=1e-6)


def test_modules_of_equinox_and_flax_are_parameters():
    module = equinox.nn.MLP(3, 2, 5, 1, key=jax.random.key(0))
    weights, static = equinox.partition(module, equinox.is_inexact_array)
    x = jnp.ones((4, 3))

    def value(weights, x):
        return (equinox.combine(weights, static)(x) ** 2).sum()

    layout = flat_layout(weights, 4)
    grad = sharded_value_and_grad(value, layout, "data", op="sum", algorithm="ring")
    step = jax.vmap(lambda x: grad(shard_parameters(weights, layout, "data"), x), axis_name="data")
    found, _ = step(x)
    np.testing.assert_allclose(found[0], 4 * value(weights, x[0]), rtol=1e-6)

    graph, state = nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    layout = flat_layout(state, 4)
    grad = sharded_value_and_grad(lambda state, x: nnx.merge(graph, state)(x).sum(), layout, "data", algorithm="ring")
    found, grads = jax.vmap(lambda x: grad(shard_parameters(state, layout, "data"), x), axis_name="data")(x)
    np.testing.assert_allclose(layout.unflatten(tuple(g.reshape(-1) for g in grads))["kernel"][...], np.ones((3, 2)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: flat_layout({"n": jnp.arange(3)}, 4), "expected floating or complex"),
        (lambda: flat_layout({"key": jax.random.key(0)}, 4), "expected floating or complex"),
        (lambda: flat_layout({"w": jnp.ones(3)}, 0), "ranks=0"),
        (lambda: flat_layout({"w": jnp.ones(3)}, 4, bucket_bytes=2), "bucket_bytes=2"),
        (lambda: flat_layout({"w": jnp.ones(3)}, 4).flatten({"w": jnp.ones(4)}), "expected what the layout was made"),
        (lambda: flat_layout({"w": jnp.ones(3)}, 4).unflatten((jnp.ones(3),)), "expected whole buckets"),
        (lambda: zero(optax.sgd(1), "data", stage=3), "stage=3"),
        (lambda: zero(optax.sgd(1), "data", "max"), "expected 'mean' or 'sum'"),
    ],
)
def test_what_cannot_be_is_refused(call, says):
    with pytest.raises(hccljax.ArgumentError, match=says):
        call()


def mapped(function, p=4):
    return jax.vmap(function, axis_name="data")(jnp.zeros(p))


def test_another_number_of_ranks_is_named():
    params = {"w": jnp.ones(6)}
    with pytest.raises(hccljax.ArgumentError, match="a layout for 8 ranks on axis 'data' of 4"):
        mapped(lambda _: shard_parameters(params, flat_layout(params, 8), "data"))
    optimiser = zero(optax.adam(1e-3), "data")
    state = optax.adam(1e-3).init((jnp.ones(3),))
    with pytest.raises(hccljax.ArgumentError, match="what init makes of these parameters on 4 ranks"):
        mapped(lambda _: optimiser.update(params, state, params)[0])
    with pytest.raises(hccljax.ArgumentError, match="expected the shards of one rank"):
        mapped(lambda _: gather_parameters((jnp.ones(3),), flat_layout(params, 4), "data"))


def test_gradients_of_another_dtype_are_refused():
    params = {"w": jnp.ones(6)}
    optimiser = zero(optax.adam(1e-3), "data")
    with pytest.raises(hccljax.ArgumentError, match="float32"):
        mapped(lambda _: optimiser.update({"w": jnp.ones(6, jnp.bfloat16)}, optimiser.init(params), params)[0])


def test_gradients_that_are_summed_already_warn(in_mode):
    layout = flat_layout({"w": jnp.ones(6)}, 8)
    run = in_mode("checked", lambda w, _: scatter_gradients({"w": w}, layout, "data"), {"data": 8}, False)
    with pytest.warns(hccljax.InvariantOperandWarning, match="as_varying"):
        run(np.ones(6, np.float32), np.zeros(8))


def test_an_axis_that_is_not_mapped_is_named():
    layout = flat_layout({"w": jnp.ones(6)}, 8)
    with pytest.raises(hccljax.AxisError, match="data"):
        shard_parameters({"w": jnp.ones(6)}, layout, "data")


def test_without_optax_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optax", None)
    with pytest.raises(hccljax.UnsupportedError, match=r"hccljax\[training\]"):
        zero(optax.sgd(1), "data")
