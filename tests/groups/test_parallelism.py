"""Data parallel × model parallel: each collective talks inside its own groups, and to nobody else.

Ranks are numbered with the model shard fastest: 4 × 8 has the data-parallel groups [r, r + 8, r + 16, r + 24] and the
model-parallel groups of 8 ranks in a row.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import hccljax
from hccljax import Group
from hccljax.algorithm import registered
from hccljax.algorithm.base import OPERATORS


def groups(data, model):
    """(data-parallel groups, model-parallel groups) of data × model ranks."""
    ranks = np.arange(data * model).reshape(data, model)
    return ranks.T.tolist(), ranks.tolist()


def step(data, model, algorithm=None):
    """One rank's part of a step with a column-parallel layer; (x [b, i], w [i, o / model]) → everything it computes."""
    replicas, shards = (Group("rank", listed) for listed in groups(data, model))

    def body(x, w):
        y = hccljax.all_gather(x @ w, shards, axis=1, tiled=True, algorithm=algorithm)
        gradient = jax.grad(
            lambda w: (hccljax.all_gather(x @ w, shards, axis=1, tiled=True, algorithm=algorithm) ** 2).sum()
        )(w)
        return y, hccljax.all_reduce(gradient, replicas, algorithm=algorithm)

    return body


def expected(x, w, data, model):
    """(y, gradient) of every rank by NumPy; x [data, b, i], w [model, i, o / model]."""
    y = np.concatenate([np.einsum("dbi,io->dbo", x, shard) for shard in w], 2)
    y = np.repeat(y, model, 0)
    own = np.einsum("dbi,mio->dmbo", x, w)
    # Every rank of a model-parallel group adds the same loss, so that a shard's gradient counts it model times.
    gradient = 2 * model * np.einsum("dbi,dmbo->mio", x, own)
    return y, np.tile(gradient, (data, 1, 1))


def operands(data, model):
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (data, 2, 3)).astype(np.float32)
    w = rng.integers(-4, 5, (model, 3, 2)).astype(np.float32)
    return x, w, np.repeat(x, model, 0), np.tile(w, (data, 1, 1))


@pytest.mark.parametrize("algorithm", [None, "ring", "H-D_R", "mesh"])
def test_a_step_on_4_times_8_virtual_ranks_is_that_of_numpy(algorithm):
    x, w, rank_x, rank_w = operands(4, 8)
    y, gradient = jax.jit(jax.vmap(step(4, 8, algorithm), axis_name="rank"))(rank_x, rank_w)
    expected_y, expected_gradient = expected(x, w, 4, 8)
    np.testing.assert_array_equal(y, expected_y)
    np.testing.assert_array_equal(gradient, expected_gradient)


@pytest.mark.parametrize("checked", [True, False])
def test_a_step_on_2_times_4_devices_is_that_of_numpy(checked):
    x, w, rank_x, rank_w = operands(2, 4)
    program = _on_devices(step(2, 4), 8, checked)
    y, gradient = program(rank_x, rank_w)
    expected_y, expected_gradient = expected(x, w, 2, 4)
    np.testing.assert_array_equal(y, expected_y)
    np.testing.assert_array_equal(gradient, expected_gradient)
    sent = _pairs_in(program.lower(rank_x, rank_w).as_text())
    assert sent
    assert all(_share_a_group(s, d, 2, 4) for s, d in sent)


def test_a_two_axis_mesh_does_the_same_without_groups():
    x, w, rank_x, rank_w = operands(2, 4)

    def body(x, w):
        y = hccljax.all_gather(x[0] @ w[0], "model", axis=1, tiled=True)
        return y[None], hccljax.all_reduce(w * y.sum(), "data")

    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    specs = PartitionSpec(("data", "model"))
    program = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(specs, PartitionSpec("model")), check_vma=True)
    )
    y, total = program(rank_x, rank_w)
    np.testing.assert_array_equal(y, expected(x, w, 2, 4)[0])
    np.testing.assert_array_equal(total, w * expected(x, w, 2, 4)[0][[0, 4]].sum())
    sent = _pairs_in(program.lower(rank_x, rank_w).as_text())
    assert sent
    assert all(_share_a_group(s, d, 2, 4) for s, d in sent)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "double_tree", "H-D_R", "mesh", "pairwise", "native"])
def test_the_jaxpr_has_no_pair_that_crosses_groups(algorithm):
    replicas, shards = groups(4, 8)
    record = registered(algorithm)
    for operator in (operator for operator in OPERATORS if record.supports(operator)):
        for listed in (replicas, shards):
            call = _called(operator, Group("rank", listed), algorithm)
            sent = _pairs_of(call, jax.ShapeDtypeStruct((len(listed[0]), 3), "float32"), 32)
            group_of = {rank: number for number, members in enumerate(listed) for rank in members}
            assert all(group_of[s] == group_of[d] for s, d in sent)
            # Everybody takes part.
            assert {rank for pair in sent for rank in pair} == set(range(32))


def _called(operator, group, algorithm):
    arguments = (0, 0) if operator == "all_to_all" else ()
    return lambda x: getattr(hccljax, operator)(x, group, *arguments, algorithm=algorithm)


def _pairs_of(function, operand, n):
    """The (source, destination) axis indices of everything that is sent, read from the jaxpr."""
    traced = jax.make_jaxpr(function, axis_env=[("rank", n)])(operand)
    pairs, todo = set(), [traced.jaxpr]
    while todo:
        for equation in todo.pop().eqns:
            params = equation.params
            if equation.primitive.name == "hccl_permute":
                pairs |= set(params["layout"].expand(params["pattern"]))
            elif equation.primitive.name.startswith("hccl_mesh"):
                pairs |= {(s, d) for members in params["layout"].groups for s in members for d in members}
            elif params.get("axis_index_groups"):
                pairs |= {(s, d) for members in params["axis_index_groups"] for s in members for d in members}
            elif "forward" in params:
                operands = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars]
                todo.append(jax.make_jaxpr(params["forward"], axis_env=[("rank", n)])(*operands).jaxpr)
            else:
                assert equation.primitive.name not in ("ppermute", "psum", "psum_invariant", "all_gather", "all_to_all")
                todo += jax.extend.core.jaxprs_in_params(params)
    return pairs


def _pairs_in(program):
    """The (source, destination) devices of every collective-permute of a lowered program."""
    tables = re.findall(r"collective_permute.*?source_target_pairs = dense<\[\[(.+?)\]\]>", program)
    assert len(tables) == len(re.findall("stablehlo.collective_permute", program))
    return {tuple(map(int, pair.split(", "))) for table in tables for pair in table.split("], [")}


def _share_a_group(source, destination, data, model):
    return any({source, destination} <= set(members) for listed in groups(data, model) for members in listed)


def _on_devices(function, n, checked):
    mesh = jax.make_mesh((n,), ("rank",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("rank")
    return jax.jit(
        jax.shard_map(
            lambda *rows: jax.tree.map(lambda out: jnp.asarray(out)[None], function(*(row[0] for row in rows))),
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
            check_vma=checked,
        )
    )
