"""The warning about an operand that is the same on every rank already: when, how often, where it points."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import hccljax

AXIS, RANKS = "i", 4
W = np.arange(3, dtype=np.float32)


def of_replicated(fun, make_mesh, checked=True):
    return jax.shard_map(fun, mesh=make_mesh(i=RANKS), in_specs=P(), out_specs=P(), check_vma=checked)


def test_the_sum_of_a_replicated_operand_warns_once_names_the_fix_and_follows_lax(make_mesh):
    mapped = jax.jit(of_replicated(lambda w: hccljax.all_reduce(w, AXIS), make_mesh))
    with pytest.warns(hccljax.InvariantOperandWarning, match=r"as_varying\(params, 'i'\)") as caught:
        total = mapped(W)
    assert len(caught) == 1
    np.testing.assert_array_equal(total, RANKS * W)
    by_lax = jax.jit(of_replicated(lambda w: jax.lax.psum(w, AXIS), make_mesh))(W)
    np.testing.assert_array_equal(total, by_lax)
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        mapped(W)
    assert not again


def test_the_warning_points_at_the_line_that_called(make_mesh):
    def user(w):
        return hccljax.all_reduce(w, AXIS)

    with pytest.warns(hccljax.InvariantOperandWarning) as caught:
        jax.eval_shape(of_replicated(user, make_mesh), W)
    assert caught[0].filename == __file__
    assert caught[0].lineno == user.__code__.co_firstlineno + 1


def test_the_drop_in_module_warns_too_and_points_at_the_caller(make_mesh):
    with pytest.warns(hccljax.InvariantOperandWarning) as caught:
        jax.eval_shape(of_replicated(lambda w: hccljax.lax.psum(w, AXIS), make_mesh), W)
    assert [warning.filename for warning in caught] == [__file__]


def test_prod_counts_each_rank_as_well(make_mesh):
    with pytest.warns(hccljax.InvariantOperandWarning, match="op='prod'"):
        total = jax.jit(of_replicated(lambda w: hccljax.all_reduce(w, AXIS, "prod"), make_mesh))(W)
    np.testing.assert_array_equal(total, W**RANKS)


def test_a_mean_warns_of_a_gradient_that_is_summed_already(make_mesh):
    with pytest.warns(hccljax.InvariantOperandWarning, match="jax.grad has summed it already, and it is 4 times"):
        mean = jax.jit(of_replicated(lambda w: hccljax.all_reduce(w, AXIS, "mean"), make_mesh))(W)
    np.testing.assert_array_equal(mean, W)


@pytest.mark.parametrize("op", ["max", "min"])
def test_what_does_not_count_ranks_does_not_warn(make_mesh, op):
    total = jax.jit(of_replicated(lambda w: hccljax.all_reduce(w, AXIS, op), make_mesh))(W)
    np.testing.assert_array_equal(total, W)


def test_the_mean_of_the_drop_in_module_does_not_warn(make_mesh):
    total = jax.jit(of_replicated(lambda w: hccljax.lax.pmean(w, AXIS), make_mesh))(W)
    np.testing.assert_array_equal(total, W)


@pytest.mark.parametrize("op", ["sum", "prod"])
def test_an_operand_that_varies_does_not_warn(mode, op):
    jax.eval_shape(mode.map(lambda w: hccljax.all_reduce(w, AXIS, op)), np.stack([W] * RANKS))


def test_a_parameter_typed_as_varying_does_not_warn(make_mesh):
    mapped = of_replicated(lambda w: hccljax.all_reduce(hccljax.as_varying(w, AXIS), AXIS), make_mesh)
    np.testing.assert_array_equal(jax.jit(mapped)(W), RANKS * W)


def test_where_types_are_not_checked_nothing_is_known_and_nothing_warns(make_mesh):
    total = jax.jit(of_replicated(lambda w: hccljax.all_reduce(w, AXIS), make_mesh, checked=False))(W)
    np.testing.assert_array_equal(total, RANKS * W)
    jax.eval_shape(jax.vmap(lambda _, w: hccljax.all_reduce(w, AXIS), (0, None), axis_name=AXIS), np.zeros(RANKS), W)


def test_an_operand_that_varies_over_one_of_two_axes_does_not_warn(make_mesh):
    mesh = make_mesh(o=2, i=4)
    mapped = jax.shard_map(
        lambda w: hccljax.all_reduce(w, ("o", "i")), mesh=mesh, in_specs=P("o"), out_specs=P(),
    )  # fmt: skip
    np.testing.assert_array_equal(jax.jit(mapped)(np.array([1.0, 2.0], np.float32)), [12.0])


def test_every_leaf_is_looked_at(make_mesh):
    def body(w, x):
        return hccljax.all_reduce({"w": w, "x": x}, AXIS)

    mesh = make_mesh(i=RANKS)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P())
    with pytest.warns(hccljax.InvariantOperandWarning) as caught:
        out = jax.jit(mapped)(W, np.arange(4.0, dtype=np.float32))
    assert len(caught) == 1
    np.testing.assert_array_equal(out["w"], RANKS * W)
    np.testing.assert_array_equal(out["x"], jnp.array([6.0]))
