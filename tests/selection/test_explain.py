"""What explain and the entry log say, and that what they say is what runs."""

import inspect
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import hccljax
from hccljax import FallbackWarning, Group, Topology
from hccljax.algorithm.base import OPERATORS
from hccljax.schedule.counts import count
from hccljax.selection import notice

# The texts

TEXTS = {
    ("all_reduce", 1024, 8): (
        "all_reduce of 1024 bytes, 8 ranks: ring",
        "  why:   all_reduce of up to 8 ranks goes by ring (asked by: policy ranks)",
        "  cost:  14 steps; the busiest rank sends 1792 bytes",
    ),
    ("all_reduce", 1 << 20, 32): (
        "all_reduce of 1048576 bytes, 32 ranks: double_tree",
        "  why:   all_reduce of 9 to 64 ranks goes by tree; at least 524288 bytes that is double_tree"
        " (asked by: policy ranks)",
        "  cost:  10 steps; the busiest rank sends 2097152 bytes",
    ),
    ("all_gather", 4096, 128): (
        "all_gather of 4096 bytes, 128 ranks in tiers of 16x8: level0:ring;level1:NHR",
        "  why:   all_gather of more than 64 ranks is hierarchical; no topology was given, so servers of 8 are assumed"
        " (asked by: policy ranks)",
        "  cost:  11 steps; the busiest rank sends 4064 bytes",
    ),
    ("broadcast", 4096, 8, "2x4", "level0:ring;level1:tree"): (
        "broadcast of 4096 bytes, 8 ranks in tiers of 2x4: level0:ring;level1:tree",
        "  why:   algorithm='level0:ring;level1:tree' of the call chooses an algorithm for each level (asked by: call)",
        "  cost:  7 steps; the busiest rank sends 7168 bytes",
    ),
    ("reduce", 64, 1): (
        "reduce of 64 bytes, 1 rank: tree",
        "  why:   one rank: nothing is sent (reduce of up to 8 ranks goes by tree below 262144 bytes)"
        " (asked by: policy ranks)",
        "  cost:  0 steps; the busiest rank sends 0 bytes",
    ),
}


@pytest.mark.parametrize("arguments", TEXTS, ids=["ring", "double-tree", "assumed-servers", "levels", "alone"])
def test_a_decision_prints_what_runs_why_and_at_what_cost(arguments):
    text = str(hccljax.explain(*arguments)).splitlines()
    assert text[:3] == list(TEXTS[arguments])
    assert len(text) <= 24


def test_a_decision_prints_what_was_replaced():
    with pytest.warns(FallbackWarning, match="all_to_all of 8 ranks: 'ring' has no all_to_all"):
        decision = hccljax.explain("all_to_all", 64, 8, algorithm="ring")
    assert (
        str(decision).splitlines()[:4]
        == inspect.cleandoc(
            """
        all_to_all of 64 bytes, 8 ranks: pairwise
          why:   algorithm='ring' of the call cannot be had (asked by: call)
          cost:  7 steps; the busiest rank sends 56 bytes
          note:  'ring' has no all_to_all; 'pairwise' runs instead
        """
        ).splitlines()
    )


def test_explain_reads_hccl_algo(monkeypatch):
    monkeypatch.setenv("HCCL_ALGO", "allreduce=tree")
    decision = hccljax.explain("all_reduce", 64, 8)
    assert (decision.algorithm, decision.asked_by) == ("tree", "HCCL_ALGO")
    assert decision.reason == "HCCL_ALGO=allreduce=tree names 'tree'"
    assert hccljax.explain("all_gather", 64, 8).asked_by == "policy ranks"


def test_explain_takes_numpy_ints_and_a_topology():
    decision = hccljax.explain("all_reduce", np.int64(64), np.int32(128), Topology((16, 8)))
    assert decision.tiers == (16, 8)
    assert decision == hccljax.explain("all_reduce", 64, 128, "8x16")


# Groups


def test_explain_counts_the_ranks_of_one_communicator_of_a_group():
    group = Group("rank", np.arange(32).reshape(2, 16))
    assert hccljax.explain("all_reduce", 64, group) == hccljax.explain("all_reduce", 64, 16)


def test_explain_takes_the_tiers_of_a_group_as_the_collectives_do():
    group = Group("rank", [range(72)], levels=(12, 6))
    assert hccljax.explain("all_reduce", 64, group) == hccljax.explain("all_reduce", 64, 72, "6x12")
    assert hccljax.explain("all_reduce", 64, group, "2x36") == hccljax.explain("all_reduce", 64, 72, "2x36")


def test_explain_sees_the_axis_inside_a_mapped_function():
    seen = []

    def body(x):
        seen.append(hccljax.explain("all_reduce", 64, Group(("node", "rank"))))
        return x

    jax.eval_shape(jax.vmap(jax.vmap(body, axis_name="rank"), axis_name="node"), jnp.zeros((4, 8)))
    assert seen == [hccljax.explain("all_reduce", 64, 32)]


def test_a_communicator_explains_with_its_own_settings(monkeypatch):
    comm = hccljax.Communicator(8, executor="virtual", algorithm="hierarchical", topology="2x4")
    decision = comm.explain("all_reduce", 64)
    assert (decision.algorithm, decision.tiers, decision.asked_by) == (
        "level0:ring;level1:tree",
        (4, 2),
        "communicator",
    )
    assert comm.explain("all_reduce", 64, algorithm="mesh").asked_by == "call"
    halves = comm.split([range(4), range(4, 8)])
    with pytest.warns(FallbackWarning, match="a hierarchy has no effect on 4 ranks in one flat server"):
        half = halves.explain("all_gather", 64)
    assert (half.ranks, half.algorithm) == (4, "ring")
    monkeypatch.setenv("HCCL_ALGO", "mesh")
    assert comm.explain("all_reduce", 64).asked_by == "communicator"
    assert hccljax.Communicator(8, executor="virtual").explain("all_reduce", 64).algorithm == "mesh"


# What is said is what runs

CALLS = {
    "all_reduce": lambda x, **how: hccljax.all_reduce(x, "rank", **how),
    "all_gather": lambda x, **how: hccljax.all_gather(x, "rank", tiled=True, **how),
    "reduce_scatter": lambda x, **how: hccljax.reduce_scatter(x, "rank", tiled=True, **how),
    "broadcast": lambda x, **how: hccljax.broadcast(x, "rank", **how),
    "reduce": lambda x, **how: hccljax.reduce(x, "rank", **how),
    "scatter": lambda x, **how: hccljax.scatter(x, "rank", tiled=True, **how),
    "gather": lambda x, **how: hccljax.gather(x, "rank", tiled=True, **how),
    "all_to_all": lambda x, **how: hccljax.all_to_all(x, "rank", 0, 0, tiled=True, **how),
}


def agrees(operator, p, elements, **how):
    """The Decision, once what it says is what one counts in the function that runs."""
    decision = hccljax.explain(operator, elements * 4, p, **how)
    # The message of a gather is what all ranks hold together.
    one = elements // p if operator in ("all_gather", "gather") else elements
    call = CALLS[operator]
    counted = count(lambda x: call(x, **how), jax.ShapeDtypeStruct((one,), "float32"), axis_sizes={"rank": p})
    assert (counted.steps, counted.bytes_sent) == (decision.steps, decision.bytes_sent)
    return decision


@pytest.mark.parametrize("p", [1, 2, 6, 8, 12, 64, 65, 72])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_rule_runs_what_explain_says(operator, p):
    agrees(operator, p, 64 * p)


@pytest.mark.parametrize("operator", ["broadcast", "reduce", "all_reduce"])
@pytest.mark.parametrize(
    ("p", "elements"), [(8, 65536), (8, 65528), (32, 262144), (16, 131072), (16, 131056), (72, 1048608)]
)
def test_the_thresholds_of_the_rule_are_those_of_what_runs(operator, p, elements):
    agrees(operator, p, elements)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "double_tree", "H-D_R", "mesh", "hierarchical", "level1:ring"])
def test_what_is_asked_for_runs_as_explain_says(algorithm):
    assert agrees("all_reduce", 8, 4096, algorithm=algorithm, topology="2x4").asked_by == "call"


def test_hccl_algo_runs_as_explain_says(monkeypatch):
    for text in ("tree", "H-D_R", "allreduce=mesh", "level0:ring;level1:tree"):
        monkeypatch.setenv("HCCL_ALGO", text)
        assert agrees("all_reduce", 8, 4096, topology="2x4").asked_by == "HCCL_ALGO"


@pytest.mark.parametrize(
    ("algorithm", "permutes", "reduces"), [("ring", 2, 0), ("tree", 6, 0), ("H-D_R", 6, 0), ("native", 0, 1)]
)
def test_the_program_has_the_permutes_of_the_algorithm_and_no_collective_of_xlas(algorithm, permutes, reduces):
    # The ring has two loops with one permute each; the other two unroll log2(8) steps in both directions.
    mesh = jax.make_mesh((8,), ("rank",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("rank")
    body = lambda x: hccljax.all_reduce(x, "rank", algorithm=algorithm)  # noqa: E731
    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=PartitionSpec()))
    text = program.lower(jnp.zeros(64)).as_text()
    assert text.count("stablehlo.collective_permute") == permutes
    assert text.count("stablehlo.all_reduce") == reduces


# The entry log


@pytest.fixture
def entry_log(monkeypatch, caplog):
    """The lines of the log, with HCCL_ENTRY_LOG_ENABLE=1 and nothing logged so far."""
    monkeypatch.setenv("HCCL_ENTRY_LOG_ENABLE", "1")
    notice._log.cache_clear()
    caplog.set_level(logging.INFO, "hccljax")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "hccljax"]


def test_the_entry_log_has_one_line_for_each_new_decision(entry_log):
    mapped = jax.vmap(lambda x: hccljax.all_reduce(x, "rank"), axis_name="rank")
    for _ in range(3):
        jax.eval_shape(mapped, jnp.zeros((8, 4)))
    assert entry_log() == [
        "all_reduce of 16 bytes, 8 ranks: ring"
        " | why:   all_reduce of up to 8 ranks goes by ring (asked by: policy ranks)"
        " | cost:  14 steps; the busiest rank sends 28 bytes, padding not counted"
    ]
    jax.eval_shape(mapped, jnp.zeros((8, 5)))
    jax.eval_shape(mapped, jnp.zeros((4, 4)))
    assert len(entry_log()) == 3


def test_the_entry_log_names_the_communicators_choice(entry_log):
    hccljax.Communicator(4, executor="virtual", algorithm="tree").all_reduce(jnp.zeros((4, 3)))
    (line,) = entry_log()
    assert line.startswith("all_reduce of 12 bytes, 4 ranks: tree")
    assert "(asked by: communicator)" in line


def test_what_is_only_explained_is_not_logged(entry_log):
    hccljax.explain("all_reduce", 64, 8)
    assert entry_log() == []


def test_the_entry_log_tells_of_fallbacks(entry_log):
    with pytest.warns(FallbackWarning):
        hccljax.Communicator(8, executor="virtual").all_gather(jnp.zeros(8), algorithm="tree")
    (line,) = entry_log()
    assert line.endswith("| note:  'tree' has no all_gather; 'H-D_R' runs instead")


@pytest.mark.parametrize("value", [None, "0", ""])
def test_without_the_variable_nothing_is_logged(entry_log, monkeypatch, value):
    if value is None:
        monkeypatch.delenv("HCCL_ENTRY_LOG_ENABLE")
    else:
        monkeypatch.setenv("HCCL_ENTRY_LOG_ENABLE", value)
    hccljax.Communicator(4, executor="virtual").all_reduce(jnp.zeros((4, 3)))
    assert entry_log() == []


# Where a warning points


def test_a_fallback_points_at_the_line_that_asked():
    with pytest.warns(FallbackWarning) as caught:
        jax.eval_shape(
            jax.vmap(lambda x: hccljax.all_gather(x, "rank", algorithm="tree"), axis_name="rank"), jnp.ones(4)
        )
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(FallbackWarning) as caught:
        hccljax.Communicator(4, executor="virtual", algorithm="tree").all_gather(jnp.ones(4))
    assert [warning.filename for warning in caught] == [__file__]
