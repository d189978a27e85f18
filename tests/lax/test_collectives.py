"""The calling conventions of jax.lax: pytrees, positional axes, groups, tiled and untiled forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax import lax

AXIS, RANKS = "i", 4
GROUPS = [[2, 0], [1, 3]]
RING = [(r, (r + 1) % RANKS) for r in range(RANKS)]
X = np.random.default_rng(1).integers(-4, 5, (RANKS, RANKS, 2)).astype(np.float32)


def every_collective(lax, x):
    return {
        "psum": lax.psum(x, AXIS),
        "pmean": lax.pmean(x, AXIS),
        "pmax": lax.pmax(x, AXIS),
        "pmin": lax.pmin(x, AXIS),
        "all_gather": lax.all_gather(x, AXIS),
        "all_gather axis": lax.all_gather(x, AXIS, axis=-1),
        "all_gather tiled": lax.all_gather(x, AXIS, axis=1, tiled=True),
        "psum_scatter": lax.psum_scatter(x, AXIS),
        "psum_scatter tiled": lax.psum_scatter(x, AXIS, scatter_dimension=0, tiled=True),
        "all_to_all": lax.all_to_all(x, AXIS, 0, 1),
        "all_to_all tiled": lax.all_to_all(x, AXIS, 0, 1, tiled=True),
        "ppermute": lax.ppermute(x, AXIS, [(0, 3), (3, 1), (1, 2), (2, 0)]),
        "pshuffle": lax.pshuffle(x, AXIS, [3, 0, 2, 1]),
        "pswapaxes": lax.pswapaxes(x, AXIS, 0),
        "axis_index": lax.axis_index(AXIS),
    }


def test_every_collective_equals_that_of_jax(on_ranks, mode, close):
    ours, theirs = on_ranks(lambda x: (every_collective(lax, x), every_collective(jax.lax, x)), mode, X)
    close(ours, theirs, rtol=0, atol=0)


def test_the_types_of_results_are_those_of_jax():
    """Which results vary over the axis in a checked shard_map."""
    mesh = jax.make_mesh((RANKS,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    types = {}

    def body(x):
        for module in (lax, jax.lax):
            results = every_collective(module, x[0])
            results["invarying"] = module.all_gather(x[0], AXIS, to="invarying")
            types[module] = {name: str(jax.typeof(out)) for name, out in results.items()}
        return x

    spec = jax.sharding.PartitionSpec(AXIS)
    jax.eval_shape(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec), X)
    assert types[lax] == types[jax.lax]


def test_trees_are_mapped_leaf_by_leaf(on_ranks, mode, close):
    tree = {"a": X, "b": [X[:, 0], None, (X[:, :, 0].astype(np.int32),)], "scalar": X[:, 0, 0]}

    def both(tree):
        return [
            [
                module.psum(tree, AXIS), module.pmean(tree, AXIS), module.pmax(tree, AXIS),
                module.all_gather(tree, AXIS), module.ppermute(tree, AXIS, RING),
            ]
            for module in (lax, jax.lax)
        ]  # fmt: skip

    close(*on_ranks(both, mode, tree), rtol=0, atol=0)


@pytest.mark.parametrize("axes", [0, (0,), (AXIS, 0), (1, AXIS), (0, 1, AXIS), ()])
@pytest.mark.parametrize("collective", ["psum", "pmax", "pmin"])
def test_positional_axes_are_reduced_on_the_spot(on_ranks, close, collective, axes):
    def both(x):
        return tuple(getattr(module, collective)(x, axes) for module in (lax, jax.lax))

    close(*on_ranks(both, "vmap", X), rtol=0, atol=0)


@pytest.mark.parametrize("axes", [0, (AXIS, 0)])
def test_pmean_takes_no_positional_axes_with_either_module(axes):
    for module in (lax, jax.lax):
        with pytest.raises(ValueError, match="dimension"):
            jax.vmap(lambda x, m=module: m.pmean(x, axes), axis_name=AXIS)(X)


def test_positional_axes_and_groups_do_not_mix():
    with pytest.raises(hccljax.ArgumentError, match="positional axes"):
        jax.vmap(lambda x: lax.psum(x, (AXIS, 0), axis_index_groups=GROUPS), axis_name=AXIS)(X)


def in_groups(lax, x):
    """Each with groups of two; x is [4, 2], its first half [2, 2]."""
    half, groups = x[:2], {"axis_index_groups": GROUPS}
    return {
        "psum": lax.psum(x, AXIS, **groups),
        "pmean": lax.pmean(x, AXIS, **groups),
        "pmax": lax.pmax(x, AXIS, **groups),
        "pmin": lax.pmin(x, AXIS, **groups),
        "all_gather": lax.all_gather(x, AXIS, **groups),
        "all_gather tiled": lax.all_gather(x, AXIS, axis=1, tiled=True, **groups),
        "psum_scatter": lax.psum_scatter(half, AXIS, **groups),
        "psum_scatter tiled": lax.psum_scatter(x, AXIS, tiled=True, **groups),
        "all_to_all": lax.all_to_all(half, AXIS, 0, 0, **groups),
        "all_to_all tiled": lax.all_to_all(x, AXIS, 0, 1, tiled=True, **groups),
        "pswapaxes": lax.pswapaxes(half, AXIS, 0, **groups),
    }


def test_groups_in_an_unchecked_shard_map_equal_those_of_jax(on_ranks, close):
    ours, theirs = on_ranks(lambda x: (in_groups(lax, x), in_groups(jax.lax, x)), "unchecked", X)
    close(ours, theirs, rtol=0, atol=0)


def groups_by_numpy(x):
    """in_groups for one group's rows [2, 4, 2], in group order."""
    half = x[:, :2]
    twice = lambda out: np.stack([out, out])  # noqa: E731
    blocks = x.reshape(2, 2, 2, 2)  # [rank, block, 2, 2]
    return {
        "psum": twice(x.sum(0)),
        "pmean": twice(x.mean(0)),
        "pmax": twice(x.max(0)),
        "pmin": twice(x.min(0)),
        "all_gather": twice(x),
        "all_gather tiled": twice(np.concatenate(list(x), 1)),
        "psum_scatter": half.sum(0),
        "psum_scatter tiled": blocks.sum(0),
        "all_to_all": half.swapaxes(0, 1),
        "all_to_all tiled": np.stack([np.concatenate([blocks[0, r], blocks[1, r]], 1) for r in range(2)]),
        "pswapaxes": half.swapaxes(0, 1),
    }


def test_groups_work_in_every_mode(on_ranks, mode):
    found = on_ranks(lambda x: in_groups(lax, x), mode, X)
    for members in GROUPS:
        for name, expected in groups_by_numpy(X[members]).items():
            np.testing.assert_array_equal(found[name][np.array(members)], expected, err_msg=name)


def test_gradients_stay_inside_the_groups_in_every_mode(on_ranks, mode):
    def gradient(x):
        weight = lax.axis_index(AXIS).astype(x.dtype) + 1
        return jax.grad(lambda x: weight * jnp.sum(lax.psum(x, AXIS, axis_index_groups=GROUPS) ** 2))(x)

    found = on_ranks(gradient, mode, X)
    for members in GROUPS:
        expected = 2 * X[members].sum(0) * (sum(members) + len(members))
        np.testing.assert_array_equal(found[np.array(members)], np.stack([expected] * 2))


@pytest.mark.parametrize("groups", [[[0, 1], [2]], [[0, 1], [1, 2]], [[0, 1, 2], []], [[0, 1]], [[0, 5], [1, 2]]])
def test_groups_that_are_no_partition_are_refused(groups):
    with pytest.raises(hccljax.ArgumentError):
        jax.vmap(lambda x: lax.psum(x, AXIS, axis_index_groups=groups), axis_name=AXIS)(X)


@pytest.mark.parametrize("name", ["all_gather", "psum_scatter", "pswapaxes", "all_to_all"])
def test_groups_of_unequal_size_are_refused_where_shapes_depend_on_them(name):
    arguments = {"pswapaxes": (0,), "all_to_all": (0, 0)}.get(name, ())
    with pytest.raises(hccljax.ArgumentError, match="communicators of 3 and 1 ranks"):
        jax.vmap(lambda x: getattr(lax, name)(x, AXIS, *arguments, axis_index_groups=[[0, 1, 2], [3]]), axis_name=AXIS)(
            X
        )


def test_pbroadcast_works_where_jax_has_none(on_ranks, mode):
    tree = {"w": X, "count": np.arange(RANKS, dtype=np.int32)}
    found = on_ranks(lambda tree: lax.pbroadcast(tree, AXIS, 2), mode, tree)
    np.testing.assert_array_equal(found["w"], np.stack([X[2]] * RANKS))
    np.testing.assert_array_equal(found["count"], [2] * RANKS)


def test_a_partial_ppermute_leaves_zeros_in_every_mode(on_ranks, mode):
    found = on_ranks(lambda x: lax.ppermute(x, AXIS, [(0, 1), (3, 2)]), mode, X)
    np.testing.assert_array_equal(found, np.stack([0 * X[0], X[0], X[3], 0 * X[0]]))


def test_pshuffle_wants_every_rank_once():
    with pytest.raises(hccljax.ArgumentError, match="exactly once"):
        jax.vmap(lambda x: lax.pshuffle(x, AXIS, [0, 0, 1, 2]), axis_name=AXIS)(X)


def test_the_algorithm_is_chosen_by_the_environment(monkeypatch):
    """HCCL_ALGO reaches a program that only changed its import."""
    monkeypatch.setenv("HCCL_ALGO", "level0:H-D_R")
    jaxpr = str(jax.make_jaxpr(lambda x: lax.psum(x, AXIS), axis_env=[(AXIS, 8)])(jnp.ones(8)))
    assert "all_reduce sum by H-D_R" in jaxpr
    monkeypatch.delenv("HCCL_ALGO")
    jaxpr = str(jax.make_jaxpr(lambda x: lax.psum(x, AXIS), axis_env=[(AXIS, 8)])(jnp.ones(8)))
    assert "all_reduce sum by ring" in jaxpr
