"""Policy ``cost``: the least predicted time, and what explain says of the others."""

import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.algorithm import registered
from hccljax.algorithm.base import OPERATORS
from hccljax.selection.choice import choose
from hccljax.selection.cost import Field, fastest, on_line, table, timed
from hccljax.selection.settings import Settings
from hccljax.timing.bounds import lower_bound
from hccljax.timing.exchange import exchange_seconds
from hccljax.timing.kernel import kernel_schedule, kernel_seconds
from hccljax.timing.simulation import simulate
from hccljax.topology import Topology, as_topology

A2, BUFFER = as_topology("atlas-800t-a2:4x8"), 200 << 20


@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_is_faster_than_the_fastest(operator):
    field = Field(operator, A2, BUFFER)
    for nbytes in (100, 5 << 10, 3 << 20, 77 << 20):
        best, seconds, _ = fastest(field, nbytes)
        everything = timed(field, [nbytes])
        assert seconds <= min(one.seconds[0] for one in everything) * (1 + 1e-9)
        assert seconds >= lower_bound(operator, nbytes, A2).seconds * (1 - 1e-9)
        assert best.algorithm in {one.algorithm for one in everything}


@pytest.mark.parametrize("operator", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
def test_times_are_those_of_simulate(operator):
    """One trace serves all sizes of a form; its times are those of a trace of the very size."""
    for name in ("ring", "NHR", "double_tree", "mesh", "pairwise", "bruck"):
        record = registered(name)
        if not record.supports(operator):
            continue
        sizes = [32 << 6, 32 << 12, 32 << 19]
        found = kernel_seconds(record, operator, 32, sizes, A2)
        for nbytes, seconds in zip(sizes, found, strict=True):
            assert seconds == pytest.approx(simulate(kernel_schedule(record, operator, 32, nbytes), A2).seconds), name


@pytest.mark.parametrize("name", ["mesh", "pairwise"])
@pytest.mark.parametrize("spec", ["atlas-800t-a2:8", "atlas-800t-a2:4x8", "dgx-a100:4x8", "atlas-800t-a2:2x4x4"])
def test_closed_forms_of_exchanges_are_what_is_simulated(name, spec):
    topology = as_topology(spec)
    for operator in ("all_to_all", *(("all_reduce", "all_gather", "reduce_scatter") if name == "mesh" else ())):
        sizes = [topology.ranks << 4, topology.ranks << 16]
        closed = exchange_seconds(name, operator, topology.ranks, sizes, topology)
        simulated = kernel_seconds(registered(name), operator, topology.ranks, sizes, topology)
        np.testing.assert_allclose(closed, simulated, rtol=1e-9)


@pytest.mark.parametrize(
    ("operator", "nbytes", "spec"),
    [
        ("reduce", 1 << 20, "dgx-a100:2x2"),
        ("broadcast", 4 << 20, "dgx-a100:2x8"),
        ("reduce", 200 << 20, "atlas-900-a3:2x2x4"),
    ],
)
def test_what_was_timed_is_what_runs(operator, nbytes, spec):
    """The binomial tree of a level stays one, however long the message."""
    explained = hccljax.explain(operator, nbytes, as_topology(spec).ranks, spec, "fastest")
    assert "tree" in explained.algorithm
    assert "double_tree" not in explained.algorithm
    assert explained.outlook.chosen is explained.outlook.prospects[0]


def test_the_hierarchy_of_the_fastest_levels():
    (one,) = Field("all_reduce", A2, BUFFER).hierarchies([1 << 20])
    assert one.name in ("level0:mesh;level1:NHR", "level0:mesh;level1:H-D_R")
    assert Field("all_reduce", as_topology("atlas-800t-a2:8"), BUFFER).hierarchies([8]) == [None]


class TestFastest:
    def test_as_an_algorithm_of_a_call(self):
        decision = hccljax.explain("all_reduce", 64 << 20, 32, A2, algorithm="fastest")
        assert (decision.algorithm, decision.asked_by) == ("NHR_pipeline", "call")
        assert decision.reason.startswith("least predicted time on atlas-800t-a2:4x8: ")
        assert decision.reason.endswith("(policy cost)")

    def test_as_a_policy(self):
        decision = choose("all_reduce", 64 << 20, 32, None, A2, settings=Settings(policy="cost"))
        assert (decision.algorithm, decision.asked_by) == ("NHR_pipeline", "policy cost")

    def test_on_one_server_and_without_a_topology(self):
        assert hccljax.explain("all_reduce", 1 << 20, 8, algorithm="fastest").algorithm == "mesh"
        assert hccljax.explain("broadcast", 64, 8, algorithm="fastest").algorithm == "star"
        assert hccljax.explain("all_reduce", 1 << 20, 1, algorithm="fastest").steps == 0

    def test_on_unequal_servers(self):
        decision = hccljax.explain("all_reduce", 64 << 20, 8, "5+3", algorithm="fastest")
        assert decision.algorithm in {
            one.algorithm for one in table(Field("all_reduce", as_topology("atlas-800t-a2:5+3"), BUFFER))
        }

    @pytest.mark.parametrize("topology", [None, "2x4", "5+3"])
    def test_its_result_is_right(self, topology):
        comm = hccljax.Communicator(8, executor="virtual", topology=topology, algorithm="fastest")
        x = jnp.arange(8.0 * 24).reshape(8, 24)
        np.testing.assert_array_equal(comm.all_reduce(x), np.broadcast_to(x.sum(0), (8, 24)))
        np.testing.assert_array_equal(comm.all_to_all(x.reshape(8, 8, 3)), x.reshape(8, 8, 3).swapaxes(0, 1))

    def test_a_faster_wire_between_servers_changes_the_choice(self):
        quick = Topology(levels=(A2.levels[0], type(A2.levels[1])("fabric", 4, "switch", 4000e9, 1e-7)))
        slow, fast = (fastest(Field("broadcast", wiring, BUFFER), 1 << 28)[0].algorithm for wiring in (A2, quick))
        assert slow != fast


def test_lines_between_sizes():
    one = table(Field("all_gather", A2, BUFFER))[0]
    exact = Field("all_gather", A2, BUFFER).seconds(one.record, [3 << 20])[0]
    assert on_line(one.seconds, 3 << 20) == pytest.approx(exact, rel=0.02)
    assert on_line(one.seconds, 1) == pytest.approx(
        Field("all_gather", A2, BUFFER).seconds(one.record, [1])[0], rel=0.02
    )


class TestOutlook:
    explained = staticmethod(
        lambda **options: hccljax.explain("all_reduce", 1 << 30, 32, "atlas-800t-a2:4x8", **options)
    )

    def test_prospects(self):
        outlook = self.explained(algorithm="ring").outlook
        times = [one.seconds for one in outlook.prospects]
        assert times == sorted(times)
        assert outlook.prospects[0].algorithm == "NHR_pipeline"
        assert outlook.chosen.algorithm == "ring"
        assert outlook.margin == pytest.approx(outlook.chosen.seconds / times[0])
        assert 0.94 < outlook.prospects[0].of_bound < 1
        assert all(0 < one.of_bound <= 1 for one in outlook.prospects)
        assert outlook.bound.binds == "bandwidth out of one HCCS group"
        assert not outlook.assumed
        assert outlook.hccl.startswith("pipeline: ")

    def test_bytes_of_the_levels(self):
        """A flat ring sends 2 · 31/32 of the message over each port that it uses."""
        ring = self.explained(algorithm="ring").outlook.chosen
        assert ring.level_bytes == (pytest.approx(2 * 31 / 32 * (1 << 30)),) * 2

    def test_margin_of_the_fastest_itself(self):
        outlook = self.explained(algorithm="fastest").outlook
        assert outlook.chosen is outlook.prospects[0]
        assert outlook.margin == pytest.approx(outlook.prospects[1].seconds / outlook.prospects[0].seconds)
        assert "the fastest, " in str(self.explained(algorithm="fastest"))

    def test_sizes_at_which_the_choice_changes(self):
        explained = hccljax.explain("all_to_all", 1 << 20, 32, "atlas-800t-a2:4x8")
        small, large = explained.outlook.switches
        assert (small.nbytes, small.algorithm, large.algorithm) == (0, "level0:mesh;level1:bruck", "pipeline")
        field = Field("all_to_all", A2, BUFFER)
        for nbytes, expected in ((large.nbytes // 2, small), (large.nbytes * 2, large)):
            assert fastest(field, nbytes)[0].algorithm == expected.algorithm

    def test_text_fits_a_screen_and_marks_what_runs(self):
        text = str(self.explained(algorithm="tree")).splitlines()
        assert len(text) <= 24
        assert sum(line.startswith(" *tree ") for line in text) == 1
        assert text[3] == "  on atlas-800t-a2:4x8, at least 8.053 ms: bandwidth out of one HCCS group"
        assert any(line.startswith("  fastest by size: NHR_pipeline from 0 bytes, ") for line in text)
        assert text[-1].startswith("  HCCL's own rule: pipeline: ")

    def test_figures_that_are_assumed_are_said(self):
        assert "(figures assumed)" in str(hccljax.explain("all_reduce", 64, 32, "4x8"))
        assert hccljax.explain("all_reduce", 64, 16).outlook.topology == "16"

    @pytest.mark.parametrize("p", [12, 32, 64, 72, 128])
    def test_without_a_topology_all_rules_assume_the_same_tiers(self, p):
        explained = hccljax.explain("all_reduce", 64 << 20, p, algorithm="fastest")
        assert explained.outlook.chosen is explained.outlook.prospects[0]
        as_hccl = hccljax.explain("all_reduce", 64 << 20, p, policy="cann")
        assert as_hccl.outlook.hccl == f"{as_hccl.algorithm}: {as_hccl.reason}"

    def test_bytes_of_a_level_are_those_of_the_size_that_is_asked_for(self):
        """NHR works in another way from 256 KiB on, which is no size of the grid's halves."""
        nbytes = 300 << 10
        field = Field("all_reduce", A2, BUFFER)
        schedule = kernel_schedule(registered("NHR"), "all_reduce", 32, nbytes)
        most = [tier.most for tier in simulate(schedule, A2).tiers]
        assert field.level_bytes(registered("NHR"), nbytes) == pytest.approx(most, abs=32)

    def test_it_is_that_of_the_environment_in_which_it_was_asked_for(self, monkeypatch):
        monkeypatch.setenv("HCCL_BUFFSIZE", "1")
        explained, again = (hccljax.explain("all_reduce", 8 << 20, 8) for _ in range(2))
        sliced = explained.outlook.prospects
        monkeypatch.delenv("HCCL_BUFFSIZE")
        assert again.outlook.prospects == sliced
        assert hccljax.explain("all_reduce", 8 << 20, 8).outlook.prospects != sliced

    def test_what_needs_lost_links_is_left_out(self):
        lost = as_topology("atlas-800t-a2:2x8").degrade(rank=3, level=1, lost=True)
        explained = hccljax.explain("all_reduce", 64 << 20, 16, lost, algorithm="fastest")
        assert explained.algorithm not in explained.outlook.cut_off
        assert explained.outlook.chosen is explained.outlook.prospects[0]
        assert "NHR" in explained.outlook.cut_off
        asked = hccljax.explain("all_reduce", 64 << 20, 16, lost, algorithm="NHR")
        assert asked.outlook.chosen is None
        assert asked.outlook.prospects == explained.outlook.prospects
        assert "  cannot run here: " in str(asked)
        assert "inf" not in str(asked)
        assert "nan" not in str(asked)

    def test_servers_cut_off_from_each_other(self):
        lost = as_topology("atlas-800t-a2:2x2")
        for rank in (0, 1):
            lost = lost.degrade(rank=rank, level=1, lost=True)
        with pytest.raises(hccljax.UnreachableError, match="no algorithm can run, as every one needs ranks to talk"):
            hccljax.explain("all_reduce", 64, 4, lost, algorithm="fastest")
        outlook = hccljax.explain("all_reduce", 64, 4, lost, algorithm="ring").outlook
        assert (outlook.prospects, outlook.switches) == ((), ())
        assert "ring" in outlook.cut_off
        assert outlook.lines()

    def test_one_rank_has_none(self):
        assert hccljax.explain("all_reduce", 64, 1).outlook is None

    def test_native_has_no_time(self):
        outlook = hccljax.explain("all_reduce", 64, 8, algorithm="native").outlook
        assert outlook.chosen is None
        assert "predicted" not in str(hccljax.explain("all_reduce", 64, 8, algorithm="native"))

    @pytest.mark.parametrize("operator", [*OPERATORS, "all_gather_v", "all_to_all_vc"])
    @pytest.mark.parametrize("nbytes", [0, 1, 10**6, 2**63])
    def test_any_size(self, operator, nbytes):
        explained = hccljax.explain(operator, nbytes, 8, "2x4")
        assert explained.outlook.prospects[0].seconds >= 0
        assert str(explained)
