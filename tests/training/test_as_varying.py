"""as_varying changes a type and nothing else: gradients stay those of their own rank."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax


def varying_axes(x):
    return set(jax.typeof(x).manual_axis_type.varying)


def test_values_and_structure_stay(on_ranks, linear):
    _, params, x, _ = linear
    tree = {"layers": [params, None], "scale": 2.0, "steps": np.int32(7)}
    out = on_ranks(lambda tree, x: hccljax.as_varying(tree, "data"))(tree, x)
    assert jax.tree.structure(out) == jax.tree.structure(tree)
    for mine, theirs in zip(jax.tree.leaves(out), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(mine, np.broadcast_to(theirs, (8, *np.shape(theirs))))
        assert mine.dtype == jnp.asarray(theirs).dtype


def test_random_keys_pass(on_ranks):
    key = jax.random.key(3)
    out = on_ranks(lambda key, x: jax.random.key_data(hccljax.as_varying(key, "data")))(key, np.zeros(8))
    np.testing.assert_array_equal(out, np.broadcast_to(jax.random.key_data(key), (8, 2)))


def test_gradients_are_those_of_the_own_rank(on_ranks, linear, by_hand):
    loss, params, x, y = linear
    out = on_ranks(lambda p, x, y: jax.grad(loss)(hccljax.as_varying(p, "data"), x, y))(params, x, y)
    for rank in range(8):
        expected = by_hand(params, x[rank], y[rank])[1]
        for name in params:
            np.testing.assert_array_equal(out[name][rank], expected[name])


def test_without_it_a_checked_gradient_is_summed_already(in_mode, linear, by_hand):
    """What as_varying is for; should JAX ever change this, the advice that hccljax gives has to change."""
    loss, params, x, y = linear
    out = in_mode("checked", jax.grad(loss), {"data": 8}, True)(params, x, y)
    for name in params:
        np.testing.assert_array_equal(out[name], 8 * by_hand(params, x.reshape(16, 3), y.reshape(16, 2))[1][name])


def test_reducing_such_a_gradient_again_warns_and_names_as_varying(in_mode, linear, by_hand):
    loss, params, x, y = linear

    def twice(params, x, y):
        return hccljax.all_reduce(jax.grad(loss)(params, x, y), "data", algorithm="ring")

    with pytest.warns(hccljax.InvariantOperandWarning, match=r"hccljax\.as_varying\(params, 'data'\)"):
        out = in_mode("checked", twice, {"data": 8}, True)(params, x, y)
    expected = by_hand(params, x.reshape(16, 3), y.reshape(16, 2))[1]
    for name in params:
        np.testing.assert_array_equal(out[name], 64 * expected[name])


def test_the_type_says_varying_over_the_axes_named_and_no_others(in_mode):
    seen = []

    def look(params, x):
        one = hccljax.as_varying(params, "a")
        both = hccljax.as_varying(one, ("b", "a"))
        seen.append([varying_axes(each) for each in (params, one, both, hccljax.as_varying(both, "a"))])
        return x

    in_mode("checked", look, {"a": 2, "b": 4}, False)(np.float32(1), np.zeros(8, np.float32))
    assert seen[0] == [set(), {"a"}, {"a", "b"}, {"a", "b"}]


def test_a_checked_shard_map_no_longer_takes_the_result_for_replicated(in_mode):
    with pytest.raises(ValueError, match="out_specs"):
        in_mode("checked", lambda p, x: hccljax.as_varying(p, "data"), {"data": 8}, True)(np.ones(3), np.zeros(8))


def test_nothing_is_added_where_types_are_not_checked(in_mode):
    for mode in ("unchecked", "vmap"):
        seen = []

        def look(params, x, seen=seen):
            seen.append(hccljax.as_varying(params, "data") is params)
            return x

        in_mode(mode, look, {"data": 8}, False)(np.float32(1), np.zeros(8, np.float32))
        assert seen == [True]


def test_a_group_stands_for_its_axis(in_mode):
    seen = []

    def look(params, x):
        seen.append(
            varying_axes(hccljax.as_varying(params, hccljax.Group("data", groups=[[0, 1, 2, 3], [4, 5, 6, 7]])))
        )
        return x

    in_mode("checked", look, {"data": 8}, False)(np.float32(1), np.zeros(8, np.float32))
    assert seen == [{"data"}]


def test_an_axis_that_is_not_mapped_is_refused():
    with pytest.raises(hccljax.AxisError, match="data"):
        hccljax.as_varying(jnp.ones(3), "data")
