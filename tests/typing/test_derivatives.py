"""Derivatives against finite differences; prod with zeros; max and min, which have none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import hccljax

AXIS, RANKS = "i", 4
X = np.random.default_rng(7).uniform(0.5, 1.5, (RANKS, 2))
EXTREMA = ("max", "min")


def test_first_and_second_derivatives_agree_with_finite_differences():
    """Forward over forward, forward over reverse and their converses."""

    def on_rank(x):
        options = {"algorithm": "mesh"}  # compiles fastest
        collectives = {
            "sum": hccljax.all_reduce(jnp.cos(x), AXIS, **options),
            "mean": hccljax.all_reduce(x * x, AXIS, "mean", **options),
            "prod": hccljax.all_reduce(x, AXIS, "prod", **options),
            "all_gather": hccljax.all_gather(x, AXIS, **options),
        }
        weight = 1 + jax.lax.axis_index(AXIS)
        return {name: jnp.sin(out) * weight for name, out in collectives.items()}

    with jax.enable_x64(True):
        of_all = jax.jit(jax.vmap(on_rank, axis_name=AXIS))
        check_grads(of_all, (jnp.asarray(X),), order=2, modes=("fwd", "rev"), atol=1e-3, rtol=1e-3)


# One column for each kind: no zero, one, two, only zeros.
WITH_ZEROS = np.array([[2, 3, 0, 0], [1, 0, 5, 0], [3, -2, 0, 0], [-1, 4, 2, 0]], np.float32)


def product_gradients(x, weights):
    """(gradient, Hessian [p, n, q]) of Σ_r w_r Π_s x_sn, by leaving ranks out."""
    p = x.shape[0]
    gradient = np.stack([np.delete(x, s, 0).prod(0) for s in range(p)]) * weights.sum()
    hessian = np.zeros((p, x.shape[1], p))
    for s in range(p):
        for t in range(p):
            if s != t:
                hessian[s, :, t] = np.delete(x, [s, t], 0).prod(0) * weights.sum()
    return gradient, hessian


def test_prod_has_right_derivatives_whatever_is_zero(mode):
    x = WITH_ZEROS
    weights = np.arange(1, RANKS + 1, dtype=np.float32)
    mapped = mode.map(lambda x: hccljax.all_reduce(x, AXIS, "prod"))

    def loss(x):
        return jnp.sum(mapped(x) * weights[:, None])

    tangent = jnp.arange(16, dtype=jnp.float32).reshape(RANKS, 4) - 7

    @jax.jit
    def found(x):
        return mapped(x), jax.jvp(jax.grad(loss), (x,), (tangent,)), jax.jvp(mapped, (x,), (tangent,))[1]

    value, (gradient, second), forward = found(x)
    expected, hessian = product_gradients(x, weights)
    np.testing.assert_array_equal(value, np.broadcast_to(x.prod(0), x.shape))
    np.testing.assert_array_equal(gradient, expected)
    np.testing.assert_array_equal(second, np.einsum("snt,tn->sn", hessian, tangent))
    others = expected / weights.sum()
    np.testing.assert_array_equal(forward, np.broadcast_to((others * tangent).sum(0), x.shape))


def test_prod_scattered_and_reduced_to_a_root_have_derivatives_too(mode):
    x = np.random.default_rng(1).integers(-2, 3, (RANKS, RANKS, 2)).astype(np.float32)

    def on_rank(x):
        weight = jax.lax.axis_index(AXIS).astype(x.dtype) + 1
        scattered = lambda x: jnp.sum(hccljax.reduce_scatter(x, AXIS, "prod") * weight)  # noqa: E731
        rooted = lambda x: jnp.sum(hccljax.reduce(x, AXIS, "prod", 2) * weight)  # noqa: E731
        return jax.grad(scattered)(x), jax.grad(rooted)(x)

    others = np.stack([np.delete(x, s, 0).prod(0) for s in range(RANKS)])
    scattered, rooted = jax.jit(mode.map(on_rank))(x)
    np.testing.assert_array_equal(scattered, others * np.arange(1, RANKS + 1)[:, None])
    np.testing.assert_array_equal(rooted, others * 3)


@pytest.mark.parametrize("op", EXTREMA)
def test_max_and_min_have_no_derivative_and_say_what_to_do(mode, op):
    x = X.astype(np.float32)
    total = lambda x: hccljax.all_reduce(x, AXIS, op)  # noqa: E731
    transformations = [
        mode.map(jax.grad(lambda x: jnp.sum(total(x)))),
        mode.map(lambda x: jax.jvp(total, (x,), (x,))[1]),
        mode.map(jax.jacfwd(total)),
        mode.map(jax.vmap(jax.grad(total))),
        jax.grad(lambda x: jnp.sum(mode.map(total)(x))),
        mode.map(jax.grad(lambda x: jnp.sum(hccljax.reduce(x, AXIS, op)))),
        mode.map(jax.grad(lambda x: jnp.sum(hccljax.reduce_scatter(jnp.stack([x] * RANKS), AXIS, op)))),
    ]
    for transformed in transformations:
        with pytest.raises(hccljax.DerivativeError, match=rf"op='{op}'.*jax\.lax\.stop_gradient"):
            jax.eval_shape(transformed, x)


@pytest.mark.parametrize("op", EXTREMA)
def test_a_stopped_gradient_passes_max_and_min(mode, op):
    """The stable softmax: what is subtracted does not matter, so its gradient may be stopped."""
    x = np.random.default_rng(2).integers(-3, 4, (RANKS, 3)).astype(np.float32)

    def on_rank(x):
        def loss(x):
            return jnp.sum((x - hccljax.all_reduce(jax.lax.stop_gradient(x), AXIS, op)) ** 2)

        return jax.value_and_grad(loss)(x), jax.jvp(loss, (x,), (x,))[1]

    (value, gradient), tangent = jax.jit(mode.map(on_rank))(x)
    difference = x - (x.max(0) if op == "max" else x.min(0))
    np.testing.assert_array_equal(value, (difference**2).sum(1))
    np.testing.assert_array_equal(gradient, 2 * difference)
    np.testing.assert_array_equal(tangent, (2 * difference * x).sum(1))


@pytest.mark.parametrize("op", EXTREMA)
def test_an_integer_operand_passes_max_and_min_under_the_gradient_of_another(mode, op):
    count = np.array([3, 1, 4, 2], np.int32)
    x = np.arange(4, dtype=np.float32)

    def on_rank(x, count):
        return jax.grad(lambda x: x * x * hccljax.all_reduce(count, AXIS, op).astype(jnp.float32))(x)

    gradient = jax.jit(mode.map(on_rank))(x, count)
    np.testing.assert_array_equal(gradient, 2 * x * (4 if op == "max" else 1))


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "max", "min"])
def test_a_function_that_ignores_the_operand_has_zero_gradient(mode, op):
    def on_rank(x):
        fixed = jnp.ones_like(x) * 2
        return jax.grad(lambda y: jnp.sum(y * hccljax.all_reduce(fixed * jax.lax.axis_index(AXIS), AXIS, op)))(x)

    gradient = jax.jit(mode.map(on_rank))(X.astype(np.float32))
    expected = {"sum": 12, "mean": 3, "prod": 0, "max": 6, "min": 0}[op]
    np.testing.assert_array_equal(gradient, np.full_like(X, expected))


def test_a_derivative_that_lacks_what_was_asked_for_says_so_where_it_is_taken():
    def total(x, **asked):
        return hccljax.all_reduce(x, AXIS, "prod", **asked)

    def of(transform, **asked):
        return jax.eval_shape(jax.vmap(transform(lambda x: total(x, **asked)), axis_name=AXIS), jnp.ones(8))

    of(lambda f: f, algorithm="tree")
    of(jax.grad)  # the policy's own choice is nobody's wish
    with pytest.warns(hccljax.FallbackWarning, match="all_gather, for a derivative: 'tree' has no all_gather"):
        of(jax.grad, algorithm="tree")
