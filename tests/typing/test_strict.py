"""Callers with strict settings: dtype promotion, rank promotion, 32 and 64 bits, jaxpr checks."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax

AXIS, RANKS = "i", 4
OPS = ("sum", "mean", "max", "min", "prod")


def every_collective(x):
    """Every collective of an array [4, 2], and the gradient of those that have one."""
    total = lambda x, op="sum": hccljax.all_reduce(x, AXIS, op)  # noqa: E731
    linear = {
        "sum": total,
        "mean": lambda x: total(x, "mean"),
        "prod": lambda x: total(x, "prod"),
        "all_gather": lambda x: hccljax.all_gather(x, AXIS),
        "all_gather replicated": lambda x: hccljax.all_gather(x, AXIS, to="invarying", tiled=True),
        "reduce_scatter mean": lambda x: hccljax.reduce_scatter(x, AXIS, "mean", tiled=True),
        "broadcast": lambda x: hccljax.broadcast(x, AXIS, 1),
        "reduce": lambda x: hccljax.reduce(x, AXIS, root=2),
        "scatter": lambda x: hccljax.scatter(x, AXIS, 1),
        "gather": lambda x: hccljax.gather(x, AXIS, 2),
        "all_to_all": lambda x: hccljax.all_to_all(x, AXIS, 0, 0),
        "send_recv": lambda x: hccljax.send_recv(x, AXIS, [(0, 1), (1, 3)]),
        "barrier": lambda x: hccljax.barrier(x, AXIS),
        "groups": lambda x: hccljax.all_reduce(x, hccljax.Group(AXIS, [[0, 3], [2, 1]])),
    }
    algorithms = {
        "tree": lambda x: hccljax.all_reduce(x, AXIS, algorithm="tree"),
        "H-D_R": lambda x: hccljax.all_reduce(x, AXIS, algorithm="H-D_R"),
        "mesh": lambda x: hccljax.all_reduce(x, AXIS, algorithm="mesh"),
        "double_tree": lambda x: hccljax.broadcast(x, AXIS, 1, algorithm="double_tree"),
        "hierarchy": lambda x: hccljax.all_reduce(x, AXIS, algorithm="level0:ring;level1:tree", topology="2x2"),
        "all_to_all mesh": lambda x: hccljax.all_to_all(x, AXIS, 0, 1, algorithm="mesh"),
        "batch_send_recv": lambda x: hccljax.batch_send_recv([(x, [(0, 1)]), (x, [(3, 0)])], AXIS)[1],
        "accumulated": lambda x: hccljax.all_reduce(x, AXIS, accumulate_dtype=x.dtype),
    }
    loss = lambda collective: lambda x: jnp.sum(lax.square(collective(x)))  # noqa: E731
    return {
        "values": {name: collective(x) for name, collective in (linear | algorithms).items()},
        "gradients": {name: jax.grad(loss(collective))(x) for name, collective in linear.items()},
        "second order": jax.hessian(loss(total))(x),
        "integers": {op: total(lax.convert_element_type(x, jnp.int32), op) for op in OPS},
        "halves": {op: total(lax.convert_element_type(x, jnp.bfloat16), op) for op in OPS},
        "extrema": (total(x, "max"), total(x, "min"), hccljax.reduce_scatter(x, AXIS, "max")),
        "helper": hccljax.value_and_grad(loss(total), AXIS)(x),
    }


@contextlib.contextmanager
def strict(bits):
    """No dtype promotion, no rank promotion, every jaxpr checked."""
    before = jax.config.jax_enable_checks
    jax.config.update("jax_enable_checks", True)
    try:
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.enable_x64(bits == 64):
            yield
    finally:
        jax.config.update("jax_enable_checks", before)


@pytest.mark.parametrize(("name", "bits"), [("checked", 32), ("unchecked", 64), ("vmap", 32)])
def test_every_collective_and_gradient_lowers_under_strict_settings(make_mode, name, bits):
    with strict(bits):
        jax.jit(make_mode(name).map(every_collective)).lower(jnp.ones((RANKS, RANKS, 2), f"float{bits}"))


def test_every_collective_and_gradient_lowers_with_32_bit_data_where_64_bits_are_enabled(make_mode):
    with strict(64):
        jax.jit(make_mode("checked").map(every_collective)).lower(jnp.ones((RANKS, RANKS, 2), jnp.float32))


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
def test_64_bits_stay_64_bits(mode, dtype):
    exact = np.arange(1, RANKS * RANKS + 1, dtype=dtype).reshape(RANKS, RANKS) + 2**40

    def on_rank(x):
        return (
            hccljax.all_reduce(x, AXIS), hccljax.all_reduce(x, AXIS, "mean"), hccljax.all_gather(x, AXIS),
            hccljax.reduce_scatter(x, AXIS), hccljax.all_to_all(x, AXIS, 0, 0),
        )  # fmt: skip

    with jax.enable_x64(True):
        total, mean, gathered, scattered, exchanged = jax.jit(mode.map(on_rank))(exact)
    every = np.broadcast_to(exact.sum(0), exact.shape)
    np.testing.assert_array_equal(total, every, strict=True)
    np.testing.assert_array_equal(mean, every / RANKS, strict=True)
    np.testing.assert_array_equal(gathered, np.broadcast_to(exact, (RANKS, *exact.shape)), strict=True)
    np.testing.assert_array_equal(scattered, exact.sum(0), strict=True)
    np.testing.assert_array_equal(exchanged, exact.T, strict=True)


@pytest.mark.parametrize("bits", [False, True], ids=["32 bits", "64 bits"])
def test_dtypes_follow_the_twin(make_mode, bits):
    """dtype promotion of psum and pmean for every kind of operand, traced only."""
    by_lax = {"sum": lax.psum, "mean": lax.pmean, "max": lax.pmax, "min": lax.pmin}
    kinds = ["bool", "int8", "uint32", "int32", "float16", "bfloat16", "float32"] + (
        ["int64", "float64"] if bits else []
    )

    def dtypes(collective, dtype):
        x = jnp.ones((RANKS, 2), dtype)
        return jax.eval_shape(jax.vmap(collective, axis_name=AXIS), x).dtype

    with jax.enable_x64(bits):
        for op, twin in by_lax.items():
            for kind in kinds:
                if kind == "bool" and op in ("max", "min"):
                    continue
                ours = dtypes(lambda x, op=op: hccljax.all_reduce(x, AXIS, op), kind)
                assert ours == dtypes(lambda x, twin=twin: twin(x, AXIS), kind), (op, kind)
