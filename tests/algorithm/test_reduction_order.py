"""The order in which contributions meet: seen in the kernels, said in the documents, and one for all under strict."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.algorithm import registered

REDUCING = [
    name
    for name in hccljax.algorithms()
    if name not in ("hierarchical", "native") and registered(name).supports("all_reduce")
]


def contributors(order):
    """The ranks in an order, from left to right."""
    return [order] if isinstance(order, int) else [rank for side in order for rank in contributors(side)]


def added(order, values):
    """The float32 sum of values in that order."""
    return values[order] if isinstance(order, int) else np.float32(added(order[0], values) + added(order[1], values))


def test_the_orders_of_three_ranks():
    assert registered("ring").reduction_order(3) == (((1, 2), 0), ((2, 0), 1), ((0, 1), 2))
    assert registered("tree").reduction_order(3) == (((0, 1), 2),) * 3
    assert registered("mesh").reduction_order(3) == (((0, 1), 2),) * 3
    assert registered("star").reduction_order(3) == (((0, 1), 2),) * 3
    assert registered("mesh").reduction_order(1) == (0,)


@pytest.mark.parametrize("p", [3, 8])
@pytest.mark.parametrize("name", REDUCING)
def test_every_contribution_is_in_it_once(name, p):
    for order in registered(name).reduction_order(p):
        assert sorted(contributors(order)) == list(range(p))


@pytest.mark.parametrize("name", REDUCING)
def test_it_is_the_order_of_the_bits(name):
    p = 6
    x = np.random.default_rng(1).standard_normal((p, p)).astype(np.float32)
    out = jax.jit(jax.vmap(lambda x: hccljax.all_reduce(x, "r", algorithm=name), axis_name="r"))(x)
    wanted = [added(order, x[:, part]) for part, order in enumerate(registered(name).reduction_order(p))]
    np.testing.assert_array_equal(out[0], np.array(wanted))


def test_long_messages_can_have_another_order():
    short, long = (registered("NHR").reduction_order(4, nbytes) for nbytes in (64, 1 << 20))
    assert len(set(short)) == 1
    assert len(set(long)) == 4


@pytest.mark.parametrize("name", ["native", "pairwise", "bruck"])
def test_what_shows_no_order_says_so(name):
    with pytest.raises(hccljax.UnsupportedError, match=f"{name!r} has no reduction_order"):
        registered(name).reduction_order(4)


def test_an_own_algorithm_shows_its_order():
    def backwards(x, group, op):
        parts = group.mesh_gather(x)
        total = parts[-1]
        for rank in reversed(range(group.size - 1)):
            total = op(total, parts[rank])
        return total

    own = hccljax.Algorithm("own", "here", lambda *_: 1, lambda *_: 0, all_reduce=backwards)
    assert own.reduction_order(3) == (((2, 1), 0),) * 3


# HCCL_DETERMINISTIC=strict


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("HCCL_DETERMINISTIC", "strict")


def in_rank_order(x):
    total = x[0]
    for row in x[1:]:
        total = total + row
    return total


ASKED = [
    *({"algorithm": name} for name in [*REDUCING, "native"] if name != "pipeline"),
    {"algorithm": "level0:ring;level1:tree", "topology": "2x4"},
    {"algorithm": "level0:mesh;level1:NHR", "topology": "4x2"},
    {},
]


@pytest.mark.usefixtures("usual_compiler", "strict")
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_strict_has_the_same_bits_whatever_the_algorithm_the_grouping_and_the_length(dtype):
    x = np.random.default_rng(2).standard_normal((8, 1003)).astype(dtype)
    wanted = in_rank_order(x)

    def one_rank(x):
        whole = [hccljax.all_reduce(x, "r", **asked) for asked in ASKED]
        parts = [hccljax.all_reduce(x[start:stop], "r", **ASKED[0]) for start, stop in ((0, 1), (1, 17), (17, 1003))]
        return [*whole, jnp.concatenate(parts)]

    for out in jax.jit(jax.vmap(one_rank, axis_name="r"))(x):
        assert np.asarray(out[0]).tobytes() == wanted.tobytes()


@pytest.mark.usefixtures("usual_compiler", "strict")
def test_strict_has_the_same_bits_on_devices_and_for_every_reduction():
    x = np.random.default_rng(3).standard_normal((8, 16)).astype(np.float32)
    wanted = in_rank_order(x)
    for executor in ("devices", "virtual"):
        comm = hccljax.Communicator(8, executor=executor, algorithm="H-D_R")
        assert np.asarray(comm.all_reduce(x)[5]).tobytes() == wanted.tobytes()
        assert np.asarray(comm.reduce(x, root=3)[3]).tobytes() == wanted.tobytes()
        blocks = comm.reduce_scatter(x, tiled=True)
        assert np.asarray(blocks).tobytes() == wanted.tobytes()


@pytest.mark.usefixtures("strict")
def test_strict_is_said_by_the_decision():
    decision = hccljax.explain("all_reduce", 4096, 8, algorithm="tree")
    assert decision.algorithm == "mesh in rank order, then mesh"
    assert decision.reason.startswith("HCCL_DETERMINISTIC=strict: a mesh exchange brings every contribution")
    assert hccljax.explain("all_gather", 4096, 8, algorithm="ring").algorithm == "ring"
