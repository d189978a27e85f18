"""Every dtype through every operator: values, promotion as in jax.lax, special numbers, keys, scalars and pytrees."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax.algorithm.base import OPERATORS

P = 4
NARROW = [
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64",
]  # fmt: skip
WIDE = ["int64", "uint64", "float64", "complex128"]
EIGHT_BITS = ["float8_e4m3fn", "float8_e5m2"]
MOVING = ["all_gather", "broadcast", "scatter", "gather", "all_to_all"]
ORDERED = ("max", "min")


def numbers(dtype, shape):
    """Small numbers, whose sums are exact in every dtype."""
    x = np.random.default_rng(len(dtype)).integers(0, 5, shape)
    imaginary = 1j * np.random.default_rng(9).integers(-3, 3, shape) if dtype.startswith("complex") else 0
    return (x + imaginary).astype(jnp.dtype(dtype))


def equal(actual, wanted, what):
    # NumPy compares 8-bit floats through float32.
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape), what
    assert actual.tobytes() == np.ascontiguousarray(wanted).tobytes(), what


def through(operator, op, dtypes, ranks, executor):
    x = {dtype: numbers(dtype, ranks.rows_of(operator, P, (3,))) for dtype in dtypes}
    out = executor(lambda rows: {k: ranks.call(operator, row, op, 2) for k, row in rows.items()}, x)
    for dtype in dtypes:
        equal(out[dtype], ranks.expected(operator, x[dtype], op, 2), (operator, op, dtype))


@pytest.mark.parametrize("operator", OPERATORS)
def test_narrow_dtypes(operator, ranks):
    through(
        operator,
        "sum",
        NARROW + (EIGHT_BITS if operator in MOVING else []),
        ranks,
        ranks.virtual,
    )


@pytest.mark.parametrize("operator", OPERATORS)
def test_wide_dtypes(operator, ranks):
    with jax.enable_x64(True):
        through(operator, "sum", WIDE, ranks, ranks.virtual)


@pytest.mark.parametrize("op", ["prod", "max", "min", "mean"])
def test_other_ops(op, ranks):
    dtypes = [dtype for dtype in NARROW if op not in ORDERED or dtype != "complex64"]
    through("all_reduce", op, dtypes, ranks, ranks.virtual)
    with jax.enable_x64(True):
        through("reduce_scatter", op, WIDE[:3], ranks, ranks.virtual)


@pytest.mark.parametrize(
    ("operator", "dtypes"), [("all_reduce", NARROW[::2]), ("broadcast", [*EIGHT_BITS, "bool", "complex64"])]
)
def test_on_devices(operator, dtypes, ranks):
    through(operator, "sum", dtypes, ranks, lambda fn, x: ranks.devices(fn, x, P))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    ("ours", "twin"),
    [
        (partial(hccljax.all_reduce, op="sum"), lax.psum),
        (partial(hccljax.all_reduce, op="mean"), lax.pmean),
        (partial(hccljax.all_reduce, op="max"), lax.pmax),
        (partial(hccljax.all_reduce, op="min"), lax.pmin),
        (hccljax.reduce_scatter, lax.psum_scatter),
        (hccljax.all_gather, lax.all_gather),
        (
            partial(hccljax.all_to_all, split_axis=0, concat_axis=0),
            partial(lax.all_to_all, split_axis=0, concat_axis=0),
        ),
    ],
    ids=["psum", "pmean", "pmax", "pmin", "psum_scatter", "all_gather", "all_to_all"],
)
def test_values_and_promotion_are_those_of_the_lax_twin(ours, twin, x64, ranks):
    with jax.enable_x64(x64):
        dtypes = [*WIDE, "bool", "int8", "int32", "bfloat16"] if x64 else NARROW
        if twin in (lax.pmax, lax.pmin):
            dtypes = [dtype for dtype in dtypes if not dtype.startswith("complex")]
        if twin is lax.psum_scatter:
            dtypes = [dtype for dtype in dtypes if dtype != "bool"]  # which jax.lax refuses
        x = {dtype: numbers(dtype, (P, P, 2)) for dtype in dtypes}
        one, other = (
            ranks.virtual(lambda rows, f=f: jax.tree.map(lambda row: f(row, ranks.axis), rows), x)
            for f in (partial(ours, algorithm="mesh"), twin)
        )
    for dtype in dtypes:
        equal(one[dtype], other[dtype], dtype)


def test_promotions_worth_knowing(ranks):
    x = {"bool": numbers("bool", (P, 2)), "int8": numbers("int8", (P, 2)), "bfloat16": numbers("bfloat16", (P, 2))}
    total, mean, largest = (
        ranks.virtual(lambda rows, op=op: hccljax.all_reduce(rows, ranks.axis, op, algorithm="mesh"), x)
        for op in ("sum", "mean", "max")
    )
    assert [total[k].dtype.name for k in x] == ["int32", "int8", "bfloat16"]
    assert [mean[k].dtype.name for k in x] == ["float32", "float32", "bfloat16"]
    assert [largest[k].dtype.name for k in x] == ["bool", "int8", "bfloat16"]


@pytest.mark.parametrize("algorithm", ["ring", "tree", "double_tree", "H-D_R", "mesh"])
def test_integers_wrap_as_in_numpy(algorithm, ranks):
    rng = np.random.default_rng(0)
    dtypes = ("int8", "uint8", "int16", "int32", "uint32") if algorithm == "mesh" else ("int8", "uint32")
    x = {d: rng.integers(np.iinfo(d).min, np.iinfo(d).max, (P, 5), endpoint=True).astype(d) for d in dtypes}
    for op in ("sum", "prod"):
        out = ranks.virtual(lambda rows, op=op: ranks.call("all_reduce", rows, op, algorithm=algorithm), x)
        for dtype in x:
            equal(out[dtype], ranks.expected("all_reduce", x[dtype], op), (op, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "double_tree", "H-D_R", "mesh"])
def test_nan_and_infinity_propagate_and_do_not_spread(algorithm, dtype, ranks):
    x = np.ones((P, 6), np.float32)
    x[1, 0], x[2, 1], x[3, 2], x[0, 3], x[3, 3] = np.nan, np.inf, -np.inf, np.inf, -np.inf
    x = x.astype(jnp.dtype(dtype))
    ops = ("sum", "max", "min")
    out = ranks.virtual(lambda row: {op: ranks.call("all_reduce", row, op, algorithm=algorithm) for op in ops}, x)
    with np.errstate(invalid="ignore"):
        for op in ops:
            ranks.same(out[op].astype(np.float32), ranks.expected("all_reduce", x.astype(np.float32), op), op)
    for op, total in (("sum", [np.nan, np.inf, -np.inf, np.nan, 4, 4]), ("max", [np.nan, np.inf, 1, np.inf, 1, 1])):
        np.testing.assert_array_equal(out[op][0].astype(np.float32), np.array(total, np.float32))


def test_nan_of_other_ranks_never_reaches_a_result(ranks):
    x = np.full((P, P, 2), np.nan, np.float32)
    x[2] = 5
    out = ranks.virtual(
        lambda row: {
            f"{operator} {algorithm}": ranks.call(operator, row, root=2, algorithm=algorithm)
            for operator, algorithms in (
                ("broadcast", ("ring", "tree", "double_tree", "H-D_R", "mesh")),
                ("scatter", ("ring", "H-D_R", "mesh")),
            )
            for algorithm in algorithms
        },
        x,
    )
    for name, value in out.items():
        assert (value == 5).all(), name


def test_negative_zero_survives_being_moved(ranks):
    x = np.full((P, P, 2), -0.0, np.float32)
    for operator in MOVING:
        out = ranks.virtual(lambda row, operator=operator: ranks.call(operator, row, root=1), x)
        ranks.same_bits(out, ranks.expected(operator, x, root=1), operator)
    ring = [(r, (r + 1) % P) for r in range(P)]
    ranks.same_bits(ranks.virtual(lambda row: hccljax.send_recv(row, ranks.axis, ring), x), x)
    ranks.same_bits(ranks.virtual(lambda row: hccljax.barrier(row, ranks.axis), x), x)


@pytest.mark.parametrize("operator", ["all_reduce", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("op", ORDERED)
def test_complex_numbers_have_no_order(operator, op, ranks):
    x = numbers("complex64", (P, P))
    with pytest.raises(hccljax.DtypeError, match="complex"):
        ranks.virtual(lambda row: ranks.call(operator, row, op), x)


def test_keys_travel(ranks):
    keys = jax.random.split(jax.random.key(7), (P, P))
    data = np.asarray(jax.random.key_data(keys))

    def fn(row):
        return {operator: ranks.call(operator, row, root=1) for operator in MOVING} | {
            "send_recv": hccljax.send_recv(row, ranks.axis, [(0, 1), (1, 0)])
        }

    out = jax.jit(jax.vmap(fn, axis_name=ranks.axis))(keys)
    for operator in MOVING:
        assert out[operator].dtype == keys.dtype
        ranks.same(np.asarray(jax.random.key_data(out[operator])), ranks.expected(operator, data, root=1), operator)
    received = np.asarray(jax.random.key_data(out["send_recv"]))
    ranks.same(received, np.stack([data[1], data[0], 0 * data[2], 0 * data[3]]))
    # A key that has travelled is a key still.
    assert jax.random.bits(out["broadcast"][0, 0]) == jax.random.bits(keys[1, 0])


def test_keys_travel_between_devices(ranks):
    keys = jax.random.split(jax.random.key(7, impl="rbg"), P)
    mesh = jax.make_mesh((P,), (ranks.axis,), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    fn = jax.shard_map(
        lambda row: hccljax.broadcast(row, ranks.axis, 3), mesh=mesh, in_specs=spec(ranks.axis), out_specs=spec()
    )
    out = jax.jit(fn)(keys)
    assert jax.random.key_impl(out) == jax.random.key_impl(keys)
    np.testing.assert_array_equal(jax.random.key_data(out)[0], jax.random.key_data(keys)[3])


@pytest.mark.parametrize("operator", ["all_reduce", "reduce", "reduce_scatter"])
def test_keys_are_not_numbers(operator, ranks):
    keys = jax.random.split(jax.random.key(7), (P, P))
    with pytest.raises(hccljax.DtypeError, match="key"):
        jax.vmap(lambda row: ranks.call(operator, row), axis_name=ranks.axis)(keys)


@pytest.mark.parametrize("operator", ["all_reduce", "broadcast", "reduce", "all_gather", "gather"])
def test_scalars_arrays_and_pytrees(operator, ranks):
    constant = np.arange(6, dtype=np.int32).reshape(2, 3)

    def fn(row):
        return ranks.call(operator, {"a": 2, "b": [constant, (None, ()), {"c": row, "d": 0.5}], "e": True}, "max")

    x = np.arange(P, dtype=np.int32)
    out = jax.jit(jax.vmap(fn, axis_name=ranks.axis))(x)
    leaf = {"a": np.int32(2), "b": [constant, (None, ()), {"c": x, "d": np.float32(0.5)}], "e": np.bool_(True)}
    wanted = jax.tree.map(lambda v: ranks.expected(operator, x if v is x else np.stack([v] * P), "max"), leaf)
    assert jax.tree.structure(out) == jax.tree.structure(wanted)
    for actual, value in zip(jax.tree.leaves(out), jax.tree.leaves(wanted), strict=True):
        ranks.same(np.asarray(actual), value)


def test_what_is_no_array_is_refused(ranks):
    with pytest.raises(hccljax.DtypeError, match="expected an array or a number"):
        ranks.virtual(lambda row: hccljax.broadcast({"a": row, "b": "text"}, ranks.axis), np.arange(P))
