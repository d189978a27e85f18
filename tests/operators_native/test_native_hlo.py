"""algorithm="native" costs nothing: it compiles to the program that ``jax.lax`` compiles to."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import hccljax

pytestmark = pytest.mark.usefixtures("usual_compiler")
NATIVE = {"algorithm": "native"}
ROWS = PartitionSpec("r")
SAME = PartitionSpec()

# operator: (the jax.lax twin, hccljax, out_specs). Every rank's operand is float32[8, 8], or [8, 16] where tiled.
OPERATORS = {
    "psum": (lambda x: lax.psum(x, "r"), lambda x: hccljax.all_reduce(x, "r", **NATIVE), SAME),
    "pmean": (lambda x: lax.pmean(x, "r"), lambda x: hccljax.all_reduce(x, "r", "mean", **NATIVE), SAME),
    "pmax": (lambda x: lax.pmax(x, "r"), lambda x: hccljax.all_reduce(x, "r", "max", **NATIVE), SAME),
    "pmin": (lambda x: lax.pmin(x, "r"), lambda x: hccljax.all_reduce(x, "r", "min", **NATIVE), SAME),
    "all_gather": (lambda x: lax.all_gather(x, "r"), lambda x: hccljax.all_gather(x, "r", **NATIVE), ROWS),
    "all_gather, tiled along axis 1": (
        lambda x: lax.all_gather(x, "r", axis=1, tiled=True),
        lambda x: hccljax.all_gather(x, "r", axis=1, tiled=True, **NATIVE),
        ROWS,
    ),
    "all_gather to invarying": (
        lambda x: lax.all_gather(x, "r", to="invarying"),
        lambda x: hccljax.all_gather(x, "r", to="invarying", **NATIVE),
        SAME,
    ),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "r"), lambda x: hccljax.reduce_scatter(x, "r", **NATIVE), ROWS),
    "psum_scatter, tiled": (
        lambda x: lax.psum_scatter(x, "r", tiled=True),
        lambda x: hccljax.reduce_scatter(x, "r", tiled=True, **NATIVE),
        ROWS,
    ),
    "psum_scatter along dimension 1": (
        lambda x: lax.psum_scatter(x, "r", scatter_dimension=1),
        lambda x: hccljax.reduce_scatter(x, "r", scatter_dimension=1, **NATIVE),
        ROWS,
    ),
    "psum_scatter, tiled along dimension 1": (
        lambda x: lax.psum_scatter(x, "r", scatter_dimension=1, tiled=True),
        lambda x: hccljax.reduce_scatter(x, "r", scatter_dimension=1, tiled=True, **NATIVE),
        ROWS,
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "r", 0, 1),
        lambda x: hccljax.all_to_all(x, "r", 0, 1, **NATIVE),
        ROWS,
    ),
    "all_to_all, tiled": (
        lambda x: lax.all_to_all(x, "r", 1, 0, tiled=True),
        lambda x: hccljax.all_to_all(x, "r", 1, 0, tiled=True, **NATIVE),
        ROWS,
    ),
}
GROUPS = ((0, 2, 4, 6), (1, 3, 5, 7))


def compiled(function, out_specs=ROWS, check_vma=False, dtype=jnp.float32, shape=(64, 16)):
    """The optimised HLO of a per-device function on 8 devices, without what names and source lines put into it."""
    mesh = jax.make_mesh((8,), ("r",), (AxisType.Auto,))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=ROWS, out_specs=out_specs, check_vma=check_vma)
    return normalised(jax.jit(mapped).lower(jax.ShapeDtypeStruct(shape, dtype)).compile().as_text())


def normalised(text):
    """HLO without source lines, its instructions and computations renamed in the order in which they appear."""
    text = re.sub(r", metadata=\{[^{}]*\}", "", text)
    # The tables of source lines stand between the header and the first computation.
    header, _, rest = text.partition("\n")
    body = rest[re.search(r"^(ENTRY )?%", rest, re.MULTILINE).start() :]
    header = re.sub(r"^HloModule [^,]+", "HloModule", header)
    names = {}
    # A name is %name where it is used, and bare in the parameter list of a computation.
    return f"{header}\n" + re.sub(
        r"%([\w.\-]+)|(?<=[(\s])([\w.\-]+)(?=: )",
        lambda found: names.setdefault(found[1] or found[2], f"%{len(names)}"),
        body,
    )


@pytest.mark.parametrize("check_vma", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_hlo_is_that_of_the_jax_lax_twin(operator, check_vma):
    twin, ours, out_specs = OPERATORS[operator]
    shape = (64, 16) if "tiled" in operator else (64, 8)
    ours = compiled(ours, out_specs, check_vma, shape=shape)
    assert ours == compiled(twin, out_specs, check_vma, shape=shape)
    assert re.search(r" (all-reduce|all-gather|reduce-scatter|all-to-all)\(", ours)


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.int32, jnp.bfloat16, jnp.complex64], ids=lambda dtype: dtype.__name__)
def test_dtypes_are_promoted_as_by_psum(dtype):
    ours = compiled(lambda x: hccljax.all_reduce(x, "r", **NATIVE), SAME, True, dtype)
    assert ours == compiled(lambda x: lax.psum(x, "r"), SAME, True, dtype)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
def test_dtypes_are_promoted_as_by_pmean(dtype):
    ours = compiled(lambda x: hccljax.all_reduce(x, "r", "mean", **NATIVE), SAME, True, dtype)
    assert ours == compiled(lambda x: lax.pmean(x, "r"), SAME, True, dtype)


def test_a_partitioned_group_becomes_axis_index_groups():
    group = hccljax.Group("r", GROUPS)
    ours = compiled(lambda x: hccljax.all_reduce(x, group, **NATIVE))
    assert ours == compiled(lambda x: lax.psum(x, "r", axis_index_groups=GROUPS))
    assert ours != compiled(lambda x: lax.psum(x, "r"))


def test_the_gradient_is_that_of_psum():
    def loss(all_reduce):
        return jax.grad(lambda x: (all_reduce(x) ** 2).sum())

    ours = compiled(loss(lambda x: hccljax.all_reduce(x, "r", **NATIVE)), ROWS, True)
    assert ours == compiled(loss(lambda x: lax.psum(x, "r")), ROWS, True)


def test_the_comparison_sees_another_algorithm_another_op_and_another_shape():
    psum = compiled(lambda x: lax.psum(x, "r"))
    assert psum != compiled(lambda x: hccljax.all_reduce(x, "r", algorithm="ring"))
    assert psum != compiled(lambda x: lax.pmax(x, "r"))
    assert psum != compiled(lambda x: lax.psum(x, "r"), shape=(64, 8))


def test_the_comparison_does_not_see_names():
    def adds_first(first):
        return lax.psum(first, "r") + 1

    assert compiled(adds_first) == compiled(lambda other: lax.psum(other, "r") + 1)
