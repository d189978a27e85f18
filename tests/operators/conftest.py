"""What the operator tests share: a NumPy oracle, the two executors, and one way to call every operator."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import hccljax
from hccljax.algorithm import registered
from hccljax.algorithm.base import OPERATORS

AXIS = "r"
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "scatter", "gather")
BLOCKED = ("reduce_scatter", "scatter", "all_to_all")
FOLDS = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
FLAT = [name for name in hccljax.algorithms() if name != "hierarchical"]


def pytest_generate_tests(metafunc):
    """A test of ``algorithm`` and ``operator`` runs for every operator of every flat algorithm."""
    marked = [mark for mark in metafunc.definition.iter_markers("parametrize") if "algorithm" in str(mark.args[0])]
    if {"algorithm", "operator"} <= set(metafunc.fixturenames) and not marked:
        pairs = [(name, operator) for name in FLAT for operator in OPERATORS if registered(name).supports(operator)]
        metafunc.parametrize(("algorithm", "operator"), pairs)


def fold(op, rows):
    """rows [p, …] → […]: integers wrap in their own dtype, floats are exact in 64 bits and rounded once."""
    if rows.dtype == bool and op in ("sum", "prod", "mean"):
        rows = rows.astype(np.int32)
    inexact = jnp.issubdtype(rows.dtype, jnp.inexact)
    dtype = rows.dtype if inexact or op != "mean" else (jnp.zeros((), rows.dtype) / 2).dtype
    if inexact or op == "mean":
        rows = rows.astype(np.complex128 if jnp.issubdtype(rows.dtype, jnp.complexfloating) else np.float64)
        total = FOLDS[op].reduce(rows, axis=0)
        return np.asarray(total / len(rows) if op == "mean" else total).astype(dtype)
    return np.asarray(FOLDS[op].reduce(rows, axis=0, dtype=dtype))


def everywhere(value, p):
    return np.broadcast_to(value, (p, *value.shape))


def at_root(value, p, root):
    out = np.zeros((p, *value.shape), value.dtype)
    out[root] = value
    return out


def expected(operator, x, op="sum", root=0):
    """What the operator makes of x [p, …], one row for each rank → [p, …]."""
    p = len(x)
    if operator in REDUCING:
        total = fold(op, x)
        whole = {"all_reduce": everywhere, "reduce": lambda value, p: at_root(value, p, root)}
        return total if operator == "reduce_scatter" else whole[operator](total, p)
    return {
        "all_gather": lambda: everywhere(x, p),
        "broadcast": lambda: everywhere(x[root], p),
        "scatter": lambda: x[root],
        "gather": lambda: at_root(x, p, root),
        "all_to_all": lambda: np.swapaxes(x, 0, 1),
    }[operator]()


def call(operator, x, op="sum", root=0, axis=AXIS, **options):
    """The public function of that name on one rank's x."""
    arguments = {
        **({"op": op} if operator in REDUCING else {}),
        **({"root": root} if operator in ROOTED else {}),
        **({"split_axis": 0, "concat_axis": 0} if operator == "all_to_all" else {}),
    }
    return getattr(hccljax, operator)(x, axis, **arguments, **options)


def virtual(fn, x, **options):
    """fn on every row of x, a pytree of [p, …], all ranks on one device; options go to ``jax.jit``."""
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(fn, axis_name=AXIS), **options)(x))


def devices(fn, x, p):
    """fn on every row of x, one rank on each of the first p devices."""
    mesh = Mesh(np.array(jax.devices()[:p]), (AXIS,), axis_types=(AxisType.Auto,))
    spec = PartitionSpec(AXIS)

    def one(rows):
        return jax.tree.map(lambda out: out[None], fn(jax.tree.map(lambda row: row[0], rows)))

    mapped = jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.tree.map(np.asarray, jax.jit(mapped)(x))


def same(actual, wanted, what=""):
    """Equal dtypes, shapes and values; NaN equals NaN."""
    assert actual.dtype == wanted.dtype, what
    assert actual.shape == wanted.shape, what
    np.testing.assert_array_equal(actual, wanted, err_msg=str(what))


def same_bits(actual, wanted, what=""):
    """Equal dtypes, shapes and bytes: -0.0 is not 0.0."""
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape), what
    assert actual.tobytes() == np.ascontiguousarray(wanted).tobytes(), what


def rows_of(operator, p, shape):
    """The shape of all ranks' operands: blocked operators take one block of that shape for each rank."""
    return (p, *((p,) if operator in BLOCKED else ()), *shape)


@pytest.fixture(scope="session")
def ranks():
    """The names above, for test modules, which cannot import this one."""
    return SimpleNamespace(
        axis=AXIS, flat=FLAT, reducing=REDUCING, rooted=ROOTED, fold=fold, expected=expected, call=call,
        virtual=virtual, devices=devices, same=same, same_bits=same_bits, rows_of=rows_of,
    )  # fmt: skip
