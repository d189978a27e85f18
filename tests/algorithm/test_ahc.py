"""AHC: servers of unequal size, every contribution once, blocks in rank order, and just the bytes its formula says."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccljax
from hccljax.algorithm import registered, run
from hccljax.algorithm.ahc_plan import WAVES, Servers
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule import count

OPERATORS = ("all_gather", "reduce_scatter", "all_reduce")
AHC, SUM = registered("AHC"), reduction("sum")
SERVERS = [(1,), (6,), (5, 3), (2, 3, 4), (4, 2), (1, 3), (4, 4), (2, 2, 2, 2), (1, 1, 1), (3, 1, 2, 2)]
MANY_WAVES = [(3, 5, 1, 2), (7, 9), (1, 2, 3, 4, 5), (9, 10, 11, 13), (1, 20), (12, 13), (8, 7, 8, 6)]


def on_ranks(fn, x):
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(fn, axis_name="r"))(x))


@pytest.mark.parametrize("sizes", [(1,), (3, 2), (1, 2, 3), (1, 3), (2, 2), (1, 1, 2, 2)], ids=str)
def test_blocks_are_in_rank_order_and_every_contribution_counts_once(sizes):
    algorithm, p = AHC.over_servers(sizes), sum(sizes)
    x = np.random.default_rng(p).permutation(p * p * 3).reshape(p, p, 3).astype(np.int32)
    fn = lambda row: [run(algorithm, operator, row, Group("r"), SUM) for operator in OPERATORS]  # noqa: E731
    gathered, scattered, reduced = on_ranks(fn, x)
    np.testing.assert_array_equal(gathered, np.broadcast_to(x, (p, *x.shape)))
    np.testing.assert_array_equal(scattered, x.sum(0))
    np.testing.assert_array_equal(reduced, np.broadcast_to(x.sum(0), x.shape))


@settings(max_examples=4, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    operator=st.sampled_from(OPERATORS),
    size=st.integers(0, 40),
    op=st.sampled_from(["sum", "max", "min", "prod"]),
)
def test_any_servers_and_any_size(sizes, operator, size, op):
    algorithm, p = AHC.over_servers(tuple(sizes)), sum(sizes)
    shape = (p, p, size) if operator == "reduce_scatter" else (p, size)
    x = np.random.default_rng(size).choice([-2, -1, 1, 3], shape).astype(np.int32)
    found = on_ranks(lambda row: run(algorithm, operator, row, Group("r"), reduction(op)), x)
    total = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[op].reduce(x, dtype=np.int32)
    expected = {"reduce_scatter": total, "all_reduce": np.broadcast_to(total, x.shape)}.get(operator)
    np.testing.assert_array_equal(found, np.broadcast_to(x, (p, *x.shape)) if expected is None else expected)


def counted(algorithm, operator, p, block):
    shape = {"all_gather": (block,), "all_reduce": (p * block,)}.get(operator, (p, block))
    x = jax.ShapeDtypeStruct(shape, np.float32)
    return count(lambda row: run(algorithm, operator, row, Group("r"), SUM), x, axis_sizes={"r": p})


@pytest.mark.parametrize("sizes", [*SERVERS, *MANY_WAVES], ids=str)
def test_formulas(sizes):
    algorithm, p, servers = AHC.over_servers(sizes), sum(sizes), Servers(sizes)
    # A block that cuts evenly into the parts of every server, as the whole message does into pieces and G-ths of them.
    block = math.lcm(servers.pieces, *map(servers.parts, sizes)) * len(sizes)
    for operator in OPERATORS:
        counts, nbytes = counted(algorithm, operator, p, block), 4 * p * block
        assert counts.steps == algorithm.cost(operator, p, nbytes).steps, operator
        assert counts.bytes_sent == algorithm.cost(operator, p, nbytes).bytes_sent, operator
        assert counts.exchanges == 0


@pytest.mark.parametrize("tiers", [(4, 2), (2, 2, 3), (5,), (1, 4)], ids=str)
def test_equal_tiers_are_servers_of_their_level_0(tiers):
    assert AHC.over(tiers) is AHC.over_servers(tiers[:1] * math.prod(tiers[1:]))


def test_equal_servers_cost_what_their_hierarchy_does():
    by_levels = hccljax.explain("all_reduce", 1 << 22, 8, "2x4", "level0:NHR;level1:ring")
    decision = hccljax.explain("all_reduce", 1 << 22, 8, "2x4", "AHC")
    assert (decision.steps, decision.bytes_sent) == (by_levels.steps, by_levels.bytes_sent)


def test_a_server_sends_its_message_between_servers_about_once():
    n = 15 * 2 * 1000
    # A rank of the smaller server sends 2 · (1/2) · n/3 bytes; a flat ring sends 2 · 7/8 · n over one link.
    servers = Servers((5, 3))
    assert (servers.pieces, servers.waves, [servers.rows(m) for m in (5, 3)]) == (15, 5, [3, 5])
    ranks = [2 * servers.rows(m) * ((m - 1) * n // 15 + n // 30) for m in (5, 3)]
    assert AHC.over_servers((5, 3)).bytes_sent("all_reduce", 8, n) == max(ranks)
    assert 2 * servers.rows(3) * n // 30 == n // 3


@pytest.mark.parametrize("sizes", [*SERVERS, *MANY_WAVES], ids=str)
def test_every_piece_has_one_holder_in_each_server_and_one_wave(sizes):
    servers, p = Servers(sizes), sum(sizes)
    group = Group("r", [list(range(p))])
    seen = []
    for t in range(servers.waves):
        members = servers.peers(t, group).layout.members
        assert len(np.unique(members)) == members.size  # a rank is in one communicator of a wave at most
        pieces = np.arange(t * min(sizes), (t + 1) * min(sizes))
        np.testing.assert_array_equal(members - servers.starts, pieces[:, None] % np.array(sizes))
        seen += list(pieces)
    assert seen == list(range(servers.pieces))
    assert servers.waves <= max(WAVES, -(-max(sizes) // min(sizes)))
    assert all(servers.parts(m) >= 1 for m in sizes)


@pytest.mark.parametrize("sizes", [(5, 3), (2, 3, 4), (3, 5, 1, 2), (1, 20)], ids=str)
def test_the_tables_send_every_piece_there_and_back(sizes):
    servers = Servers(sizes)
    for m in servers.classes:
        rows, waves = servers.row_of_wave(m), servers.wave_of_row(m)
        for rank in np.flatnonzero(servers.size_of == m):
            for row in range(servers.parts(m)):
                assert rows[rank, waves[rank, row]] == row


def test_nothing_but_the_waves_crosses_servers():
    sizes, block = (5, 3), 30
    p, crossing = 8, []

    def watch(x):
        return run(AHC.over_servers(sizes), "all_reduce", x, Group("r"), SUM)

    jaxpr = jax.make_jaxpr(watch, axis_env=[("r", p)])(jnp.zeros(block))

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "hccl_permute":
                pairs = equation.params["layout"].expand(equation.params["pattern"])
                sides = {(s < 5) != (d < 5) for s, d in pairs}
                assert len(sides) == 1
                if sides == {True}:
                    crossing.append((equation.invars[0].aval.size, len(pairs)))
            for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(jaxpr.jaxpr)
    # 5 waves of 3 pieces; each piece of 2 elements goes there and back by halves, in both directions.
    assert crossing == [(1, 6)] * 10


# Through the public operators


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "complex64"])
def test_types(dtype):
    x = jnp.asarray(np.random.default_rng(0).integers(-3, 4, (3, 5))).astype(dtype)
    options = {"algorithm": "AHC", "topology": "1+2"}
    total, ring = on_ranks(
        lambda row: (hccljax.all_reduce(row, "r", **options), hccljax.all_reduce(row, "r", algorithm="ring")), x
    )
    assert total.dtype == ring.dtype
    np.testing.assert_array_equal(total.astype("complex64"), ring.astype("complex64"))


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_scalars_and_empty_blocks(shape):
    x = np.arange(25 * np.prod(shape, dtype=int), dtype=np.float32).reshape(5, 5, *shape)
    options = {"algorithm": "AHC", "topology": "2+3"}
    gathered, scattered, reduced = on_ranks(
        lambda row: (
            hccljax.all_gather(row, "r", **options),
            hccljax.reduce_scatter(row, "r", **options),
            hccljax.all_reduce(row[0], "r", **options),
        ),
        x,
    )
    np.testing.assert_array_equal(gathered, np.broadcast_to(x, (5, *x.shape)))
    np.testing.assert_array_equal(scattered, x.sum(0))
    np.testing.assert_array_equal(reduced, np.broadcast_to(x[:, 0].sum(0), x[:, 0].shape))


def test_gradients_are_those_of_psum():
    x = np.random.default_rng(2).integers(-3, 4, (5, 4)).astype(np.float32)
    options = {"algorithm": "AHC", "topology": "2+3"}
    weights = np.arange(1, 6, dtype=np.float32)[:, None]

    def derivatives(collective):
        loss = lambda x: jnp.sum(jax.vmap(collective, axis_name="r")(x * x) ** 2 * weights)  # noqa: E731
        return jax.jit(lambda x: (jax.grad(loss)(x), jax.jvp(loss, (x,), (x + 1,))[1]))(x)

    ours = derivatives(lambda x: hccljax.all_reduce(x, "r", **options))
    for found, expected in zip(ours, derivatives(lambda x: jax.lax.psum(x, "r")), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_servers_inside_communicators():
    groups = [[0, 2, 4, 6], [7, 1, 5, 3]]
    x = np.arange(8 * 3, dtype=np.int32).reshape(8, 3)
    options = {"algorithm": "AHC", "topology": "3+1"}
    out = on_ranks(lambda row: hccljax.all_gather(row, Group("r", groups), **options), x)
    for members in groups:
        np.testing.assert_array_equal(out[np.array(members)], np.broadcast_to(x[members], (4, 4, 3)))


def test_a_communicator_and_a_wider_sum():
    comm = hccljax.Communicator(5, executor="virtual", topology="2+3", algorithm="AHC")
    assert repr(comm) == "Communicator(5 ranks, topology 2+3, algorithm AHC, virtual)"
    x = jnp.ones((5, 3), jnp.bfloat16).at[0].set(512.0)
    np.testing.assert_array_equal(comm.all_reduce(x, accumulate_dtype="float32").astype(np.float32), 516.0)
    np.testing.assert_array_equal(comm.all_reduce(jnp.arange(5.0)), 10.0)
