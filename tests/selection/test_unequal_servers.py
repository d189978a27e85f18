"""Servers of unequal size: how they are written, and what runs on them; nothing is replaced in silence."""

import warnings

import pytest

import hccljax
from hccljax import ArgumentError, FallbackWarning, Topology
from hccljax.selection.choice import choose
from hccljax.selection.settings import Settings
from hccljax.topology import as_topology

AHC_HAS = ("all_reduce", "all_gather", "reduce_scatter")
OTHERS = ("broadcast", "reduce", "scatter", "gather", "all_to_all")
HCCLS = "level0:NA;level1:AHC"


def decided(operator, algorithm=None, topology="5+3", p=8, algo=""):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return choose(operator, 1 << 20, p, algorithm, as_topology(topology), settings=Settings(algo))


@pytest.mark.parametrize("operator", AHC_HAS)
@pytest.mark.parametrize("who", ["algorithm", "algo"])
@pytest.mark.parametrize("text", ["AHC", "AHC_BROKE", HCCLS, "level0:AHC;level1:AHC_BROKE", "hierarchical"])
def test_ahc_is_what_runs_on_them(operator, who, text):
    decision = decided(operator, **{who: text})
    assert (decision.algorithm, decision.servers, decision.tiers, decision.fallback) == ("AHC", (5, 3), None, None)
    assert f"{operator} of 1048576 bytes, 8 ranks in servers of 5+3: AHC" in str(decision)


@pytest.mark.parametrize("operator", AHC_HAS)
@pytest.mark.parametrize("text", ["level0:ring;level1:tree", "level0:mesh", "level1:NHR", "pipeline"])
def test_a_hierarchy_of_equal_servers_is_replaced_by_ahc(operator, text):
    decision = decided(operator, text)
    assert (decision.algorithm, decision.servers) == ("AHC", (5, 3))
    assert "needs servers of one size" in decision.fallback
    assert "'AHC' runs instead" in decision.fallback
    with pytest.warns(FallbackWarning, match="'AHC' runs instead"):
        hccljax.explain(operator, 1 << 20, 8, "5+3", text)


@pytest.mark.parametrize("operator", OTHERS)
@pytest.mark.parametrize("text", ["level0:ring;level1:tree", "hierarchical", "pipeline", HCCLS, "AHC"])
def test_what_ahc_lacks_runs_on_all_ranks_and_says_so(operator, text):
    decision = decided(operator, text)
    assert (decision.servers, decision.tiers) == (None, None)
    assert decision.record.supports(operator)
    assert f"{decision.algorithm!r} runs instead" in decision.fallback


@pytest.mark.parametrize("name", ["ring", "tree", "H-D_R", "NHR", "mesh"])
def test_an_algorithm_to_which_all_ranks_are_alike_needs_no_servers(name):
    decision = decided("all_reduce", name)
    assert (decision.algorithm, decision.fallback, decision.servers) == (name, None, None)


def test_nobody_asking_means_ahc_above_64_ranks_only():
    assert decided("all_reduce").algorithm == "ring"
    for operator in (*AHC_HAS, "all_gather_v"):
        decision = decided(operator, topology="40+33", p=73)
        assert (decision.algorithm, decision.servers, decision.fallback) == ("AHC", (40, 33), None)
    assert decided("all_to_all_vc", topology="40+33", p=73).algorithm == "pairwise"


def test_equal_servers_are_tiers():
    decision = decided("all_reduce", "AHC", "4x2")
    assert (decision.algorithm, decision.tiers, decision.servers) == ("AHC", (2, 4), None)
    assert as_topology("4+4") == Topology(servers=(4, 4)) == as_topology("2x4") == Topology((4, 2), servers=[4, 4])


def test_they_are_written_in_rank_order():
    topology = as_topology("2+3+4")
    assert (topology.sizes, topology.servers, topology.ranks, str(topology)) == ((9,), (2, 3, 4), 9, "2+3+4")
    assert topology == Topology(servers=(2, 3, 4)) == Topology((9,), servers=[2, 3, 4])
    assert topology != as_topology("4+3+2")
    assert hash(topology) == hash(Topology(servers=(2, 3, 4)))


MISTAKES = {
    "a spec that ends too early": (lambda: as_topology("5+"), r"'5\+'", r"'5\+3'"),
    "an empty server": (lambda: as_topology("5+0"), r"'5\+0'", "expected"),
    "servers of tiers": (lambda: as_topology("2x4+3"), r"'2x4\+3'", "expected"),
    "a server of none": (lambda: Topology(servers=(5, 0)), r"\(5, 0\)", "one positive int for each server"),
    "no server": (lambda: Topology(servers=()), r"\(\)", "one positive int for each server"),
    "nothing": (Topology, r"\(\)", "one positive int for each level"),
    "sizes that contradict": (lambda: Topology((4, 2), servers=(5, 3)), r"\(4, 2\)", r"expected \(8,\), or no sizes"),
    "another number of ranks": (lambda: hccljax.explain("all_reduce", 8, 9, "5+3"), r"5\+3 has 8", "expected 9"),
    "a communicator of another": (lambda: hccljax.Communicator(9, topology="5+3"), r"5\+3 has 8", "to 9"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    call, given, expected = MISTAKES[mistake]
    with pytest.raises(ArgumentError, match=f"(?s){given}.*{expected}"):
        call()
