"""value_and_grad: the signature of jax.value_and_grad, with value and gradients reduced over the ranks."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax

# Where a test is not about an algorithm it takes the one that compiles fastest; test_loop.py goes through all of them.
value_and_grad = partial(hccljax.value_and_grad, algorithm="mesh")


@pytest.fixture(scope="session")
def whole(linear, by_hand):
    """(loss, gradients) of the whole batch by NumPy."""
    _, params, x, y = linear
    return by_hand(params, x.reshape(16, 3), y.reshape(16, 2))


def same(found, expected):
    """Two pytrees of arrays are equal to the last bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("op", "scale"), [("mean", 1), ("sum", 8)])
def test_mean_is_the_gradient_of_the_whole_batch_and_sum_is_eight_times_that(on_ranks, linear, whole, op, scale):
    loss, params, x, y = linear
    found = on_ranks(value_and_grad(loss, "data", op=op), replicated=True)(params, x, y)
    same(found, jax.tree.map(lambda leaf: scale * leaf, whole))


@pytest.mark.parametrize("op", ["max", "prod", "average", None])
def test_other_reductions_are_no_reductions_of_gradients(op):
    with pytest.raises(hccljax.ArgumentError, match="expected 'mean' or 'sum'"):
        value_and_grad(jnp.sum, "data", op=op)


def test_aux_comes_back_as_it_is_on_each_rank(on_ranks, linear, whole, by_hand):
    loss, params, x, y = linear

    def with_aux(params, x, y):
        return loss(params, x, y), {"seen": x.sum(), "mine": loss(params, x, y)}

    out = on_ranks(value_and_grad(with_aux, "data", has_aux=True))
    (value, aux), grads = out(params, x, y)
    same((value[3], jax.tree.map(lambda leaf: leaf[3], grads)), whole)
    np.testing.assert_array_equal(aux["seen"], x.sum((1, 2)))
    np.testing.assert_array_equal(aux["mine"], [by_hand(params, x[r], y[r])[0] for r in range(8)])


def test_argnums_choose_what_is_differentiated_and_in_which_order(on_ranks, linear, whole):
    loss, params, x, y = linear

    def spread(w, x, y, b):
        return loss({"w": w, "b": b}, x, y)

    def all_of_them(p, x, y):
        grads = [value_and_grad(spread, "data", argnums) for argnums in (0, 3, (3, 0), (0,))]
        return [grad(p["w"], x, y, p["b"]) for grad in grads]

    first, last, both, alone = on_ranks(all_of_them, replicated=True)(params, x, y)
    value, grads = whole
    same(first, (value, grads["w"]))
    same(last, (value, grads["b"]))
    same(both, (value, (grads["b"], grads["w"])))
    same(alone, (value, (grads["w"],)))


def test_keyword_arguments_reach_the_loss(on_ranks, linear, whole):
    loss, params, x, y = linear
    grad = value_and_grad(lambda params, x, *, y, weight: weight * loss(params, x, y), "data")
    found = on_ranks(lambda p, x, y: grad(p, x, y=y, weight=4.0), replicated=True)(params, x, y)
    same(found, jax.tree.map(lambda leaf: 4 * leaf, whole))


def test_parameters_can_be_any_pytree(on_ranks, linear, whole):
    loss, params, x, y = linear
    tree = (params["w"], [{"bias": params["b"], "unused": None}, {}], np.float32(1))

    def of_tree(tree, x, y):
        w, [inner, _], scale = tree
        return scale * loss({"w": w, "b": inner["bias"]}, x, y)

    value, grads = whole
    expected = (value, (grads["w"], [{"bias": grads["b"], "unused": None}, {}], value))
    same(on_ranks(value_and_grad(of_tree, "data"), replicated=True)(tree, x, y), expected)


def test_a_python_number_is_a_parameter_too(on_ranks):
    grad = value_and_grad(lambda scale, x: scale * x.mean(), "data")
    found = on_ranks(lambda _, x: grad(3.0, x), replicated=True)(np.zeros(1), np.arange(8.0, dtype=np.float32))
    same(found, (np.float32(10.5), np.float32(3.5)))


def test_the_loss_may_be_rematerialised_and_jitted(on_ranks, linear, whole):
    loss, params, x, y = linear
    grad = value_and_grad(jax.checkpoint(jax.jit(loss)), "data")
    same(on_ranks(grad, replicated=True)(params, x, y), whole)


def test_parameters_that_vary_already_are_taken_as_they_are(on_ranks, linear, whole):
    loss, params, x, y = linear
    grad = value_and_grad(loss, "data")
    same(
        on_ranks(lambda p, x, y: grad(hccljax.as_varying(p, "data"), x, y), replicated=True)(params, x, y),
        whole,
    )


def test_a_batch_of_models_trains_under_an_inner_vmap(on_ranks, linear, by_hand):
    loss, params, x, y = linear
    models = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf, leaf + 1]), params)
    grad = hccljax.value_and_grad(loss, "data", algorithm="ring")
    mapped = jax.vmap(grad, in_axes=(0, None, None))
    values, grads = on_ranks(mapped, replicated=True)(models, x, y)
    for k in range(3):
        one = jax.tree.map(lambda leaf, k=k: leaf[k], models)
        same(
            (values[k], jax.tree.map(lambda leaf, k=k: leaf[k], grads)),
            by_hand(one, x.reshape(16, 3), y.reshape(16, 2)),
        )


@pytest.mark.parametrize(
    ("axis_name", "algorithm"),
    [
        (("data", "replica"), "tree"),
        (("data", "replica"), "level0:mesh;level1:ring"),
        (("replica", "data"), "mesh"),
        (("replica", "data"), "ring"),
    ],
)
def test_a_tuple_of_axes_is_one_batch_axis(on_ranks, linear, whole, axis_name, algorithm):
    loss, params, x, y = linear
    grad = hccljax.value_and_grad(loss, axis_name, algorithm=algorithm, topology="2x4")
    same(on_ranks(grad, {"data": 2, "replica": 4}, replicated=True)(params, x, y), whole)


def test_one_axis_of_two_trains_a_model_for_each_index_of_the_other(on_ranks, linear, by_hand):
    loss, params, x, y = linear
    grad = hccljax.value_and_grad(loss, "replica", algorithm="ring")
    each = on_ranks(lambda p, x, y: grad(hccljax.as_varying(p, "data"), x, y), {"data": 2, "replica": 4})
    values, grads = each(params, x, y)
    for rank in range(8):
        half = slice(0, 4) if rank < 4 else slice(4, 8)
        expected = by_hand(params, x[half].reshape(8, 3), y[half].reshape(8, 2))
        same((values[rank], jax.tree.map(lambda leaf, rank=rank: leaf[rank], grads)), expected)


def test_over_a_checked_axis_that_is_not_named_grad_keeps_jax_s_own_rule(in_mode, linear, whole):
    """Parameters replicated over another axis get the sum over it, as in jax.lax: tensor parallelism wants that."""
    loss, params, x, y = linear

    def twin(params, x, y):
        own = jax.lax.pcast(params, "replica", to="varying")
        return jax.lax.pmean(jax.value_and_grad(loss)(own, x, y), "replica")

    axes = {"data": 2, "replica": 4}
    _, grads = in_mode("checked", hccljax.value_and_grad(loss, "replica", algorithm="ring"), axes, False)(params, x, y)
    same(grads, in_mode("checked", twin, axes, False)(params, x, y)[1])
    same(jax.tree.map(lambda leaf: leaf[0], grads), jax.tree.map(lambda leaf: 2 * leaf, whole[1]))


def test_communicators_of_a_group_train_models_of_their_own(on_ranks, linear, by_hand):
    loss, params, x, y = linear
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    grad = hccljax.value_and_grad(loss, hccljax.Group("data", groups=groups), algorithm="ring")
    values, grads = on_ranks(grad)(params, x, y)
    for rank in range(8):
        members = groups[rank % 2]
        expected = by_hand(params, x[members].reshape(8, 3), y[members].reshape(8, 2))
        same((values[rank], jax.tree.map(lambda leaf, rank=rank: leaf[rank], grads)), expected)


def test_eager_calls_give_the_same(linear, whole):
    loss, params, x, y = linear
    grad = hccljax.value_and_grad(loss, "data", algorithm="tree")
    same(jax.vmap(grad, in_axes=(None, 0, 0), out_axes=None, axis_name="data")(params, x, y), whole)


def test_an_axis_that_is_not_mapped_is_refused(linear):
    loss, params, x, y = linear
    with pytest.raises(hccljax.AxisError, match="data"):
        value_and_grad(loss, "data")(params, x[0], y[0])


def test_an_unknown_algorithm_is_refused(linear):
    loss, params, x, y = linear
    grad = hccljax.value_and_grad(loss, "data", algorithm="rung")
    with pytest.raises(hccljax.ArgumentError, match="rung"):
        jax.vmap(grad, in_axes=(None, 0, 0), axis_name="data")(params, x, y)


def test_the_result_carries_the_name_and_the_text_of_the_loss():
    def loss(params):
        """How bad it is."""

    grad = value_and_grad(loss, "data")
    assert (grad.__name__, grad.__doc__) == ("loss", "How bad it is.")
