"""Pipeline: both tiers at the same time, blocks in rank order on any tiers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import hccljax
from hccljax.algorithm import hierarchy, registered, run
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule import count

OPERATORS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
PIPELINE, SUM = registered("pipeline"), reduction("sum")
TIERS = [(1,), (2,), (7,), (4, 2), (2, 4), (3, 5), (5, 3), (1, 6), (6, 1), (8, 4), (2, 2, 4), (3, 1, 2), (2, 3, 2, 2)]
MORE = [(p,) for p in (*range(1, 18), 31, 32, 33, 64)] + [(8, 8), (11, 3), (2, 16), (1, 33), (16, 2, 2)]


def counted(algorithm, operator, sizes, block=64):
    p = int(np.prod(sizes))
    shape = {"all_gather": (block,), "all_reduce": (p * block,)}.get(operator, (p, block))
    group, x = Group("r", levels=sizes), jax.ShapeDtypeStruct(shape, np.float32)
    return count(lambda row: run(algorithm, operator, row, group, SUM), x, axis_sizes={"r": p})


@pytest.mark.parametrize("sizes", [*TIERS, *MORE], ids=str)
def test_formulas_over_any_tiers(sizes):
    algorithm, p = PIPELINE.over(sizes), int(np.prod(sizes))
    for operator in OPERATORS:
        counts, nbytes = counted(algorithm, operator, sizes), 4 * p * 64
        assert counts.steps == algorithm.steps(operator, p, nbytes), operator
        assert counts.bytes_sent == algorithm.bytes_sent(operator, p, nbytes), operator


@pytest.mark.parametrize("servers", [2, 3, 5])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_mesh_costs_one_step_beside_the_ring(operator, servers):
    counts, phases = counted(PIPELINE, operator, (4, servers)), 2 if operator == "all_reduce" else 1
    assert counts.permutes == phases * (servers - 1)
    assert counts.exchanges == phases * servers
    # One after the other they would take 2 · servers - 1 steps a phase.
    assert counts.steps == phases * servers


def between_servers(algorithm, operator, sizes):
    """Bytes that a rank sends to other servers, the mesh's own taken off."""
    inside, servers = sizes
    counts, phases = counted(algorithm, operator, sizes), 2 if operator == "all_reduce" else 1
    return counts.bytes_sent - phases * servers * (inside - 1) * 256


def test_an_all_gather_sends_each_block_only_once_between_servers():
    sizes = (4, 3)
    assert between_servers(PIPELINE, "all_gather", sizes) == 2 * 256
    assert between_servers(PIPELINE, "reduce_scatter", sizes) == 2 * 256
    levels = hierarchy((registered("mesh"), registered("ring")), sizes)
    assert counted(levels, "all_gather", sizes).bytes_sent - 3 * 256 == 2 * 4 * 256


@pytest.mark.parametrize("sizes", [(6,), (4, 2), (2, 4), (3, 5), (1, 5), (2, 2, 3)], ids=str)
def test_blocks_are_in_rank_order_and_every_contribution_counts_once(sizes):
    p, group = int(np.prod(sizes)), Group("r", levels=sizes)
    x = np.random.default_rng(p).permutation(p * p * 3).reshape(p, p, 3).astype(np.int32)

    def fn(row):
        return [run(PIPELINE, operator, row, group, SUM) for operator in OPERATORS]

    gathered, scattered, reduced, exchanged = jax.jit(jax.vmap(fn, axis_name="r"))(x)
    np.testing.assert_array_equal(gathered, np.broadcast_to(x, (p, *x.shape)))
    np.testing.assert_array_equal(scattered, x.sum(0))
    np.testing.assert_array_equal(reduced, np.broadcast_to(x.sum(0), x.shape))
    np.testing.assert_array_equal(exchanged, np.swapaxes(x, 0, 1))


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_scalars_and_empty_blocks(shape):
    x = np.arange(36 * np.prod(shape, dtype=int), dtype=np.float32).reshape(6, 6, *shape)

    def fn(row):
        options = {"algorithm": "pipeline", "topology": "3x2"}
        return [
            hccljax.all_gather(row, "r", **options),
            hccljax.reduce_scatter(row, "r", **options),
            hccljax.all_to_all(row, "r", 0, 0, **options),
        ]

    gathered, scattered, exchanged = jax.jit(jax.vmap(fn, axis_name="r"))(x)
    np.testing.assert_array_equal(gathered, np.broadcast_to(x, (6, *x.shape)))
    np.testing.assert_array_equal(scattered, x.sum(0))
    np.testing.assert_array_equal(exchanged, np.swapaxes(x, 0, 1))


def test_contributions_meet_in_the_order_that_the_record_states():
    inside, servers, p = 2, 3, 6
    x = np.random.default_rng(0).standard_normal((p, p, 5)).astype(np.float32)
    group = Group("r", levels=(inside, servers))
    out = jax.jit(jax.vmap(lambda row: run(PIPELINE, "reduce_scatter", row, group, SUM), axis_name="r"))(x)
    sums = x.reshape(servers, inside, p, 5)[:, 0] + x.reshape(servers, inside, p, 5)[:, 1]
    for r in range(p):
        b = r // inside
        total = sums[(b + 1) % servers, r]
        for k in range(2, servers + 1):
            total = total + sums[(b + k) % servers, r]
        assert np.asarray(out[r]).tobytes() == total.tobytes()


def test_communicators_with_tiers_of_their_own():
    groups = [[0, 2, 4, 6], [7, 1, 5, 3]]
    x = np.arange(8 * 3, dtype=np.int32).reshape(8, 3)
    group = Group("r", groups, levels=(2, 2))
    out = jax.jit(jax.vmap(lambda row: hccljax.all_gather(row, group, algorithm="pipeline"), axis_name="r"))(x)
    for members in groups:
        np.testing.assert_array_equal(out[np.array(members)], np.broadcast_to(x[members], (4, 4, 3)))


def test_a_topology_of_one_tier_beats_the_tiers_of_the_group():
    x, group = jax.ShapeDtypeStruct((8,), np.float32), Group("r", levels=(2, 4))

    def steps(**options):
        fn = lambda row: hccljax.all_gather(row, group, algorithm="pipeline", **options)  # noqa: E731
        return count(fn, x, axis_sizes={"r": 8}).steps

    assert (steps(), steps(topology="8"), steps(topology="2x4")) == (4, 1, 2)


def test_accumulating_in_a_wider_dtype_gathers_by_the_pipeline():
    decision = hccljax.explain("all_reduce", 64, 8, "4x2", "pipeline", accumulate_dtype="float32")
    assert decision.steps == 1 + 4
    x = np.full((8, 5), 0.1, np.float16)

    def fn(row):
        return hccljax.all_reduce(row, "r", algorithm="pipeline", topology="4x2", accumulate_dtype="float32")

    wanted = np.float16(np.float32(np.float16(0.1)) * 8)
    np.testing.assert_array_equal(jax.jit(jax.vmap(fn, axis_name="r"))(x), np.full((8, 5), wanted))


def test_the_gradient_goes_by_the_pipeline_too():
    x = jax.ShapeDtypeStruct((8,), np.float32)

    def fn(row):
        gathered = lambda y: (hccljax.all_gather(y, "r", algorithm="pipeline", topology="4x2") ** 2).sum()  # noqa: E731
        return jax.grad(gathered)(row)

    counts = count(fn, x, axis_sizes={"r": 8})
    assert (counts.steps, counts.permutes) == (4 + 4, 3 + 3)


def test_it_is_no_algorithm_for_one_level():
    with pytest.raises(hccljax.ArgumentError, match="has no kernel"):
        hierarchy((PIPELINE, registered("ring")), (4, 2))
