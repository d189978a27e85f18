"""The gradient of replicated parameters: the one that JAX has summed already, and the one hccljax reduces."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import hccljax

AXIS, RANKS = "i", 4
W = np.array([1, -2, 3], np.float32)
DATA = np.random.default_rng(11).integers(-2, 3, (RANKS, 5, 3)).astype(np.float32)


def loss(w, x):
    return jnp.sum((x @ w) ** 2)


SUMMED = sum(2 * x.T @ (x @ W) for x in DATA)
VALUES = np.array([np.sum((x @ W) ** 2) for x in DATA])


def mapped(fun, mode, make_mesh):
    """fun(parameters, data of this rank) with one result for all ranks."""
    if mode == "vmap":
        return jax.vmap(fun, in_axes=(None, 0), out_axes=None, axis_name=AXIS)
    body = lambda w, x: fun(w, x[0])  # noqa: E731
    mesh, specs = make_mesh(i=RANKS), (P(), P(AXIS))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=mode == "checked")


def test_grad_then_all_reduce_counts_every_rank_twice_where_types_are_checked_and_warns(make_mesh):
    naive = mapped(lambda w, x: hccljax.all_reduce(jax.grad(loss)(w, x), AXIS), "checked", make_mesh)
    with pytest.warns(hccljax.InvariantOperandWarning):
        np.testing.assert_array_equal(jax.jit(naive)(W, DATA), RANKS * SUMMED)


@pytest.mark.parametrize("mode", ["unchecked", "vmap"])
def test_grad_then_all_reduce_is_right_where_types_are_not_checked(make_mesh, mode):
    naive = mapped(lambda w, x: hccljax.all_reduce(jax.grad(loss)(w, x), AXIS), mode, make_mesh)
    np.testing.assert_array_equal(jax.jit(naive)(W, DATA), SUMMED)


@pytest.mark.parametrize("mode", ["checked", "unchecked", "vmap"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_value_and_grad_is_right_everywhere(make_mesh, mode, op):
    scale = 1 if op == "sum" else 1 / RANKS
    reduced = mapped(hccljax.value_and_grad(loss, AXIS, op=op), mode, make_mesh)
    value, gradient = jax.jit(reduced)(W, DATA)
    np.testing.assert_array_equal(value, VALUES.sum() * scale)
    np.testing.assert_array_equal(gradient, SUMMED * scale)


@pytest.mark.parametrize("mode", ["checked", "unchecked", "vmap"])
def test_aux_argnums_and_keyword_arguments(make_mesh, mode):
    def with_aux(x, w, b, *, scale):
        return scale * loss(w + b, x), {"rows": jnp.float32(x.shape[0])}

    def on_rank(w, x):
        grad = hccljax.value_and_grad(with_aux, AXIS, (1, 2), has_aux=True, op="sum")
        (value, aux), gradients = grad(x, w, jnp.zeros_like(w), scale=2.0)
        return value, aux, gradients

    value, aux, (of_w, of_b) = jax.jit(mapped(on_rank, mode, make_mesh))(W, DATA)
    assert aux == {"rows": 5.0}
    np.testing.assert_array_equal(value, 2 * VALUES.sum())
    np.testing.assert_array_equal(of_w, 2 * SUMMED)
    np.testing.assert_array_equal(of_b, 2 * SUMMED)


COLLECTIVES = re.compile(r"= \S+ ((?:all|reduce|collective)-[a-z-]+?)(?:-start)?\(")


@pytest.mark.parametrize("mode", ["checked", "unchecked"])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "H-D_R"])
def test_the_compiled_gradient_communicates_by_the_algorithm_alone(make_mesh, mode, algorithm):
    reduced = mapped(hccljax.value_and_grad(loss, AXIS, algorithm=algorithm), mode, make_mesh)
    hlo = jax.jit(reduced).lower(W, DATA).compile().as_text()
    assert set(COLLECTIVES.findall(hlo)) == {"collective-permute"}


def test_without_the_helper_the_compiled_gradient_has_an_all_reduce_of_xla(make_mesh):
    """What the test above would see if the algorithm did not run."""
    plain = mapped(jax.grad(loss), "checked", make_mesh)
    hlo = jax.jit(plain).lower(W, DATA).compile().as_text()
    assert set(COLLECTIVES.findall(hlo)) == {"all-reduce"}


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name, equation
        for inner in jax.tree.leaves(
            equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def test_the_jaxpr_of_the_gradient_names_our_collectives_and_no_psum(make_mesh):
    reduced = mapped(hccljax.value_and_grad(loss, AXIS, algorithm="ring"), "checked", make_mesh)
    names = [name for name, _ in primitives(jax.make_jaxpr(reduced)(W, DATA).jaxpr)]
    assert names.count("hccl_linear") == 2
    assert not [name for name in names if name.startswith("psum")]


def test_a_second_derivative_through_the_helper(make_mesh):
    """The Hessian of a quadratic loss, by forward mode over the reduced gradient."""
    hessian = sum(2 * x.T @ x for x in DATA)

    def on_rank(w, x):
        gradient = lambda w: hccljax.value_and_grad(loss, AXIS, op="sum")(w, x)[1]  # noqa: E731
        return jax.jacfwd(gradient)(w)

    for mode in ("checked", "unchecked", "vmap"):
        np.testing.assert_array_equal(jax.jit(mapped(on_rank, mode, make_mesh))(W, DATA), hessian, err_msg=mode)
