"""Layers spread over ranks compute what one device computes, forward and backward, by the algorithm that was named."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.training import (
    column_parallel,
    copy_to,
    cross_entropy_parallel,
    embedding_parallel,
    gather_from,
    reduce_from,
    row_parallel,
    scatter_to,
)

D, F, V, BATCH, SEQUENCE = 8, 24, 48, 2, 24


def model(draw):
    """(params, ids [batch, sequence]) of a small language model of one layer, in float64."""
    normal = lambda *shape: draw.normal(size=shape) / np.sqrt(shape[0])  # noqa: E731
    params = {
        "table": normal(V, D),
        "scale": 1 + normal(D),
        "up": normal(D, F),
        "up_bias": normal(F),
        "down": normal(F, D),
        "down_bias": normal(D),
        "head": normal(D, V),
    }
    return params, draw.integers(0, V, (BATCH, SEQUENCE + 1))


SPLIT = {"table": 0, "scale": None, "up": 1, "up_bias": 0, "down": 0, "down_bias": None, "head": 1}


def whole_loss(params, ids):
    """On one device."""
    x = params["table"][ids[:, :-1]]
    hidden = jnp.tanh((x * params["scale"]) @ params["up"] + params["up_bias"])
    x = x + hidden @ params["down"] + params["down_bias"]
    logits = x @ params["head"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], -1).mean()


def spread_loss(params, ids, sequence=False, **by):
    """The same on ranks: params are this rank's parts."""
    x = embedding_parallel(ids[:, :-1], params["table"], "model", **by)
    scale, axis = params["scale"], None
    if sequence:
        x, scale, axis = scatter_to(x, "model", axis=1, **by), copy_to(scale, "model", **by), 1
    hidden = column_parallel(x * scale, params["up"], "model", bias=params["up_bias"], sequence_axis=axis, **by)
    x = x + row_parallel(jnp.tanh(hidden), params["down"], "model", bias=params["down_bias"], sequence_axis=axis, **by)
    logits = column_parallel(x, params["head"], "model", sequence_axis=axis, **by)
    return cross_entropy_parallel(logits, ids[:, 1:], "model", **by).mean()


def parts(params, p):
    """Every leaf as [p, …], one part for each rank."""

    def cut(name, x):
        return np.stack([x] * p if SPLIT[name] is None else np.split(x, p, SPLIT[name]))

    return {name: cut(name, x) for name, x in params.items()}


def joined(rows):
    """The inverse of parts; what every rank holds has to be the same on all of them."""
    out = {}
    for name, x in rows.items():
        if SPLIT[name] is None:
            np.testing.assert_allclose(x, np.broadcast_to(x[:1], x.shape), rtol=1e-12)
            out[name] = x[0]
        else:
            out[name] = np.concatenate(list(x), SPLIT[name])
    return out


def close(found, expected):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.fixture
def both_losses():
    """(params, ids, loss, gradients of one device), in float64."""
    with jax.enable_x64(True):
        params, ids = model(np.random.default_rng(5))
        yield params, ids, *jax.jit(jax.value_and_grad(whole_loss))(params, ids)


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize(("p", "algorithm"), [(1, "ring"), (2, "native"), (3, "ring"), (8, "H-D_R"), (8, None)])
def test_loss_and_gradients_are_those_of_one_device(both_losses, p, algorithm, sequence):
    params, ids, loss, grads = both_losses
    step = jax.value_and_grad(partial(spread_loss, algorithm=algorithm, sequence=sequence))
    found, mine = jax.jit(jax.vmap(step, (0, None), axis_name="model", axis_size=p))(parts(params, p), ids)
    np.testing.assert_allclose(found, np.full(p, loss), rtol=1e-12)
    close(joined(mine), grads)


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_in_every_mode(both_losses, on_ranks, sequence):
    """Parameters that are the same everywhere come in replicated, and their gradients leave so."""
    params, ids, loss, grads = both_losses
    own = {name: x for name, x in parts(params, 8).items() if SPLIT[name] is not None}
    shared = {name: x for name, x in params.items() if SPLIT[name] is None}

    def step(shared, own):
        gradient = jax.value_and_grad(
            lambda shared, own: spread_loss(shared | own, ids, sequence, algorithm="mesh"), (0, 1)
        )
        return gradient(shared, own)

    found, (mine_shared, mine_own) = on_ranks(step, {"model": 8})(shared, own)
    np.testing.assert_allclose(found, np.full(8, loss), rtol=1e-12)
    close(joined(mine_own | mine_shared), grads)


def test_a_gradient_taken_outside_of_a_checked_program(both_losses):
    params, ids, _, grads = both_losses
    mesh = jax.make_mesh((8,), ("model",), (jax.sharding.AxisType.Auto,))
    P = jax.sharding.PartitionSpec
    specs = {n: P() if d is None else P(*[None] * d, "model") for n, d in SPLIT.items()}
    spread = partial(spread_loss, algorithm="mesh")
    loss = jax.shard_map(spread, mesh=mesh, in_specs=(specs, P()), out_specs=P())
    close(jax.jit(jax.grad(loss))(params, ids), grads)


def test_forward_mode_agrees(both_losses):
    params, ids, _, grads = both_losses
    tangents = jax.tree.map(np.ones_like, params)
    loss = partial(spread_loss, algorithm="ring")
    step = lambda params, tangents: jax.jvp(lambda p: loss(p, ids), (params,), (tangents,))[1]  # noqa: E731
    found = jax.jit(jax.vmap(step, axis_name="model"))(parts(params, 4), parts(tangents, 4))
    np.testing.assert_allclose(found, np.full(4, sum(g.sum() for g in grads.values())), rtol=1e-10)


def test_python_and_numpy_values_are_arrays_too():
    w = np.ones((2, 3, 4), np.float32)
    found = jax.vmap(lambda w: column_parallel([1.0, 2.0, 3.0], w, "model", bias=[1, 2, 3, 4]), axis_name="model")(w)
    np.testing.assert_array_equal(found, [[7, 8, 9, 10]] * 2)


def test_two_axes_are_one_in_the_order_given():
    mesh = jax.make_mesh((4, 2), ("a", "b"), (jax.sharding.AxisType.Auto,) * 2)
    P = jax.sharding.PartitionSpec
    x, w = np.ones((2, 3), np.float32), np.arange(48, dtype=np.float32).reshape(3, 16)
    layer = lambda x, w: column_parallel(x, w, ("b", "a"), gather_output=True, algorithm="mesh")  # noqa: E731
    run = jax.shard_map(layer, mesh=mesh, in_specs=(P(), P(None, ("b", "a"))), out_specs=P())
    np.testing.assert_array_equal(jax.jit(run)(x, w), x @ w)


SHAPES = jax.ShapeDtypeStruct((2, 8, 16), "float32"), jax.ShapeDtypeStruct((16, 4), "float32")


def labels(function, *shapes):
    """What a function of per-device arrays communicates on 4 ranks, in order, without repetitions of one collective."""
    schedule = hccljax.trace(function, *shapes, axis_sizes={"model": 4})
    return [event.label for event in schedule]


def pair(x, up, down, axis=None):
    hidden = column_parallel(x, up, "model", sequence_axis=axis, algorithm="ring")
    return row_parallel(hidden, down, "model", sequence_axis=axis, algorithm="ring")


@pytest.mark.parametrize("axis", [None, 1])
def test_a_pair_of_layers_communicates_once_forward_and_once_backward(axis):
    x, up = SHAPES
    x = x if axis is None else jax.ShapeDtypeStruct((2, 2, 16), "float32")
    down = jax.ShapeDtypeStruct((4, 16), "float32")
    reduces, gathers = "ring_reduce_scatter", "ring_all_gather"
    forward = [reduces, gathers] if axis is None else [gathers, reduces]
    assert labels(partial(pair, axis=axis), x, up, down) == forward

    def gradients(x, up, down):
        return jax.vjp(partial(pair, axis=axis), x, up, down)[1](x)

    back = labels(gradients, x, up, down)
    # With the sequence spread, backward gathers the gradient and, for the weights, keeps the gathered x of forward.
    assert back == ([reduces, gathers] if axis is None else [gathers, gathers, reduces])


def test_the_gradient_goes_by_the_algorithm_and_not_by_a_psum_of_xla(in_mode):
    def step(x, up, down):
        x = hccljax.training.reduce_from(x, "model", algorithm="ring") / 8
        return jax.grad(lambda x, up, down: pair(x, up, down).sum(), (0, 1))(x, up, down)

    data = np.ones((8, 3, 16), np.float32), np.ones((8, 16, 4), np.float32), np.ones((8, 4, 16), np.float32)
    program = in_mode("checked", lambda _, *data: step(*data), {"model": 8}, False)
    text = program.lower(0.0, *data).compile().as_text()
    assert "collective-permute" in text
    assert "all-reduce" not in text


@pytest.mark.parametrize("gather_output", [False, True])
def test_outputs_can_be_gathered(gather_output):
    x, w = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.arange(24, dtype=np.float32).reshape(3, 8)

    def loss(x, w):
        out = column_parallel(x, w, "model", gather_output=gather_output, algorithm="ring")
        out = (out**2).sum()
        return out if gather_output else reduce_from(out, "model")

    rows = np.stack(np.split(w, 4, 1))
    found, (dx, dw) = jax.vmap(jax.value_and_grad(loss, (0, 1)), (None, 0), axis_name="model")(x, rows)
    y = x @ w
    np.testing.assert_allclose(found, np.full(4, (y**2).sum()))
    np.testing.assert_allclose(dx, np.broadcast_to(2 * y @ w.T, (4, 2, 3)))
    np.testing.assert_allclose(np.concatenate(list(dw), 1), x.T @ (2 * y))


def test_scatter_to_and_gather_from_are_inverses(on_ranks):
    x = np.arange(48.0, dtype=np.float32).reshape(2, 24)

    def there_and_back(x, _):
        split = lambda x: gather_from(scatter_to(x, "model", axis=1), "model", axis=1)  # noqa: E731
        return split(x), jax.grad(lambda x: (split(x) ** 2).sum())(x)

    same, grad = on_ranks(there_and_back, {"model": 8}, replicated=True)(x, np.zeros(8))
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(grad, 2 * x)


def test_communicators_of_a_group_work_on_their_own():
    group = hccljax.Group("rank", [[0, 3], [1, 2]])
    x, w = np.ones((4, 2, 6), np.float32), np.arange(48, dtype=np.float32).reshape(4, 6, 2)
    found = jax.vmap(lambda x, w: column_parallel(x, w, group, gather_output=True), axis_name="rank")(x, w)
    for pair in ([0, 3], [1, 2]):
        for rank in pair:
            np.testing.assert_array_equal(found[rank], x[0] @ np.concatenate([w[pair[0]], w[pair[1]]], 1))


def test_an_id_outside_of_the_vocabulary_is_all_zeros():
    table = np.ones((2, 3, 4), np.float32)
    found = jax.vmap(lambda t: embedding_parallel(jnp.array([5, 6, -1]), t, "model"), axis_name="model")(table)
    np.testing.assert_array_equal(found[0].sum(1), [4, 0, 0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, w: column_parallel(x, w[:3], "model"), "with the same number of features"),
        (lambda x, w: row_parallel(x, w[0], "model"), "expected \\[..., features\\] and \\[features, outputs\\]"),
        (lambda x, w: column_parallel(x, w, "model", bias=jnp.ones(3)), "expected \\[5\\], the outputs"),
        (lambda x, w: column_parallel(x, w, "model", sequence_axis=1), "sequence_axis=1"),
        (lambda x, w: row_parallel(x, w, "model", sequence_axis=0), "which 4 ranks do not divide"),
        (lambda x, w: scatter_to(x, "model", axis=0), "which 4 ranks do not divide"),
        (lambda x, w: gather_from(x, "model", axis=2), "axis=2 is out of range"),
        (lambda x, w: embedding_parallel(x, w, "model"), "expected integers"),
        (lambda x, w: embedding_parallel(jnp.arange(3), x[0], "model"), "expected \\[vocabulary / p, features\\]"),
        (lambda x, w: cross_entropy_parallel(x, jnp.arange(3), "model"), "labels of shape \\[3\\]"),
        (lambda x, w: column_parallel(x, w, "model", algorithm="rung"), "rung"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(hccljax.ArgumentError, match=says):
        jax.vmap(call, axis_name="model")(jnp.ones((4, 2, 6)), jnp.ones((4, 6, 5)))


def test_an_array_that_differs_from_rank_to_rank_cannot_enter(in_mode):
    with pytest.raises(hccljax.ArgumentError, match="typed as varying over 'model'"):
        in_mode("checked", lambda _, x: copy_to(x, "model"), {"model": 8}, False)(0.0, np.zeros((8, 2), np.float32))


def test_an_axis_that_is_not_mapped_is_named():
    with pytest.raises(hccljax.AxisError, match="model"):
        column_parallel(jnp.ones((2, 6)), jnp.ones((6, 5)), "model")
