"""Double ring: two directions at the same time, half of every block in each."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hccljax.algorithm import registered, run
from hccljax.group import Group
from hccljax.layout import Shift
from hccljax.primitives.permute import permute_p
from hccljax.reduction import reduction
from hccljax.schedule import count

RING, DOUBLE, GROUP, SUM = registered("ring"), registered("double_ring"), Group("r"), reduction("sum")
OPERATORS = ("reduce_scatter", "all_gather", "all_reduce")


def operand(operator, p, length):
    return {"reduce_scatter": (p, length), "all_gather": (length,), "all_reduce": (p * length,)}[operator]


def sent_by(algorithm, operator, p, length):
    """{direction: bytes that a rank sends in it}, from the jaxpr."""
    x = jax.ShapeDtypeStruct(operand(operator, p, length), np.float32)
    jaxpr = jax.make_jaxpr(lambda row: run(algorithm, operator, row, GROUP, SUM), axis_env=[("r", p)])(x)
    sent = Counter()

    def read(jaxpr, times):
        for equation in jaxpr.eqns:
            if equation.primitive is permute_p:
                pattern, aval = equation.params["pattern"], equation.invars[0].aval
                assert isinstance(pattern, Shift)
                sent[pattern.k] += times * aval.size * aval.dtype.itemsize
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                read(inner, times * equation.params.get("length", 1))

    read(jaxpr.jaxpr, 1)
    return sent


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("p", [2, 3, 8])
def test_each_direction_carries_half(operator, p):
    phases = 2 if operator == "all_reduce" else 1
    assert sent_by(DOUBLE, operator, p, 64) == {1: phases * (p - 1) * 128, -1: phases * (p - 1) * 128}
    assert sent_by(DOUBLE, operator, p, 7) == {1: phases * (p - 1) * 16, -1: phases * (p - 1) * 12}
    assert sent_by(RING, operator, p, 64) == {1: phases * (p - 1) * 256}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("p", [2, 5, 8])
def test_as_many_steps_and_bytes_as_one_ring_and_twice_as_many_permutes(operator, p):
    x = jax.ShapeDtypeStruct(operand(operator, p, 64), np.float32)
    one, two = (
        count(lambda row, a=algorithm: run(a, operator, row, GROUP, SUM), x, axis_sizes={"r": p})
        for algorithm in (RING, DOUBLE)
    )
    assert (two.steps, two.bytes_sent, two.permutes) == (one.steps, one.bytes_sent, 2 * one.permutes)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_block_of_one_element_goes_round_one_ring(operator):
    assert set(sent_by(DOUBLE, operator, 4, 1)) == {1}


def test_formulas_of_one_rank():
    assert all(DOUBLE.steps(operator, 1, 64) == DOUBLE.bytes_sent(operator, 1, 64) == 0 for operator in OPERATORS)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), "int32"), ((0, 3), "float32"), ((1,), "bfloat16"), ((3,), "bool"), ((2, 5), "complex64"), ((2,), "bfloat16")],
)
def test_odd_shapes_and_dtypes(shape, dtype):
    p = 5
    x = np.random.default_rng(0).integers(0, 2, (p, p, *shape)).astype(jnp.dtype(dtype))
    op, total = (reduction("max"), x.max(0)) if dtype == "bool" else (SUM, x.sum(0))

    def fn(blocks):
        return [
            run(DOUBLE, operator, blocks, GROUP, *([op] if operator != "all_gather" else [])) for operator in OPERATORS
        ]

    scattered, gathered, reduced = jax.jit(jax.vmap(fn, axis_name="r"))(x)
    np.testing.assert_array_equal(scattered, total)
    np.testing.assert_array_equal(gathered, np.broadcast_to(x, (p, *x.shape)))
    np.testing.assert_array_equal(reduced, np.broadcast_to(total, (p, *total.shape)))


def in_order(rows, ranks):
    total = rows[ranks[0]]
    for rank in ranks[1:]:
        total = total + rows[rank]
    return total


def test_contributions_meet_in_the_order_that_the_record_states():
    p = 6
    x = np.random.default_rng(1).standard_normal((p, p, 4)).astype(np.float32)
    fn = jax.vmap(lambda row: run(DOUBLE, "reduce_scatter", row, GROUP, SUM), axis_name="r")
    out = np.asarray(jax.jit(fn)(x))
    for b in range(p):
        first = in_order(x[:, b, :2], [(b + k) % p for k in range(1, p + 1)])
        second = in_order(x[:, b, 2:], [(b - k) % p for k in range(1, p + 1)])
        assert out[b].tobytes() == np.concatenate([first, second]).tobytes()
