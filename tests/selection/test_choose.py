"""Which algorithm runs: the published rule row by row, who is obeyed first, and what replaces what cannot run."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccljax
from hccljax import ArgumentError, FallbackWarning, Topology, UnsupportedError
from hccljax.algorithm import algorithms, registered
from hccljax.algorithm.base import OPERATORS
from hccljax.selection import choose, ranks
from hccljax.selection.choice import OfCommunicator
from hccljax.selection.notice import announce
from hccljax.selection.settings import Settings
from hccljax.selection.substitute import ALIASES
from hccljax.topology import as_topology

TREE_LIKE = ("all_reduce", "broadcast", "reduce")
BLOCKWISE = ("reduce_scatter", "all_gather", "scatter", "gather")
BIG, RING_FROM = ranks.DOUBLE_TREE_BYTES, ranks.RING_BYTES


def decided(operator, p, nbytes=64, topology=None, **asked):
    """The Decision under an empty environment, unless ``algo`` is given as HCCL_ALGO; fallbacks are errors."""
    environment = Settings(asked.pop("algo", ""))
    communicator = asked.pop("communicator", None)
    if communicator is not None:  # as the communicator passes it on, where the call asks for nothing
        asked.setdefault("algorithm", OfCommunicator(communicator))
    decision = choose(operator, nbytes, p, topology=as_topology(topology), settings=environment, **asked)
    announce(decision, environment)
    return decision


def fallen_back(operator, p, nbytes=64, topology=None, **asked):
    with pytest.warns(FallbackWarning) as caught:
        decision = decided(operator, p, nbytes, topology, **asked)
    assert len(caught) == 1
    assert decision.fallback
    assert str(caught[0].message) == f"{operator} of {p} ranks: {decision.fallback}"
    return decision


# The rule by the number of ranks

ROWS = [
    # operators, ranks, bytes, the algorithm in one tier
    (("all_reduce",), (1, 2, 5, 8), (0, 64, BIG), "ring"),
    (("broadcast", "reduce"), (1, 2, 5, 8), (0, 64, RING_FROM - 1), "tree"),
    (("broadcast", "reduce"), (1, 2, 5, 8), (RING_FROM, BIG, 8 * BIG), "ring"),
    (BLOCKWISE, (1, 2, 5, 8), (0, 64, BIG), "ring"),
    (TREE_LIKE, (9, 33, 64), (0, 64, RING_FROM, BIG - 1), "tree"),
    (TREE_LIKE, (9, 33, 64), (BIG, 8 * BIG), "double_tree"),
    (("reduce_scatter", "all_gather", "scatter"), (9, 33, 64), (0, 64, BIG), "NHR"),
    (("gather",), (9, 33, 64), (0, 64, BIG), "H-D_R"),
    # more than 64 ranks that do not make servers of 8
    (TREE_LIKE, (65, 100, 1021), (0, BIG - 1), "tree"),
    (TREE_LIKE, (65, 100, 1021), (BIG,), "double_tree"),
    (("reduce_scatter", "all_gather", "scatter"), (65, 100, 1021), (0, BIG), "NHR"),
    (("gather",), (65, 100, 1021), (0, BIG), "H-D_R"),
    (("all_to_all",), (1, 2, 8, 9, 64, 65, 100), (0, 64, BIG), "pairwise"),
]
FLAT = [
    (operator, p, nbytes, name)
    for row in ROWS
    for operator in row[0]
    for p in row[1]
    for nbytes in row[2]
    for name in row[3:]
]


@pytest.mark.parametrize(("operator", "p", "nbytes", "name"), FLAT)
def test_one_tier_follows_the_table(operator, p, nbytes, name):
    decision = decided(operator, p, nbytes)
    assert decision.algorithm == name
    assert decision.record is registered(name)
    assert decision.tiers is None
    assert decision.fallback is None
    assert decision.asked_by == "policy ranks"
    assert (decision.operator, decision.ranks, decision.nbytes) == (operator, p, nbytes)


@pytest.mark.parametrize(
    ("p", "topology"), [(8, "2x4"), (8, "4x2"), (6, "3x2"), (16, "2x8"), (64, "8x8"), (32, "2x2x8"), (72, "72")]
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_up_to_64_ranks_servers_make_no_difference(operator, p, topology):
    # One tier of more than 64 ranks is one flat server too.
    flat = decided(operator, p, topology=str(p))
    assert decided(operator, p, topology=topology) == flat
    assert p == 72 or flat == decided(operator, p)


@pytest.mark.parametrize(("nbytes", "above"), [(64, "tree"), (8 * BIG - 8, "tree"), (8 * BIG, "double_tree")])
@pytest.mark.parametrize("operator", TREE_LIKE)
def test_more_than_64_ranks_go_by_ring_in_servers_and_tree_between_them(operator, nbytes, above):
    # Between servers of 8 an eighth of the message travels: the size that decides between the two trees.
    decision = decided(operator, 128, nbytes)
    assert decision.algorithm == f"level0:ring;level1:{above}"
    assert decision.tiers == (8, 16)
    assert decision.asked_by == "policy ranks"
    assert "servers of 8 are assumed" in decision.reason


@pytest.mark.parametrize("operator", BLOCKWISE)
def test_more_than_64_ranks_go_by_ring_in_servers_and_strides_between_them(operator):
    assert decided(operator, 128).algorithm == f"level0:ring;level1:{'H-D_R' if operator == 'gather' else 'NHR'}"
    assert decided(operator, 128).tiers == (8, 16)


def test_more_than_64_ranks_exchange_pairwise_on_both_levels():
    assert decided("all_to_all", 128).algorithm == "level0:pairwise;level1:pairwise"


@pytest.mark.parametrize(
    ("p", "topology", "tiers"), [(96, "6x16", (16, 6)), (65, "5x13", (13, 5)), (128, "2x8x8", (8, 8, 2))]
)
def test_more_than_64_ranks_take_their_servers_from_the_topology(p, topology, tiers):
    decision = decided("all_reduce", p, 64, topology)
    assert decision.tiers == tiers
    above = [f"level{k}:tree" for k in range(1, len(tiers))]
    assert decision.algorithm == ";".join(["level0:ring", *above])
    assert "assumed" not in decision.reason


@settings(deadline=None)  # the first double tree of a size takes long to plan
@given(p=st.integers(1, 5000), nbytes=st.integers(0, 2**40), operator=st.sampled_from(OPERATORS))
def test_any_group_gets_an_algorithm_that_has_the_operator(p, nbytes, operator):
    decision = decided(operator, p, nbytes)
    assert decision.record.supports(operator)
    assert decision.fallback is None
    assert (decision.tiers is not None) == (p > 64 and p % 8 == 0)
    assert decision.steps >= (p > 1)
    assert decision.bytes_sent >= (p > 1 and nbytes > 0)


def test_one_rank_sends_nothing():
    for operator in OPERATORS:
        decision = decided(operator, 1, 64)
        assert (decision.steps, decision.bytes_sent) == (0, 0)
        assert decision.reason.startswith("one rank: nothing is sent")


# Who is obeyed


def test_the_call_beats_the_communicator_which_beats_hccl_algo_which_beats_the_rule():
    asked = {"algorithm": "mesh", "communicator": "H-D_R", "algo": "tree"}
    assert decided("all_reduce", 8, **asked).algorithm == "mesh"
    assert decided("all_reduce", 8, **asked).asked_by == "call"
    del asked["algorithm"]
    assert decided("all_reduce", 8, **asked).algorithm == "H-D_R"
    assert decided("all_reduce", 8, **asked).asked_by == "communicator"
    del asked["communicator"]
    assert decided("all_reduce", 8, **asked).algorithm == "tree"
    assert decided("all_reduce", 8, **asked).asked_by == "HCCL_ALGO"
    assert decided("all_reduce", 8).algorithm == "ring"
    assert decided("all_reduce", 8).asked_by == "policy ranks"


def test_the_environment_is_read_at_each_choice(monkeypatch):
    assert choose("all_reduce", 64, 8).algorithm == "ring"
    monkeypatch.setenv("HCCL_ALGO", "tree")
    assert choose("all_reduce", 64, 8).algorithm == "tree"
    monkeypatch.setenv("HCCL_ALGO", "allreduce=H-D_R")
    assert choose("all_reduce", 64, 8).algorithm == "H-D_R"
    monkeypatch.delenv("HCCL_ALGO")
    assert choose("all_reduce", 64, 8).algorithm == "ring"


@pytest.mark.parametrize("text", ["", "NA", "null", "level0:NA;level1:null", "allgather=ring", "allreduce=level0:NA"])
def test_a_text_that_chooses_nothing_leaves_the_rule_alone(text):
    assert decided("all_reduce", 8, algo=text) == decided("all_reduce", 8)
    assert decided("all_reduce", 8, algorithm=text, algo="tree") == decided("all_reduce", 8)


def test_a_record_of_its_own_runs_without_being_registered():
    own = hccljax.Algorithm("own", "here", lambda *_: 3, lambda *_: 5, all_reduce=lambda x, group, op: x)
    decision = decided("all_reduce", 8, algorithm=own, algo="tree")
    assert (decision.algorithm, decision.record, decision.steps, decision.bytes_sent) == ("own", own, 3, 5)
    assert "own" not in hccljax.algorithms()


# What HCCL_ALGO means


@pytest.mark.parametrize(("nbytes", "tree"), [(64, "tree"), (BIG - 1, "tree"), (BIG, "double_tree")])
def test_tree_in_hccl_algo_is_the_double_tree_for_big_messages(nbytes, tree):
    assert decided("all_reduce", 8, nbytes, algo="tree").algorithm == tree
    assert decided("all_reduce", 8, nbytes, algo="level0:tree").algorithm == tree
    assert decided("all_reduce", 8, nbytes, "2x4", algo="level0:ring;level1:tree").algorithm == (
        f"level0:ring;level1:{ranks.tree_for(nbytes // 4)}"
    )


@pytest.mark.parametrize("who", ["algorithm", "communicator"])
def test_tree_named_by_the_program_is_the_binomial_tree_at_any_size(who):
    assert decided("all_reduce", 8, 8 * BIG, **{who: "tree"}).algorithm == "tree"


@pytest.mark.parametrize("name", [
    name for name in algorithms()
    if name not in ("tree", "native") and registered(name).supports("all_reduce") and registered(name).over is None
])  # fmt: skip
def test_a_name_alone_means_every_rank_whatever_the_topology(name):
    for asked in ({"algo": name}, {"algorithm": name}, {"communicator": name}):
        decision = decided("all_reduce", 128, 64, "16x8", **asked)
        assert (decision.algorithm, decision.tiers) == (name, None)


@pytest.mark.parametrize(("text", "operator", "runs"), [
    ("NHR_V1", "all_reduce", "NHR"),
    ("level0:NHR", "broadcast", "level0:NHR;level1:tree"),
    ("level0:ring;level1:NHR_V1", "all_gather", "level0:ring;level1:NHR"),
    ("level0:NHR;level1:NB", "all_reduce", "level0:NHR;level1:NB"),
    ("level0:bruck;level1:pairwise", "all_to_all", "level0:bruck;level1:pairwise"),
])  # fmt: skip
@pytest.mark.parametrize("who", ["algo", "algorithm", "communicator"])
def test_hccls_log_step_algorithms_run_where_they_are_named(text, operator, runs, who):
    decision = decided(operator, 24, 64, "3x8", **{who: text})
    assert (decision.algorithm, decision.fallback) == (runs, None)


def test_the_form_by_operator_names_each_one_and_leaves_the_others_alone():
    text = "allreduce=tree/allgather=level0:mesh/alltoall=fullmesh"
    assert decided("all_reduce", 8, algo=text).algorithm == "tree"
    assert decided("all_gather", 8, algo=text).algorithm == "mesh"
    assert decided("all_to_all", 8, algo=text).algorithm == "mesh"
    assert decided("broadcast", 8, algo=text) == decided("broadcast", 8)


def test_levels_with_a_topology_make_a_hierarchy_at_any_number_of_ranks():
    decision = decided("all_reduce", 8, 64, "2x4", algo="level0:ring;level1:tree")
    assert decision.algorithm == "level0:ring;level1:tree"
    assert decision.tiers == (4, 2)
    assert decision.asked_by == "HCCL_ALGO"
    assert decided("all_reduce", 8, 64, "2x4", algorithm="level1:mesh").algorithm == "level0:ring;level1:mesh"
    assert decided("all_reduce", 8, 64, "2x4", algo="level0:mesh;level1:NA").algorithm == "level0:mesh;level1:tree"
    assert decided("all_reduce", 8, 64, "2x4", algo="level3:ring").algorithm == "level0:ring;level1:tree"
    three = decided("all_gather", 16, 64, "2x2x4", algo="level0:mesh;level1:ring;level2:H-D_R")
    assert (three.algorithm, three.tiers) == ("level0:mesh;level1:ring;level2:H-D_R", (4, 2, 2))


def test_levels_without_a_topology_mean_one_server_up_to_64_ranks_and_servers_of_8_above():
    small = decided("all_reduce", 8, algo="level0:mesh;level1:tree")
    assert (small.algorithm, small.tiers) == ("mesh", None)
    assert "no effect between servers" in small.reason
    assert decided("all_reduce", 8, algo="level1:tree").algorithm == "ring"
    big = decided("all_reduce", 72, algo="level0:mesh;level1:H-D_R")
    assert (big.algorithm, big.tiers) == ("level0:mesh;level1:H-D_R", (8, 9))
    assert "servers of 8 are assumed" in big.reason


@pytest.mark.parametrize("text", ["pipeline", "level0:NA;level1:pipeline", "level0:pipeline", "level1:pipeline"])
def test_pipeline_works_over_all_tiers_however_it_is_written(text):
    for asked in ({"algo": text}, {"algorithm": text}, {"communicator": text}):
        decision = decided("all_reduce", 8, 64, "4x2", **asked)
        assert (decision.algorithm, decision.tiers, decision.steps) == ("pipeline", (2, 4), 8)
        assert decision.fallback is None
        assert "assumed" not in decision.reason
    for operator, steps in (("all_gather", 8), ("reduce_scatter", 8), ("all_to_all", 8)):
        three = decided(operator, 16, 64, "2x4x2", algo=text)
        assert (three.algorithm, three.tiers, three.steps) == ("pipeline", (2, 4, 2), steps)


def test_pipeline_takes_its_servers_from_where_hierarchies_do():
    big = decided("all_gather", 72, algorithm="pipeline")
    assert (big.tiers, big.steps) == ((8, 9), 9)
    assert "servers of 8 are assumed" in big.reason
    flat = decided("all_gather", 8, algo="pipeline")
    assert (flat.algorithm, flat.steps) == ("pipeline", 1)
    assert "assumed" not in flat.reason
    assert decided("all_reduce", 8, algo="level1:pipeline").algorithm == "ring"  # there is nothing between servers


def test_pipeline_beside_another_algorithm_is_replaced_on_its_level():
    decision = fallen_back("all_reduce", 8, 64, "2x4", algo="level0:ring;level1:pipeline")
    assert decision.algorithm == "level0:ring;level1:NHR"
    assert "level1: 'pipeline' works on all levels together" in decision.fallback


def test_pipeline_leaves_an_operator_that_it_lacks_to_the_levels():
    decision = fallen_back("broadcast", 8, 64, "2x4", algo="level0:NA;level1:pipeline")
    assert decision.algorithm == "level0:ring;level1:NHR"
    assert decision.fallback.startswith("level1: 'pipeline' has no broadcast")


def test_star_and_double_ring_have_a_part_on_each_level():
    text = "level0:star;level1:double_ring"
    assert fallen_back("broadcast", 8, 64, "2x4", algo=text).algorithm == "level0:star;level1:ring"
    assert fallen_back("all_reduce", 8, 64, "2x4", algo=text).algorithm == "level0:mesh;level1:double_ring"
    assert decided("scatter", 8, 64, "2x4", algo="level0:star;level1:star").algorithm == "level0:star;level1:star"
    both = decided("all_gather", 8, 64, "2x4", algo="level0:double_ring;level1:double_ring")
    assert (both.algorithm, both.steps) == ("level0:double_ring;level1:double_ring", 3 + 1)


def test_hierarchical_chooses_an_algorithm_for_each_level():
    for asked in ({"algo": "hierarchical"}, {"algorithm": "hierarchical"}):
        decision = decided("all_reduce", 8, 64, "2x4", **asked)
        assert (decision.algorithm, decision.tiers) == ("level0:ring;level1:tree", (4, 2))
        assert "hierarchical" in decision.reason
        flat = (decided if "algo" in asked else fallen_back)("all_reduce", 8, **asked)
        assert (flat.algorithm, flat.asked_by) == ("ring", "policy ranks")
        assert "chooses nothing for one flat server" in flat.reason


@pytest.mark.parametrize(
    ("asked", "ranks", "topology", "missing", "example"),
    [
        ("level0:ring;level1:tree", 8, None, "level1 has no effect on 8 ranks in one flat server", "2x4"),
        ("level1:tree", 8, None, "level1 has no effect on 8 ranks in one flat server", "2x4"),
        ("level0:ring;level2:tree", 8, "2x4", "level2 has no effect on 8 ranks in 2 levels", "2x2x2"),
        ("level0:ring;level2:tree", 9, "3x3", "level2 has no effect on 9 ranks in 2 levels", "9x1x1"),
        ("hierarchical", 8, None, "a hierarchy has no effect on 8 ranks in one flat server", "2x4"),
    ],
)
def test_levels_that_are_not_there_are_no_silent_wish(asked, ranks, topology, missing, example):
    for who in ("algorithm", "communicator"):
        fallback = fallen_back("all_reduce", ranks, 64, topology, **{who: asked}).fallback
        assert f"{missing}: pass topology=, such as {example!r}" in fallback
    assert decided("all_reduce", ranks, 64, topology, algo=asked).fallback is None  # a setting for every communicator
    assert decided("all_reduce", 1, algorithm=asked).fallback is None


def test_a_tree_is_sized_by_what_its_level_sees():
    sized = decided("all_reduce", 128, 3 << 20, "16x8", algorithm="level0:tree;level1:tree")
    assert sized.algorithm == "level0:double_tree;level1:double_tree"  # a tree below passes the whole message on
    sized = decided("all_reduce", 128, 3 << 20, "16x8", algorithm="level0:ring;level1:tree")
    assert sized.algorithm == "level0:ring;level1:tree"


@pytest.mark.parametrize("topology", ["2x8", "16", "1", "2x2x2"])
def test_a_topology_of_another_size_is_refused(topology):
    with pytest.raises(ArgumentError, match=f"topology {topology} has .* the group has 9; expected 9"):
        decided("all_reduce", 9, topology=topology)


# What cannot run is replaced, and says so

REPLACED = [
    # asked for, operator, what runs
    ("ring", "all_to_all", "pairwise"),
    ("H-D_R", "all_to_all", "pairwise"),
    ("tree", "all_to_all", "pairwise"),
    ("tree", "all_gather", "H-D_R"),
    ("tree", "scatter", "H-D_R"),
    ("double_tree", "reduce_scatter", "H-D_R"),
    ("double_tree", "gather", "H-D_R"),
    ("pairwise", "all_reduce", "NHR"),
    ("bruck", "all_reduce", "NHR"),
    ("NHR", "reduce", "H-D_R"),
    ("NHR", "all_to_all", "pairwise"),
    ("NHR_V1", "gather", "H-D_R"),
    ("NB", "reduce", "H-D_R"),
    ("AHC", "broadcast", "NHR"),
    ("AHC_BROKE", "reduce", "H-D_R"),
    ("AHC", "all_to_all", "pairwise"),
    ("pipeline", "broadcast", "NHR"),
    ("double_ring", "scatter", "ring"),
    ("double_ring", "all_to_all", "pairwise"),
    ("star", "all_reduce", "mesh"),
    ("star", "all_to_all", "mesh"),
]


@pytest.mark.parametrize(("asked", "operator", "runs"), REPLACED)
@pytest.mark.parametrize("who", ["algo", "algorithm", "communicator"])
def test_what_lacks_the_operator_is_replaced_by_hccls_rule(asked, operator, runs, who):
    decision = fallen_back(operator, 8, **{who: asked})
    assert decision.algorithm == runs
    assert f"{runs!r} runs instead" in decision.fallback
    assert asked in decision.reason
    name = ALIASES.get(asked, asked)
    if name in algorithms():
        assert f"{name!r} has no {operator}" in decision.fallback
    else:
        assert "is not part of this version" in decision.fallback


@pytest.mark.parametrize(("text", "operator", "runs", "level"), [
    ("level0:tree;level1:ring", "all_gather", "level0:H-D_R;level1:ring", "level0"),
    ("level0:ring;level1:tree", "all_gather", "level0:ring;level1:H-D_R", "level1"),
    ("level0:ring;level1:NHR", "reduce", "level0:ring;level1:H-D_R", "level1"),
    ("level0:mesh;level1:pairwise", "broadcast", "level0:mesh;level1:NHR", "level1"),
])  # fmt: skip
def test_a_level_is_replaced_on_its_own(text, operator, runs, level):
    decision = fallen_back(operator, 8, 64, "2x4", algo=text)
    assert decision.algorithm == runs
    assert decision.fallback.startswith(f"{level}: ")
    assert decision.fallback.count(";") == decision.fallback.count("runs instead") == 1


def test_every_replaced_level_is_named():
    decision = fallen_back("all_to_all", 8, 64, "2x4", algo="level0:ring;level1:tree")
    assert decision.algorithm == "level0:pairwise;level1:pairwise"
    assert [part.split(":")[0] for part in decision.fallback.split("; level")] == ["level0", "1"]


def test_a_lower_level_that_can_wrap_needs_no_broadcast_of_its_own():
    scatter_and_gather = decided("reduce", 8, 64, "2x4", algo="level0:H-D_R;level1:tree")
    assert scatter_and_gather.algorithm == "level0:H-D_R;level1:tree"


@pytest.mark.parametrize("operator", ["broadcast", "reduce", "scatter", "gather"])
def test_nothing_replaces_native_where_the_call_asks_for_it(operator):
    with pytest.raises(UnsupportedError, match=f"'native' has no {operator}; expected one of .*ring"):
        decided(operator, 8, algorithm="native")


@pytest.mark.parametrize("operator", ["broadcast", "reduce", "scatter", "gather"])
@pytest.mark.parametrize("who", ["algo", "communicator"])
def test_native_for_all_operators_gives_way_where_jax_has_none(operator, who):
    decision = fallen_back(operator, 8, **{who: "native"})
    assert decision.algorithm == ("NHR" if operator in ("broadcast", "scatter") else "H-D_R")
    assert decision.reason.endswith("cannot be had")


@pytest.mark.parametrize("operator", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_native_runs_what_jax_has(operator):
    decision = decided(operator, 8, algo="native")
    assert (decision.algorithm, decision.fallback, decision.steps) == ("native", None, 1)


def test_an_algorithm_registered_later_is_found_although_the_choice_was_made_before(monkeypatch):
    others = {name: registered(name) for name in algorithms() if name != "NB"}
    monkeypatch.setattr("hccljax.algorithm.base._REGISTRY", others)
    assert fallen_back("all_reduce", 8, algo="NB").algorithm == "NHR"
    hccljax.register(hccljax.Algorithm("NB", "here", lambda *_: 3, lambda *_: 5, all_reduce=lambda x, group, op: x))
    assert decided("all_reduce", 8, algo="NB").algorithm == "NB"
    assert fallen_back("all_to_all", 8, algo="NB").algorithm == "pairwise"


def test_a_decision_without_a_fallback_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decided("all_reduce", 8, algo="ring").fallback is None


def test_a_topology_reads_from_outside_to_inside():
    assert as_topology("2x4x8") == Topology((8, 4, 2))
    assert str(Topology((8, 4, 2))) == "2x4x8"
    assert Topology((8, 4, 2)).ranks == 64
    assert as_topology(None) is None
