"""Every operator of every algorithm on 1 to 8 devices: against NumPy, and bit for bit against virtual ranks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.algorithm import registered
from hccljax.algorithm.base import OPERATORS

EXACT = [
    # (shape, where "2p" is twice the number of ranks; dtype; op; the largest value)
    (("2p",), "int32", "max", 99),
    ((5,), "float32", "sum", 99),
    ((), "float32", "prod", 2),
    ((0, 3), "float32", "sum", 9),
    ((3, 2), "bfloat16", "sum", 9),
    ((3,), "bool", "sum", 1),
]


def exact_cases(algorithm, operator, p, ranks):
    """One or two of the kinds above, taking turns over p, each with a root of its own: label → (x, op, root).

    Over the eight p every kind has its turn. One array costs 0.1 to 0.6 s to compile.
    """
    first = (p + len(operator)) % len(EXACT)
    kinds = [EXACT[first], EXACT[first - 3]] if p in (3, 8) and algorithm != "double_tree" else [EXACT[first]]
    rng = np.random.default_rng(p)
    cases = {}
    for i, (shape, dtype, op, largest) in enumerate(kinds):
        if algorithm == "native" and (op == "prod" or operator == "reduce_scatter"):
            op = "sum"  # XLA has no product, and only the sum of psum_scatter
        sizes = tuple(2 * p if size == "2p" else size for size in shape)
        x = rng.integers(0, largest, ranks.rows_of(operator, p, sizes), endpoint=True).astype(jnp.dtype(dtype))
        cases[f"{dtype}{shape}"] = (x, op, (0, 1 % p, p - 1)[(p + i) % 3])
    return cases


@pytest.mark.parametrize("p", range(1, 9))
def test_equals_numpy(algorithm, operator, p, ranks):
    cases = exact_cases(algorithm, operator, p, ranks)

    def fn(values):
        return {
            label: ranks.call(operator, values[label], op, root, algorithm=algorithm)
            for label, (_, op, root) in cases.items()
        }

    out = ranks.devices(fn, {label: x for label, (x, _, _) in cases.items()}, p)
    for label, (x, op, root) in cases.items():
        ranks.same(out[label], ranks.expected(operator, x, op, root), (label, op, root))


RANDOM = [("float32", "sum"), ("bfloat16", "sum"), ("float16", "mean")]
REPEATABLE = [
    (name, operator)
    for name in hccljax.algorithms()
    for operator in OPERATORS
    if name != "hierarchical"
    and registered(name).supports(operator)
    # XLA's own sums are added in an order and a precision that XLA chooses for each executor.
    and (name, operator) not in (("native", "all_reduce"), ("native", "reduce_scatter"))
]


@pytest.mark.usefixtures("usual_compiler")
@pytest.mark.parametrize(("algorithm", "operator", "p"), [(*case, (8, 3)[i % 2]) for i, case in enumerate(REPEATABLE)])
def test_devices_and_virtual_ranks_agree_to_the_last_bit(algorithm, operator, p, ranks):
    rng = np.random.default_rng(p)
    kinds = RANDOM[:1] if operator not in ranks.reducing else RANDOM if p == 3 else RANDOM[1:2]
    x = {dtype: rng.standard_normal(ranks.rows_of(operator, p, (7,))).astype(jnp.dtype(dtype)) for dtype, _ in kinds}

    def fn(values):
        return {dtype: ranks.call(operator, values[dtype], op, p - 1, algorithm=algorithm) for dtype, op in kinds}

    on_devices, on_one = ranks.devices(fn, x, p), ranks.virtual(fn, x)
    for dtype, op in kinds:
        ranks.same_bits(on_devices[dtype], on_one[dtype], (dtype, op))
        exact = ranks.expected(operator, x[dtype], op, p - 1).astype(np.float64)
        error = np.abs(on_devices[dtype].astype(np.float64) - exact)
        # One rounding for each of p - 1 additions of numbers whose absolute values add up to at most this.
        size = np.abs(x[dtype].astype(np.float64)).sum(0).max()
        assert (error <= p * jnp.finfo(dtype).eps * size).all(), dtype


@pytest.mark.usefixtures("usual_compiler")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_executors_of_a_communicator_agree_to_the_last_bit(dtype, ranks):
    x = np.random.default_rng(0).standard_normal((6, 11)).astype(jnp.dtype(dtype))
    one, other = (hccljax.Communicator(6, executor=executor) for executor in ("devices", "virtual"))
    assert len(one.devices) == 6
    assert len(other.devices) == 1
    for op in ("sum", "prod", "mean"):
        ranks.same_bits(np.asarray(one.all_reduce(x, op)), np.asarray(other.all_reduce(x, op)), op)


def test_the_forced_devices_are_there():
    assert len(jax.devices()) == 8
