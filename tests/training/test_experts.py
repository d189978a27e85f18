"""Experts on ranks compute what one device computes with all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.training import experts

N, D, F, E, K = 6, 4, 3, 16, 2


@pytest.fixture
def problem():
    """(tokens [8, N, D], index, weights, w [E, D, F]) in float64."""
    draw = np.random.default_rng(4)
    with jax.enable_x64(True):
        index = np.stack([[draw.permutation(E)[:K] for _ in range(N)] for _ in range(8)])
        yield draw.normal(size=(8, N, D)), index, draw.random((8, N, K)), draw.normal(size=(E, D, F))


def whole_loss(tokens, index, weights, w):
    outs = jnp.einsum("pnd,pnkdf->pnkf", tokens, w[index])
    return (jnp.tanh((weights[..., None] * outs).sum(2)) ** 2).sum()


def rank_loss(w, tokens, index, weights, **options):
    expert = lambda rows, counts: jax.lax.ragged_dot(rows, w, counts)  # noqa: E731
    out, dropped = experts(expert, tokens, index, weights, "expert", num_experts=E, **options)
    return (jnp.tanh(out) ** 2).sum(), dropped


@pytest.mark.parametrize(("p", "algorithm"), [(1, None), (2, "bruck"), (8, "pairwise"), (8, "native")])
def test_outputs_and_gradients_are_those_of_one_device(problem, p, algorithm):
    tokens, index, weights, w = (x if x.shape[0] == E else x[:p] for x in problem)
    step = jax.value_and_grad(lambda w, *data: rank_loss(w, *data, algorithm=algorithm), (0, 1, 3), has_aux=True)
    own = w.reshape(p, E // p, D, F)
    (value, dropped), (dw, dt, dg) = jax.jit(jax.vmap(step, axis_name="expert"))(own, tokens, index, weights)
    expected, (et, eg, ew) = jax.value_and_grad(whole_loss, (0, 2, 3))(tokens, index, weights, w)
    np.testing.assert_allclose(value.sum(), expected)
    np.testing.assert_array_equal(dropped, np.zeros(p))
    for mine, theirs in ((dw.reshape(w.shape), ew), (dt, et), (dg, eg)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_in_every_mode(problem, on_ranks):
    tokens, index, weights, w = problem
    step = lambda _, w, *data: jax.grad(lambda w: rank_loss(w, *data, algorithm="mesh")[0])(w)  # noqa: E731
    found = on_ranks(step, {"expert": 8})(0.0, w.reshape(8, 2, D, F), tokens, index, weights)
    expected = jax.grad(whole_loss, 3)(tokens, index, weights, w)
    np.testing.assert_allclose(found.reshape(w.shape), expected, rtol=1e-9, atol=1e-12)


def of_one(index, weights, p=2, **options):
    """out [p, n] of tokens 1, 2, …, with expert e multiplying by e + 1, on p ranks that hold one expert each."""
    tokens = jnp.arange(1.0, 1 + index.shape[1])[None, :, None] + jnp.zeros((p, 1, 1))

    def step(tokens, index, weights):
        scale = 1.0 + jax.lax.axis_index("expert")
        return experts(lambda rows, _: rows * scale, tokens, index, weights, "expert", num_experts=p, **options)

    out, dropped = jax.vmap(step, axis_name="expert")(tokens, index, weights)
    return out[..., 0], dropped


def test_what_is_above_capacity_is_counted_and_adds_nothing():
    index = np.array([[[1], [1], [0]], [[0], [0], [0]]])
    out, dropped = of_one(index, np.ones((2, 3, 1)), capacity=1)
    np.testing.assert_array_equal(out, [[2, 0, 3], [1, 0, 0]])
    np.testing.assert_array_equal(dropped, [1, 2])


def test_an_index_that_is_no_expert_is_dropped():
    index = np.array([[[1], [-1], [0]], [[2], [7], [0]]])
    out, dropped = of_one(index, np.ones((2, 3, 1)))
    np.testing.assert_array_equal(out, [[2, 0, 3], [0, 0, 3]])
    np.testing.assert_array_equal(dropped, [1, 2])


def test_a_token_may_go_to_one_expert_twice_and_no_token_to_none():
    index, weights = np.array([[[1, 1]], [[0, 1]]]), np.array([[[0.25, 0.5]], [[1, 1]]])
    np.testing.assert_array_equal(of_one(index, weights)[0], [[1.5], [3]])
    out, dropped = of_one(np.zeros((2, 0, 1), int), np.zeros((2, 0, 1)))
    assert (out.shape, dropped.tolist()) == ((2, 0), [0, 0])


def test_strict_callers_get_the_same(problem):
    tokens, index, weights, w = problem
    run = lambda *data: rank_loss(*data, algorithm="mesh")[0]  # noqa: E731
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        found = jax.vmap(run, axis_name="expert")(w.reshape(8, 2, D, F), tokens, index, weights)
    np.testing.assert_allclose(found.sum(), whole_loss(tokens, index, weights, w))


def test_what_travels_is_two_exchanges():
    shapes = [jax.ShapeDtypeStruct((2, D, F), "float32"), jax.ShapeDtypeStruct((N, D), "float32")]
    shapes += [jax.ShapeDtypeStruct((N, K), "int32"), jax.ShapeDtypeStruct((N, K), "float32")]
    schedule = hccljax.trace(
        lambda *args: rank_loss(*args, capacity=4, algorithm="native")[0], *shapes, axis_sizes={"expert": 8}
    )
    # Rows, their experts, how many they are; and what comes back.
    assert sorted(event.nbytes for event in schedule) == [4, 4 * 4, 4 * 4 * F, 4 * 4 * D]


X, INDEX, W = np.ones((4, 3, 2), np.float32), np.zeros((4, 3, 1), np.int32), np.ones((4, 3, 1), np.float32)


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        ((X, INDEX, W), {"num_experts": 6}, "num_experts=6 on 4 ranks: expected a multiple of 4"),
        ((X, INDEX, W), {"num_experts": 0}, "num_experts=0"),
        ((X, INDEX, W), {"num_experts": 4, "capacity": 0}, "capacity=0"),
        ((X, INDEX, W[:, :2]), {"num_experts": 4}, "expected \\[n, d\\], \\[n, k\\] and \\[n, k\\]"),
        ((X[..., 0], INDEX, W), {"num_experts": 4}, "expected \\[n, d\\]"),
        ((X, W, W), {"num_experts": 4}, "index of dtype float32: expected integers"),
    ],
)
def test_what_does_not_fit_is_refused(data, options, says):
    with pytest.raises(hccljax.ArgumentError, match=says):
        jax.vmap(lambda *d: experts(lambda rows, _: rows, *d, "expert", **options), axis_name="expert")(*data)


def test_an_expert_has_to_return_a_row_for_each_row():
    with pytest.raises(hccljax.ArgumentError, match="expected one row for each row"):
        jax.vmap(lambda *d: experts(lambda rows, _: rows[:1], *d, "e", num_experts=4), axis_name="e")(X, INDEX, W)
