"""Devices and virtual ranks give the same bits: for every algorithm and reduction, on real-valued data."""

import jax.numpy as jnp
import numpy as np
import pytest

from hccljax import Communicator
from hccljax.algorithm import registered

pytestmark = pytest.mark.usefixtures("usual_compiler")
P = 8
ROWS = np.random.default_rng(2).standard_normal((P, P, 5)).astype(np.float32)
ALGORITHMS = ("ring", "tree", "double_tree", "H-D_R", "mesh")
HIERARCHY = "level0:ring;level1:tree"


def bits(x):
    """The bytes of an array: equal NaNs are equal, and -0.0 is not 0.0."""
    return np.ascontiguousarray(x).tobytes()


def both(call, **options):
    """The results on devices and on virtual ranks, once they are known to have the same bits."""
    devices, virtual = (np.asarray(call(Communicator(P, executor=one, **options))) for one in ("devices", "virtual"))
    assert bits(devices) == bits(virtual)
    return devices


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, HIERARCHY])
def test_an_all_reduce_has_the_same_bits_on_devices_and_virtual_ranks_and_in_every_row(algorithm):
    out = both(lambda comm: comm.all_reduce(ROWS), algorithm=algorithm, topology="2x4")
    assert {bits(row) for row in out} == {bits(out[0])}
    np.testing.assert_allclose(out[0], ROWS.astype(np.float64).sum(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if registered(name).supports("reduce_scatter")])
def test_a_reduce_scatter_has_the_same_bits(algorithm):
    out = both(lambda comm: comm.reduce_scatter(ROWS), algorithm=algorithm)
    np.testing.assert_allclose(out, ROWS.astype(np.float64).sum(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "H-D_R"])
def test_a_reduce_has_the_same_bits(algorithm):
    out = both(lambda comm: comm.reduce(ROWS, root=5), algorithm=algorithm)
    np.testing.assert_allclose(out[5], ROWS.astype(np.float64).sum(0), rtol=0, atol=1e-5)
    assert not out[:5].any()
    assert not out[6:].any()


@pytest.mark.parametrize(("algorithm", "dtype"), [("ring", "float16"), ("H-D_R", "bfloat16"), ("ring", "complex64")])
def test_rounding_agrees_in_other_dtypes(algorithm, dtype):
    x = jnp.asarray(ROWS).astype(dtype)
    out = both(lambda comm: comm.all_reduce(x, algorithm=algorithm))
    assert out.dtype == x.dtype
    assert {bits(row) for row in out} == {bits(out[0])}


@pytest.mark.parametrize("op", ["prod", "max", "min", "mean"])
def test_every_reduction_agrees_where_there_are_nans_zeros_and_infinities(op):
    x = ROWS.copy()
    x[3, 0, 0], x[:, 1, 1], x[5, 2, 2] = np.nan, [0.0, -0.0] * 4, np.inf
    out = both(lambda comm: comm.all_reduce(x, op))
    assert np.isnan(out[:, 0, 0]).all()
    assert np.isinf(out[:, 2, 2]).any() == (op != "min")
