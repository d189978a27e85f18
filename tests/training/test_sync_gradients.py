"""sync_gradients is all_reduce of every leaf, in fewer messages."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccljax
from hccljax.schedule import count
from hccljax.training import sync_gradients

# Where a test is not about an algorithm it takes the one that compiles fastest.
by_mesh = partial(sync_gradients, algorithm="mesh")


def virtually(function, tree, **options):
    """function(tree) of every virtual rank; the leaves have a row for each."""
    return jax.jit(jax.vmap(function, axis_name="data", **options))(tree)


def shapes_of(tree, p=8):
    """A pytree of [p, …] small integers, exact in any sum, for a pytree of (shape, dtype)."""
    draw = np.random.default_rng(3)

    def rows(one):
        return jnp.asarray(draw.integers(-4, 5, (p, *one[0])), one[1])

    return jax.tree.map(rows, tree, is_leaf=lambda one: isinstance(one, tuple))


@pytest.fixture(scope="module")
def mixed():
    """Gradients of several dtypes: 0-d, empty, absent, odd sizes."""
    f, h = jnp.float32, jnp.bfloat16
    tree = {
        "a": ((), f),
        "b": ((3, 2), h),
        "c": ((0, 4), f),
        "d": [None, ((257,), f)],
        "e": ((5,), h),
        "f": ((2, 9), f),
    }
    return shapes_of(tree)


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        wide = np.result_type(mine.dtype, np.float64) if mine.dtype != jnp.bfloat16 else np.float64
        np.testing.assert_array_equal(np.asarray(mine, wide), np.asarray(theirs, wide))


@pytest.mark.parametrize(("bucket_bytes", "in_flight"), [(None, None), (40, 1)])
def test_it_is_all_reduce_in_every_mode(on_ranks, mixed, bucket_bytes, in_flight):
    def both(_, grads):
        mine = by_mesh(grads, "data", bucket_bytes=bucket_bytes, in_flight=in_flight)
        return mine, hccljax.all_reduce(grads, "data", "mean", algorithm="mesh")

    mine, theirs = on_ranks(both, replicated=True)(0.0, mixed)
    same(mine, theirs)
    np.testing.assert_array_equal(mine["d"][1], np.asarray(mixed["d"][1]).mean(0))


@pytest.mark.parametrize("algorithm", ["ring", "tree", "H-D_R", "NHR", "level0:ring;level1:tree", "native", None])
def test_every_algorithm_gives_the_same(mixed, algorithm):
    found = virtually(
        lambda g: sync_gradients(g, "data", algorithm=algorithm, topology="2x4", bucket_bytes=100), mixed, out_axes=None
    )
    same(found, jax.tree.map(lambda x: (x.sum(0) / 8).astype(x.dtype), mixed))


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["f4", "bf16"])), max_size=8), st.integers(4, 64))
@settings(max_examples=12, deadline=None)
def test_any_tree_comes_back_as_all_reduce_returns_it(leaves, bucket_bytes):
    tree = shapes_of([((n,), {"f4": jnp.float32, "bf16": jnp.bfloat16}[kind]) for n, kind in leaves], 4)
    found = virtually(lambda g: by_mesh(g, "data", "sum", bucket_bytes=bucket_bytes), tree, axis_size=4, out_axes=None)
    same(found, virtually(lambda g: hccljax.all_reduce(g, "data", algorithm="mesh"), tree, axis_size=4, out_axes=None))


def collectives(function, tree):
    """Exchanges and permutes of a per-device function of one rank's tree."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)
    counts = count(function, one, axis_sizes={"data": 8})
    return counts.permutes + counts.exchanges


def test_there_is_one_all_reduce_for_each_bucket(mixed):
    alone = collectives(lambda g: hccljax.all_reduce(g["a"], "data", algorithm="ring"), mixed)
    assert alone == 14
    every = partial(sync_gradients, axis_name="data", algorithm="ring")
    assert collectives(every, mixed) == 2 * alone  # one for each dtype
    assert collectives(partial(every, bucket_bytes=80), mixed) == 3 * alone  # 257 float32 of them are alone
    assert collectives(partial(every, bucket_bytes=8), mixed) == 5 * alone  # the empty leaf goes with the 0-d one


def test_hccl_buffsize_is_the_usual_bucket(monkeypatch):
    tree = shapes_of([((1 << 18,), jnp.float32)] * 4)

    def messages():  # a new function each time: JAX keeps what it has traced
        return collectives(lambda g: sync_gradients(g, "data", algorithm="ring"), tree)

    assert messages() == 14
    monkeypatch.setenv("HCCL_BUFFSIZE", "2")
    assert messages() == 2 * 14


def test_a_leaf_as_long_as_a_bucket_is_not_copied():
    tree = [jnp.zeros((8, 4, 4)), jnp.zeros((8, 2))]
    text = str(
        jax.make_jaxpr(
            lambda g: sync_gradients(g, "data", algorithm="native", bucket_bytes=64), axis_env=[("data", 8)]
        )([x[0] for x in tree])
    )
    assert "concatenate" not in text
    assert "reshape" not in text


@pytest.mark.parametrize("tree", [{}, None, [], {"a": None, "b": [None, ()]}])
def test_a_tree_without_leaves_comes_back(tree):
    found = jax.vmap(lambda x: (by_mesh(tree, "data"), x), axis_name="data")(jnp.zeros(8))[0]
    assert found == tree


def test_masked_nodes_stay():
    optax = pytest.importorskip("optax")
    tree = {"frozen": optax.MaskedNode(), "w": jnp.arange(8.0)}
    found = virtually(lambda g: by_mesh(g, "data"), tree, out_axes=None)
    assert found["frozen"] == optax.MaskedNode()
    assert found["w"] == 3.5


def test_float0_gradients_stay():
    def gradients(x):
        grads = jax.grad(lambda n, w: w * n, argnums=(0, 1), allow_int=True)(3, x)
        out = by_mesh(grads, "data", skip_nonfinite=True)
        assert out[0][0].dtype == jax.dtypes.float0
        return out[0][1]

    assert jax.vmap(gradients, axis_name="data", out_axes=None)(jnp.arange(8.0)) == 3


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_integers_and_booleans_follow_all_reduce(op):
    tree = {"n": jnp.arange(8), "m": jnp.ones((8, 3), jnp.int32), "t": jnp.arange(8) > 2}
    found = virtually(lambda g: by_mesh(g, "data", op), tree, out_axes=None)
    same(found, virtually(lambda g: hccljax.all_reduce(g, "data", op, algorithm="mesh"), tree, out_axes=None))


def test_an_integer_has_no_float_to_be_accumulated_in():
    with pytest.raises(hccljax.DtypeError, match="accumulate_dtype=float32 does not hold every int32"):
        virtually(lambda g: by_mesh(g, "data", accumulate_dtype=jnp.float32), {"n": jnp.arange(8)})


def test_a_wide_accumulation_rounds_once(on_ranks):
    draw = np.random.default_rng(2).standard_normal((2, 8, 33)).astype(ml_dtypes.bfloat16)
    tree = {"a": draw[0], "b": draw[1]}
    wide = partial(sync_gradients, axis_name="data", op="sum", algorithm="ring", accumulate_dtype=jnp.float32)
    found = on_ranks(lambda _, g: wide(g), replicated=True)(0.0, tree)
    for name, x in tree.items():
        exact = x.astype(np.float64).sum(0).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(found[name].astype(np.float32), exact.astype(np.float32))


def test_a_weak_type_stays_weak_and_weakens_nobody():
    weak = []

    def look(x):
        tree = {"strong": x, "weak": x[0] * 0 + 2.0, "number": 3.0}
        mine, theirs = by_mesh(tree, "data"), hccljax.all_reduce(tree, "data", "mean", algorithm="mesh")
        weak.append([{name: jax.typeof(leaf).weak_type for name, leaf in each.items()} for each in (mine, theirs)])
        return mine

    jax.vmap(look, axis_name="data")(jnp.zeros((8, 3)))
    assert weak[0][0] == weak[0][1]
    assert weak[0][0] == {"strong": False, "weak": False, "number": True}


def test_an_operand_that_is_the_same_everywhere_warns_and_does_not_hide_among_others(in_mode):
    """Packed with a gradient that varies it would be typed as varying, and counted eight times without a word."""

    def both(params, x):
        return sync_gradients({"varies": x, "same": params}, "data", "sum", algorithm="mesh")

    with pytest.warns(hccljax.InvariantOperandWarning, match=r"hccljax\.as_varying\(params, 'data'\)"):
        found = in_mode("checked", both, {"data": 8}, True)(np.float32(1), np.arange(8, dtype=np.float32))
    assert (found["varies"], found["same"]) == (28, 8)


def test_what_is_replicated_over_another_axis_stays_so(in_mode):
    seen = []

    def look(params, x):
        tree = {"shard": x, "whole": hccljax.as_varying(params, "replica")}
        out = by_mesh(tree, "replica")
        seen.append({name: set(jax.typeof(leaf).manual_axis_type.varying) for name, leaf in out.items()})
        return out["shard"]

    in_mode("checked", look, {"data": 2, "replica": 4}, False)(np.float32(1), np.arange(8, dtype=np.float32))
    assert seen == [{"shard": {"data"}, "whole": set()}]


@pytest.mark.parametrize("axis_name", [("data", "replica"), ("replica", "data")])
def test_a_tuple_of_axes_is_one_axis(on_ranks, mixed, axis_name):
    found = on_ranks(lambda _, g: by_mesh(g, axis_name), {"data": 2, "replica": 4}, replicated=True)(0.0, mixed)
    same(found, jax.tree.map(lambda x: x.astype(jnp.float32).mean(0).astype(x.dtype), mixed))


@pytest.mark.parametrize("groups", [[[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 1, 2, 3, 4], [5, 6, 7]]])
def test_communicators_of_a_group_reduce_on_their_own(groups):
    tree = shapes_of([((3,), jnp.float32), ((), jnp.float32)])
    group = hccljax.Group("data", groups=groups)
    found = virtually(lambda g: sync_gradients(g, group, "sum", bucket_bytes="auto"), tree)
    for members in groups:
        for mine, x in zip(found, tree, strict=True):
            np.testing.assert_array_equal(
                mine[np.array(members)], np.broadcast_to(x[np.array(members)].sum(0), mine[np.array(members)].shape)
            )


def test_explicitly_sharded_leaves_are_reduced_alone():
    from jax.sharding import AxisType
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((4, 2), ("data", "model"), (AxisType.Explicit,) * 2)
    x = jax.device_put(
        np.arange(48, dtype=np.float32).reshape(4, 6, 2), jax.NamedSharding(mesh, P("data", None, "model"))
    )
    b = jax.device_put(np.arange(4, dtype=np.float32), jax.NamedSharding(mesh, P("data")))

    def step(grads):
        return by_mesh(jax.tree.map(lambda leaf: leaf[0], grads), "data", "sum")

    with jax.set_mesh(mesh):
        found = jax.jit(jax.shard_map(step, in_specs=P("data"), out_specs=P(), axis_names={"data"}))([x, b])
    np.testing.assert_array_equal(found[0], np.asarray(x).sum(0))
    np.testing.assert_array_equal(found[1], 6)


def test_it_differentiates_as_all_reduce_does(on_ranks):
    tree = shapes_of({"a": ((3,), jnp.float32), "b": ((2, 2), jnp.float32), "c": ((), jnp.float32)})

    def through(reduce):
        def loss(scale, g):
            scaled = jax.tree.map(lambda x: scale * x, g)
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(reduce(scaled)))

        def derivatives(scale, g):
            scale = hccljax.as_varying(scale, "data")
            forward = jax.jvp(partial(loss, g=g), (scale,), (jnp.ones_like(scale),))
            return jax.grad(loss)(scale, g), forward, jax.grad(jax.grad(loss))(scale, g)

        return derivatives

    def both(scale, g):
        mine = through(lambda t: by_mesh(t, "data", bucket_bytes=24, in_flight=1))(scale, g)
        return mine, through(lambda t: hccljax.all_reduce(t, "data", "mean", algorithm="mesh"))(scale, g)

    mine, theirs = on_ranks(both)(np.float32(2), tree)
    same(mine, theirs)


@pytest.mark.parametrize("bucket_bytes", [0, -1, True, 2.5, "big", [1], np.float32(3)])
def test_a_bad_bucket_says_what_is_expected(bucket_bytes, error_of, helps):
    call = lambda: virtually(lambda g: by_mesh(g, "data", bucket_bytes=bucket_bytes), jnp.zeros(8))  # noqa: E731
    message = error_of(call, hccljax.ArgumentError)
    assert "bucket_bytes=" in message
    assert helps(message)


@pytest.mark.parametrize("in_flight", [0, -1, True, 1.5, "all"])
def test_a_bad_number_in_flight_says_what_is_expected(in_flight, error_of, helps):
    call = lambda: virtually(lambda g: by_mesh(g, "data", in_flight=in_flight), jnp.zeros(8))  # noqa: E731
    message = error_of(call, hccljax.ArgumentError)
    assert "in_flight=" in message
    assert helps(message)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, jnp.uint32, jnp.complex64, jnp.bool_])
def test_few_in_flight_changes_no_value(dtype):
    tree = shapes_of([((3,), dtype), ((2, 2), dtype), ((), dtype), ((5,), dtype)])
    found = virtually(lambda g: by_mesh(g, "data", "sum", bucket_bytes=16, in_flight=1), tree, out_axes=None)
    same(found, virtually(lambda g: hccljax.all_reduce(g, "data", algorithm="mesh"), tree, out_axes=None))


def test_a_bucket_shorter_than_an_element_is_refused():
    with pytest.raises(hccljax.ArgumentError, match="bucket_bytes=2: expected 4 or more"):
        virtually(lambda g: by_mesh(g, "data", bucket_bytes=2), jnp.zeros(8))


@pytest.mark.parametrize("op", ["max", "prod", None, 3])
def test_other_reductions_are_no_reductions_of_gradients(op):
    with pytest.raises(hccljax.ArgumentError, match="expected 'mean' or 'sum'"):
        virtually(lambda g: by_mesh(g, "data", op), jnp.zeros(8))


def test_an_axis_that_is_not_mapped_is_refused_even_for_an_empty_tree():
    for tree in (jnp.zeros(3), {}):
        with pytest.raises(hccljax.AxisError, match="data"):
            by_mesh(tree, "data")


def test_an_unknown_algorithm_or_topology_is_refused():
    for options in ({"algorithm": "rung"}, {"topology": "3x3"}, {"algorithm": ["ring"]}):
        for bucket_bytes in (None, "auto"):
            with pytest.raises(hccljax.ArgumentError, match="expected"):
                virtually(
                    lambda g, o=options, b=bucket_bytes: sync_gradients(g, "data", bucket_bytes=b, **o), jnp.zeros(8)
                )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(bad):
    tree = {"a": jnp.ones((8, 3)), "n": jnp.ones(8, jnp.int32), "b": jnp.ones((8, 2))}
    for where, value in ((None, 8), (5, 0)):
        given = tree if where is None else {**tree, "b": tree["b"].at[where, 1].set(bad)}
        found, skipped = virtually(lambda g: by_mesh(g, "data", "sum", skip_nonfinite=True), given, out_axes=None)
        assert bool(skipped) is (where is not None)
        same(found, jax.tree.map(lambda x, value=value: jnp.full_like(x[0], value), tree))


def test_skipping_keeps_the_types_of_every_mode(on_ranks):
    tree = {"a": np.ones((8, 3), np.float32), "b": np.ones(8, np.float32)}
    tree["a"][3, 2] = np.nan
    found, skipped = on_ranks(lambda _, g: by_mesh(g, "data", skip_nonfinite=True), replicated=True)(0.0, tree)
    assert skipped
    same(found, {"a": np.zeros(3, np.float32), "b": np.float32(0)})


def test_a_sum_that_overflows_is_skipped_too():
    """Every rank's own gradient is finite: only the sums show it."""
    tree = {"a": jnp.full(8, 6e4, jnp.float16), "b": jnp.ones(8)}
    found, skipped = virtually(lambda g: by_mesh(g, "data", "sum", skip_nonfinite=True), tree, out_axes=None)
    assert skipped
    assert (found["a"], found["b"]) == (0, 0)


def test_to_look_for_what_is_not_finite_sends_nothing(mixed):
    every = partial(sync_gradients, axis_name="data", algorithm="ring")
    assert collectives(partial(every, skip_nonfinite=True), mixed) == collectives(every, mixed)


def test_each_communicator_of_a_group_skips_on_its_own():
    group = hccljax.Group("data", groups=[[0, 1, 2, 3], [4, 5, 6, 7]])
    x = jnp.ones(8).at[6].set(jnp.nan)
    found, skipped = virtually(lambda g: by_mesh(g, group, skip_nonfinite=True), x)
    assert skipped.tolist() == [False] * 4 + [True] * 4
    assert found.tolist() == [1.0] * 4 + [0.0] * 4


def test_a_tree_of_integers_is_always_finite():
    _, skipped = virtually(lambda g: by_mesh(g, "data", "sum", skip_nonfinite=True), jnp.arange(8), out_axes=None)
    assert not skipped


def test_value_and_grad_takes_buckets(on_ranks, linear, by_hand):
    loss, params, x, y = linear
    grad = hccljax.value_and_grad(loss, "data", algorithm="mesh", bucket_bytes="auto")
    value, grads = on_ranks(grad, replicated=True)(params, x, y)
    expected = by_hand(params, x.reshape(16, 3), y.reshape(16, 2))
    np.testing.assert_array_equal(value, expected[0])
    same(grads, jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), expected[1]))
    found = count(
        hccljax.value_and_grad(loss, "data", algorithm="ring", bucket_bytes="auto"),
        params,
        x[0],
        y[0],
        axis_sizes={"data": 8},
    )
    assert found.permutes == 2 * 14  # the loss, and one bucket


REPLICA = re.compile(r"all-reduce(?:-start)?\(")


def test_native_buckets_compile_to_all_reduces_and_nothing_else(in_mode):
    tree = shapes_of([((16,), jnp.float32)] * 4)
    step = in_mode(
        "unchecked", lambda _, g: sync_gradients(g, "data", algorithm="native", bucket_bytes=128), {"data": 8}, True
    )
    text = step.lower(0.0, tree).compile().as_text()
    assert len(REPLICA.findall(text)) in (1, 2)  # XLA may join them
    assert "collective-permute" not in text
