"""Leaves that are not plain float32: 16 bits, integers, frozen ones."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hccljax

# Where a test is not about an algorithm it takes the one that compiles fastest; test_loop.py goes through all of them.
value_and_grad = partial(hccljax.value_and_grad, algorithm="mesh")
WIDE = 257  # not divisible by 8 ranks


@pytest.fixture(scope="module")
def gradients():
    """[8, WIDE] float32 numbers that bfloat16 holds: the ranks' gradients."""
    draw = np.random.default_rng(2).standard_normal((8, WIDE))
    return draw.astype(ml_dtypes.bfloat16).astype(np.float32)


def dot(params, x):
    """A loss whose gradient with respect to params is x."""
    return (params * x).sum(dtype=jnp.float32).astype(params.dtype)


@pytest.mark.parametrize(
    ("dtype", "op", "algorithm"),
    [(ml_dtypes.bfloat16, "mean", "ring"), (ml_dtypes.bfloat16, "sum", "mesh"), (np.float16, "mean", "mesh")],
)
def test_a_wide_accumulation_rounds_once(on_ranks, gradients, dtype, op, algorithm):
    scale = {"mean": 8, "sum": 1}[op]
    exact = (gradients.astype(dtype).astype(np.float64).sum(0) / scale).astype(dtype)
    assert (gradients.astype(dtype).astype(np.float32).sum(0, dtype=np.float32) / scale).astype(dtype).tolist() == (
        exact.tolist()
    )  # float32 holds these sums
    params = np.zeros(WIDE, dtype)
    grad = hccljax.value_and_grad(dot, "data", op=op, algorithm=algorithm, accumulate_dtype=jnp.float32)
    _, found = on_ranks(grad, replicated=True)(params, gradients.astype(dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.float32), exact.astype(np.float32))


def test_a_narrow_accumulation_rounds_at_every_hop(on_ranks, gradients):
    """What accumulate_dtype is for: without it the ring is wrong in the last place, though never by much."""
    narrow = gradients.astype(ml_dtypes.bfloat16)
    exact = gradients.astype(np.float64).sum(0)
    grad = hccljax.value_and_grad(dot, "data", op="sum", algorithm="ring")
    _, found = on_ranks(grad, replicated=True)(np.zeros(WIDE, ml_dtypes.bfloat16), narrow)
    error = np.abs(np.asarray(found, np.float64) - exact)
    assert found.dtype == ml_dtypes.bfloat16
    assert (np.asarray(found, np.float32) != exact.astype(ml_dtypes.bfloat16).astype(np.float32)).any()
    # Seven additions, each off by at most half a unit in the last place of a partial sum.
    assert (error <= 7 * 2.0**-8 * np.abs(gradients).sum(0)).all()


def test_an_accumulation_dtype_that_is_narrower_is_refused(linear):
    loss, params, x, y = linear
    grad = value_and_grad(loss, "data", accumulate_dtype=jnp.bfloat16)
    with pytest.raises(hccljax.DtypeError, match="accumulate_dtype=bfloat16 does not hold every float32"):
        jax.vmap(grad, in_axes=(None, 0, 0), axis_name="data")(params, x, y)


def test_each_leaf_keeps_its_dtype(on_ranks):
    params = {"wide": np.ones(3, np.float32), "narrow": np.ones(3, ml_dtypes.bfloat16)}
    x = np.arange(8, dtype=np.float32)

    def loss(params, x):
        return (params["wide"].sum() + params["narrow"].sum().astype(jnp.float32)) * x

    value, grads = on_ranks(value_and_grad(loss, "data"), replicated=True)(params, x)
    assert jax.tree.map(lambda leaf: leaf.dtype, grads) == jax.tree.map(lambda leaf: leaf.dtype, params)
    np.testing.assert_array_equal(value, 6 * 3.5)
    for leaf in jax.tree.leaves(grads):
        np.testing.assert_array_equal(leaf.astype(np.float32), np.full(3, 3.5, np.float32))


@pytest.mark.parametrize("leaf", [np.arange(3), np.array([True]), 3])
def test_integers_and_booleans_are_refused_in_jax_s_own_words(on_ranks, leaf):
    def loss(params, x):
        return (params["w"] * params["n"]).sum() * x

    params = {"w": np.float32(1), "n": leaf}
    with pytest.raises(TypeError) as theirs:
        jax.value_and_grad(loss)(jax.tree.map(jnp.asarray, params), np.float32(1))
    grad = value_and_grad(loss, "data")
    with pytest.raises(TypeError) as ours:
        on_ranks(lambda _, x: grad(params, x))(np.zeros(1), np.arange(8, dtype=np.float32))
    assert "real- or complex-valued inputs" in str(theirs.value)
    assert str(ours.value) == str(theirs.value)


def test_a_loss_that_is_no_scalar_is_refused_in_jax_s_own_words(on_ranks):
    with pytest.raises(TypeError, match="Gradient only defined for scalar-output functions"):
        on_ranks(value_and_grad(lambda p, x: p * x, "data"))(np.ones(3, np.float32), np.arange(8, dtype=np.float32))


def test_a_frozen_leaf_has_a_zero_gradient(on_ranks, linear, by_hand):
    loss, params, x, y = linear

    def frozen(params, x, y):
        return loss({"w": params["w"], "b": jax.lax.stop_gradient(params["b"])}, x, y)

    _, grads = on_ranks(value_and_grad(frozen, "data"), replicated=True)(params, x, y)
    np.testing.assert_array_equal(grads["w"], by_hand(params, x.reshape(16, 3), y.reshape(16, 2))[1]["w"])
    np.testing.assert_array_equal(grads["b"], np.zeros(2))


def test_a_leaf_that_the_loss_does_not_use_has_a_zero_gradient(on_ranks):
    params = {"used": np.float32(2), "idle": np.ones((2, 0, 3), np.float32), "other": np.ones(5, np.float32)}
    grad = value_and_grad(lambda params, x: params["used"] * x, "data")
    _, grads = on_ranks(grad, replicated=True)(params, np.arange(8, dtype=np.float32))
    np.testing.assert_array_equal(grads["used"], 3.5)
    assert grads["idle"].shape == (2, 0, 3)
    np.testing.assert_array_equal(grads["other"], np.zeros(5))


def test_integers_may_be_data_beside_the_parameters(on_ranks):
    """Labels, steps and frozen tables are arguments that argnums does not name."""
    labels = np.arange(8, dtype=np.int32)
    grad = value_and_grad(lambda table, label: table[label] * 2, "data")
    value, grads = on_ranks(grad, replicated=True)(np.arange(8, dtype=np.float32), labels)
    np.testing.assert_array_equal(value, 7)
    np.testing.assert_array_equal(grads, np.full(8, 0.25))


def test_complex_parameters_have_complex_gradients(on_ranks):
    params, x = np.complex64(1 + 2j), np.arange(8, dtype=np.float32)

    def loss(z, x):
        return x * (z.real**2 + 3 * z.imag)

    _, found = on_ranks(value_and_grad(loss, "data"), replicated=True)(params, x)
    # JAX's convention for a real loss: ∂/∂re - i ∂/∂im.
    np.testing.assert_array_equal(found, np.complex64(3.5 * (2 - 3j)))
