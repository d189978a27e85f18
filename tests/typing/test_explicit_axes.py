"""A partial-manual shard_map whose other axis is Explicit: operands stay sharded over it, results are too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import hccljax

# [rank, …]: the last dimension is sharded over "model", and every rank has one row.
X = jnp.arange(4.0 * 4 * 3 * 6).reshape(4, 4, 3, 6) % 7


def options(algorithm):
    return {"algorithm": algorithm, "topology": "2x2" if ";" in algorithm else None}


# name: (function of one rank's [4, 3, 6], the sharding of its result)
SUMS = {
    "all_reduce": (lambda x, **o: hccljax.all_reduce(x, "rank", **o), P(None, None, "model")),
    "prod": (lambda x, **o: hccljax.all_reduce(x, "rank", "prod", **o), P(None, None, "model")),
    "mean, accumulating": (
        lambda x, **o: hccljax.all_reduce(x, "rank", "mean", accumulate_dtype="float32", **o),
        P(None, None, "model"),
    ),
    "reduce": (lambda x, **o: hccljax.reduce(x, "rank", root=1, **o), P(None, None, "model")),
    "broadcast": (lambda x, **o: hccljax.broadcast(x, "rank", 2, **o), P(None, None, "model")),
}
BLOCKS = {
    "reduce_scatter": (lambda x, **o: hccljax.reduce_scatter(x, "rank", **o), P(None, "model")),
    "reduce_scatter tiled": (
        lambda x, **o: hccljax.reduce_scatter(x, "rank", tiled=True, **o),
        P(None, None, "model"),
    ),
    "all_gather": (lambda x, **o: hccljax.all_gather(x, "rank", **o), P(None, None, None, "model")),
    "all_gather along the sharded dimension": (
        lambda x, **o: hccljax.all_gather(x, "rank", axis=2, tiled=True, **o),
        P(None, None, "model"),
    ),
    "scatter": (lambda x, **o: hccljax.scatter(x, "rank", 3, **o), P(None, "model")),
    "gather": (lambda x, **o: hccljax.gather(x, "rank", 1, **o), P(None, None, None, "model")),
}
MATRIX = ((1, 0, 2, 0), (0, 0, 0, 3), (2, 1, 1, 0), (0, 0, 0, 0))
OTHERS = {
    "all_to_all": (lambda x: hccljax.all_to_all(x, "rank", 0, 0, algorithm="pairwise"), P(None, None, "model")),
    "send_recv": (lambda x: hccljax.send_recv(x, "rank", [(0, 2), (1, 3)]), P(None, None, "model")),
    "all_gather_v": (
        lambda x: hccljax.all_gather_v(x, "rank", (1, 0, 3, 2), axis=1),
        P(None, None, "model"),
    ),
    "reduce_scatter_v": (
        lambda x: hccljax.reduce_scatter_v(x, "rank", (1, 0, 2, 1)),
        P(None, None, "model"),
    ),
    "all_to_all_v": (
        lambda x: hccljax.all_to_all_v(x, "rank", jnp.array([2, 0, 3, 4]))[0],
        P(None, None, "model"),
    ),
    "rows of all_to_all_v": (
        lambda x: hccljax.all_to_all_v(x, "rank", jnp.array([1, 0, 2, 1]), capacity=2, send_offsets=jnp.arange(4))[0],
        P(None, None, None, "model"),
    ),
    "all_to_all_vc": (lambda x: hccljax.all_to_all_vc(x, "rank", MATRIX), P(None, None, "model")),
    "all_to_all_vc by mesh": (
        lambda x: hccljax.all_to_all_vc(x, "rank", MATRIX, algorithm="mesh"),
        P(None, None, "model"),
    ),
    "barrier": (lambda x: hccljax.barrier(x, "rank"), P(None, None, "model")),
    "groups of unequal size": (
        lambda x: hccljax.all_reduce(x, hccljax.Group("rank", [[0, 2, 3], [1]])),
        P(None, None, "model"),
    ),
    "servers of unequal size": (
        lambda x: hccljax.all_reduce(x, "rank", algorithm="AHC", topology="3+1"),
        P(None, None, "model"),
    ),
}


def on_ranks(fun, model):
    """fun on four ranks, each one's array sharded over the model axis, which is Explicit or Auto.

    Returns (results, gradients), rank by rank, and the sharding of fun's result.
    """
    mesh = jax.make_mesh((4, 2), ("rank", "model"), axis_types=(AxisType.Auto, model))
    seen = []

    def body(rows):
        out = fun(rows[0])
        seen.append(jax.typeof(out).sharding.spec)
        gradient = jax.grad(lambda x: jnp.sum(fun(x) ** 2))(rows[0])
        return out[None], gradient[None]

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("rank"), out_specs=P("rank"), axis_names={"rank"})
    with jax.set_mesh(mesh):
        out = jax.jit(mapped)(jax.device_put(X, NamedSharding(mesh, P("rank", None, None, "model"))))
    return jax.tree.map(np.asarray, out), seen[0]


def compare(fun, spec):
    out, found = on_ranks(fun, AxisType.Explicit)
    wanted, _ = on_ranks(fun, AxisType.Auto)
    assert found == spec
    jax.tree.map(np.testing.assert_array_equal, out, wanted)


@pytest.mark.parametrize("algorithm", ["ring", "double_tree", "H-D_R", "level0:ring;level1:mesh"])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.filterwarnings("ignore:.* for a derivative")  # of prod by a tree, which cannot gather
def test_a_reduction_stays_sharded(name, algorithm):
    fun, spec = SUMS[name]
    compare(lambda x: fun(x, **options(algorithm)), spec)


@pytest.mark.parametrize("algorithm", ["ring", "H-D_R", "mesh"])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_cut_and_joined_as_without_it(name, algorithm):
    fun, spec = BLOCKS[name]
    compare(lambda x: fun(x, **options(algorithm)), spec)


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_moves_data_leaves_the_sharding_alone(name):
    compare(*OTHERS[name])
