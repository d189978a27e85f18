"""The gradients of every algorithm, in every mode, under a batch: the same as jax.lax's whichever algorithm runs."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hccljax

AXIS, ROOT = "i", 3
TWO_SERVERS = {"algorithm": "level0:ring;level1:tree", "topology": "2x4"}
TREES = ("all_reduce", "broadcast", "reduce")
RUNS = {
    "tree": (4, {"algorithm": "tree"}, TREES),
    "double_tree": (4, {"algorithm": "double_tree"}, ("broadcast",)),
    "H-D_R": (4, {"algorithm": "H-D_R"}, ("all_reduce", "all_gather", "scatter")),
    "mesh": (4, {"algorithm": "mesh"}, ("all_reduce", "all_gather", "broadcast", "scatter", "all_to_all")),
    "double_ring": (4, {"algorithm": "double_ring"}, ("all_gather",)),
    "star": (4, {"algorithm": "star"}, ("broadcast",)),
    "pipeline": (8, {"algorithm": "pipeline", "topology": "4x2"}, ("all_gather", "all_to_all")),
    "AHC": (5, {"algorithm": "AHC", "topology": "2+3"}, ("all_reduce", "all_gather")),
    "native": (4, {"algorithm": "native"}, ("all_reduce", "all_gather", "reduce_scatter")),
    "hierarchy": (8, TWO_SERVERS, ("all_reduce", "broadcast")),
    "hierarchy of blocks": (8, {**TWO_SERVERS, "algorithm": "level0:ring;level1:H-D_R"}, ("all_gather", "gather")),
    "NHR": (4, {"algorithm": "NHR"}, ("all_gather", "scatter")),
    "NB": (3, {"algorithm": "NB"}, ("reduce_scatter", "all_gather")),
    "bruck": (3, {"algorithm": "bruck"}, ("all_to_all",)),
    "odd": (3, {"algorithm": "H-D_R"}, ("all_reduce", "reduce_scatter")),
}


def on_root(x):
    return jnp.where(lax.axis_index(AXIS) == ROOT % lax.axis_size(AXIS), x, jnp.zeros_like(x))


def from_root(x):
    return lax.psum(on_root(x), AXIS)


def collectives(p, options):
    """operator: (hccljax, its jax.lax twin), both of an array whose first dimension has size p."""
    root = ROOT % p
    return {
        "all_reduce": (lambda x: hccljax.all_reduce(x, AXIS, **options), lambda x: lax.psum(x, AXIS)),
        "all_gather": (lambda x: hccljax.all_gather(x, AXIS, **options), lambda x: lax.all_gather(x, AXIS)),
        "reduce_scatter": (lambda x: hccljax.reduce_scatter(x, AXIS, **options), lambda x: lax.psum_scatter(x, AXIS)),
        "broadcast": (lambda x: hccljax.broadcast(x, AXIS, root, **options), from_root),
        "reduce": (lambda x: hccljax.reduce(x, AXIS, root=root, **options), lambda x: on_root(lax.psum(x, AXIS))),
        "scatter": (
            lambda x: hccljax.scatter(x, AXIS, root, **options),
            lambda x: from_root(x)[lax.axis_index(AXIS)],
        ),
        "gather": (lambda x: hccljax.gather(x, AXIS, root, **options), lambda x: on_root(lax.all_gather(x, AXIS))),
        "all_to_all": (
            lambda x: hccljax.all_to_all(x, AXIS, 0, 0, **options),
            lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True),
        ),
    }


@pytest.mark.filterwarnings("ignore:.* for a derivative")  # NHR broadcasts, and has no reduce to go back
@pytest.mark.parametrize("run", RUNS)
def test_values_and_gradients_under_a_batch_equal_the_twins(mode, run, transformations, data, same):
    p, options, operators = RUNS[run]
    pairs = collectives(p, options)

    def batched(collective, x):
        loss = transformations.squared(collective)
        return jax.vmap(jax.value_and_grad(loss, has_aux=True))(jnp.stack([x, x + lax.axis_index(AXIS)]))

    def both(x):
        return [{name: batched(pairs[name][k], x) for name in operators} for k in (0, 1)]

    same(*jax.jit(mode.map(both, p))(data((p, p, 1))))
