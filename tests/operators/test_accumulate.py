"""accumulate_dtype: a sum in rank order in the wider dtype, one rounding, and narrow numbers on the wire."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import hccljax
from hccljax.schedule import count

pytestmark = pytest.mark.usefixtures("usual_compiler")
ALGORITHMS = ["ring", "tree", "mesh", "H-D_R", "level0:ring;level1:tree"]
P = 8
X = np.random.default_rng(0).standard_normal((P, 37)).astype(np.float32) * 10


def options(algorithm):
    return {"algorithm": algorithm, "topology": "2x4" if ";" in algorithm else None}


def rounded_once(x, divisor=1):
    """x [p, …] of 16 bits → […]: added in float32 in rank order, divided, rounded."""
    total = x[0].astype(np.float32)
    for row in x[1:]:
        total = total + row.astype(np.float32)
    return (total / np.float32(divisor)).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equals_the_float32_sum_in_rank_order_rounded_once(algorithm, dtype, ranks):
    x = X.astype(jnp.dtype(dtype))

    def fn(row):
        wide = {"accumulate_dtype": jnp.float32, **options(algorithm)}
        return {
            "sum": hccljax.all_reduce(row, ranks.axis, **wide),
            "mean": hccljax.all_reduce(row, ranks.axis, "mean", **wide),
            "reduce": hccljax.reduce(row, ranks.axis, root=5, **wide),
            "blocks": hccljax.reduce_scatter(row[:32], ranks.axis, tiled=True, **wide),
        }

    out = ranks.virtual(fn, x)
    ranks.same_bits(out["sum"], np.stack([rounded_once(x)] * P))
    ranks.same_bits(out["mean"], np.stack([rounded_once(x, P)] * P))
    ranks.same_bits(out["reduce"][5], rounded_once(x))
    ranks.same_bits(out["blocks"], rounded_once(x)[:32].reshape(P, 4))


def test_it_makes_a_difference(ranks):
    x = X.astype(jnp.bfloat16)
    plain = ranks.virtual(lambda row: hccljax.all_reduce(row, ranks.axis, algorithm="ring"), x)[0]
    assert (plain != rounded_once(x)).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_devices_and_virtual_ranks_agree_to_the_last_bit(dtype, ranks):
    x = X.astype(jnp.dtype(dtype))

    def fn(row):
        return hccljax.all_reduce(row, ranks.axis, algorithm="ring", accumulate_dtype="float32")

    ranks.same_bits(ranks.devices(fn, x, P), ranks.virtual(fn, x))


def collectives_of(algorithm, axis, accumulate_dtype):
    """The lines of the lowered program that communicate, with their types."""
    mesh = Mesh(np.array(jax.devices()), (axis,), axis_types=(AxisType.Auto,))
    fn = jax.shard_map(
        lambda row: hccljax.all_reduce(row, axis, accumulate_dtype=accumulate_dtype, **options(algorithm)),
        mesh=mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec(),
    )  # fmt: skip
    text = jax.jit(fn).lower(X.astype(jnp.bfloat16)).as_text()
    words = r"stablehlo\.(?:all_to_all|all_gather|all_reduce|reduce_scatter|collective_permute)"
    return text, [line for line in text.splitlines() if re.search(words, line)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_wire_carries_16_bits(algorithm, ranks):
    text, lines = collectives_of(algorithm, ranks.axis, jnp.float32)
    assert "f32" in text  # the additions
    assert len(lines) >= 2
    for line in lines:
        assert "xbf16>" in line
        assert "f32" not in line


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_formula_counts_the_bytes_of_16_bits(algorithm, ranks):
    x = jax.ShapeDtypeStruct((16 * P,), jnp.bfloat16)

    def fn(row, dtype=None):
        return hccljax.all_reduce(row, ranks.axis, accumulate_dtype=dtype, **options(algorithm))

    wide = count(lambda row: fn(row, jnp.float32), x, axis_sizes={ranks.axis: P})
    assert wide.exchanges >= 1
    gathered = count(lambda row: fn(row), x, axis_sizes={ranks.axis: P}).bytes_sent
    assert wide.bytes_sent <= max(gathered, 2 * (P - 1) * 2 * 16)


def test_a_mean_does_not_overflow_on_the_way(ranks):
    x = np.full((P, 3), 60000, np.float16)
    with_it, without = (
        ranks.virtual(lambda row, d=d: hccljax.all_reduce(row, ranks.axis, "mean", accumulate_dtype=d), x)
        for d in (jnp.float32, None)
    )
    assert (with_it == 60000).all()
    assert np.isinf(without).all()


def test_integers_wrap_once_at_the_end(ranks):
    x = np.full((P, 3), 100, np.int8)
    out = ranks.virtual(lambda row: hccljax.all_reduce(row, ranks.axis, accumulate_dtype=jnp.int32), x)
    ranks.same(out, ranks.expected("all_reduce", x))


@pytest.mark.parametrize("operator", ["all_reduce", "reduce_scatter", "reduce"])
def test_a_mean_of_integers_does_not_wrap(operator, ranks):
    x = np.full(ranks.rows_of(operator, P, (3,)), 100, np.int8)
    out = ranks.virtual(lambda row: ranks.call(operator, row, "mean", accumulate_dtype=jnp.int32), x)
    ranks.same(out, ranks.expected(operator, x, "mean"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_decision_says_who_adds_and_who_gathers(algorithm):
    tiers = options(algorithm)["topology"]
    whole = hccljax.explain("all_reduce", 4096, P, tiers, algorithm, accumulate_dtype=jnp.float32)
    assert "accumulate_dtype=float32: a mesh exchange" in whole.reason
    gatherer = "mesh" if "tree" in algorithm else algorithm  # trees cannot gather
    assert f"{gatherer} gathers the sums" in whole.reason
    assert whole.algorithm == f"mesh in float32, then {gatherer}"
    blocks = hccljax.explain("reduce_scatter", 4096, P, tiers, algorithm, accumulate_dtype="float32")
    # A tree has no reduce_scatter, but here it would not add anything up.
    assert (blocks.algorithm, blocks.steps, blocks.fallback) == ("mesh in float32", 1, None)


def test_only_what_adds_up_can_accumulate():
    with pytest.raises(hccljax.ArgumentError, match="all_gather adds nothing up; expected one of all_reduce"):
        hccljax.explain("all_gather", 4096, P, accumulate_dtype="float32")
    with pytest.raises(hccljax.DtypeError, match="accumulate_dtype='f33'"):
        hccljax.explain("reduce", 4096, P, accumulate_dtype="f33")


@pytest.mark.parametrize(
    ("dtype", "accumulate_dtype"),
    [
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("bfloat16", "float16"),
        ("float16", "bfloat16"),
        ("int32", "int8"),
        ("int32", "uint32"),
        ("complex64", "float32"),
        ("float32", "int32"),
        ("float32", "no dtype"),
    ],
)
def test_a_dtype_that_does_not_hold_the_operand_is_refused(dtype, accumulate_dtype, ranks):
    x = np.ones((P, 2), jnp.dtype(dtype))
    with pytest.raises(hccljax.DtypeError, match="accumulate_dtype"):
        ranks.virtual(lambda row: hccljax.all_reduce(row, ranks.axis, accumulate_dtype=accumulate_dtype), x)


def test_float32_does_not_hold_every_int32(ranks):
    x = np.zeros((P, 1), np.int32)
    x[0] = 2**24 + 1
    with pytest.raises(hccljax.DtypeError, match="accumulate_dtype"):
        ranks.virtual(lambda row: hccljax.all_reduce(row, ranks.axis, accumulate_dtype="float32"), x)


@pytest.mark.parametrize("op", ["prod", "max", "min"])
def test_the_dtype_is_checked_for_every_op(op, ranks):
    x = np.ones((P, 2), np.float32)
    for wrong in ("bfloat16", "no dtype"):
        with pytest.raises(hccljax.DtypeError, match="accumulate_dtype"):
            ranks.virtual(lambda row, d=wrong: hccljax.all_reduce(row, ranks.axis, op, accumulate_dtype=d), x)


def test_the_derivative_of_a_product_is_taken_in_the_wide_dtype(ranks):
    x = np.array([300, 300, 1e-3, 1, 1, 1, 1, 1], np.float16)  # the first two overflow float16 on the way

    def loss(row):
        return hccljax.all_reduce(row, ranks.axis, "prod", accumulate_dtype=jnp.float32)

    grads = jax.vmap(lambda row: jax.grad(lambda row: loss(row).astype(jnp.float32))(row), axis_name=ranks.axis)(x)
    others = np.array([np.prod(np.delete(x.astype(np.float64), i)) for i in range(P)])
    with np.errstate(over="ignore"):
        wanted = (P * others).astype(np.float16)  # every rank's loss counts
    np.testing.assert_allclose(np.asarray(grads), wanted, rtol=2e-3)


@pytest.mark.parametrize(
    ("dtype", "accumulate_dtype"), [("float8_e4m3fn", "float32"), ("float8_e5m2", "bfloat16"), ("int4", "int32")]
)
def test_the_narrowest_dtypes_gain_most(dtype, accumulate_dtype, ranks):
    x = np.array([[-2], [1], [1], [2], [1], [0], [1], [-1]]).astype(jnp.dtype(dtype))
    out = ranks.virtual(lambda row: hccljax.all_reduce(row, ranks.axis, accumulate_dtype=accumulate_dtype), x)
    assert out.dtype == x.dtype
    assert (out.astype(np.float32) == 3).all()


@pytest.mark.parametrize("dtype", ["int64", "float64", "uint64"])
def test_64_bits_that_jax_would_narrow_are_refused(dtype, ranks):
    x = np.ones((P, 2), np.int32 if dtype == "int64" else np.uint32 if dtype == "uint64" else np.float32)
    with pytest.raises(hccljax.DtypeError, match=f"accumulate_dtype={dtype}.*jax_enable_x64"):
        ranks.virtual(lambda row: hccljax.all_reduce(row, ranks.axis, "mean", accumulate_dtype=dtype), x)


@pytest.mark.parametrize("dtype", ["U5", object, "bool", np.longdouble, [("a", "i4")]])
def test_what_is_no_dtype_of_numbers_is_refused(dtype, ranks):
    x = np.ones((P, 2), np.float32)
    with pytest.raises(hccljax.DtypeError, match="accumulate_dtype"):
        ranks.virtual(lambda row: hccljax.all_reduce(row, ranks.axis, accumulate_dtype=dtype), x)
    with pytest.raises(hccljax.DtypeError, match="accumulate_dtype"):
        hccljax.explain("all_reduce", 64, P, accumulate_dtype=dtype)
