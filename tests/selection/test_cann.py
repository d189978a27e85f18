"""Policy ``cann``: the consequences of HCCL's formulas, and the seam through which policies choose."""

import pytest

import hccljax
from hccljax.errors import ArgumentError, SettingError
from hccljax.selection import cann
from hccljax.selection.choice import choose
from hccljax.selection.policies import _POLICIES, Question, policies, register_policy
from hccljax.selection.settings import Settings
from hccljax.topology import as_topology

SIZES = [1, 1 << 10, 1 << 20, 100 << 20]


@pytest.mark.parametrize("operator", ["reduce_scatter", "all_gather", "all_reduce"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_three_servers_form_a_ring_and_four_take_nhr_at_any_size(operator, nbytes):
    for servers in range(2, 40):
        name, _ = cann.level1(operator, servers, 1, nbytes)  # one card a server: no pipeline
        assert name == ("ring" if servers <= 3 else "NHR")


@pytest.mark.parametrize("operator", ["broadcast", "reduce"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_broadcast_and_reduce_at_powers_of_two(operator, nbytes):
    assert cann.level1(operator, 2, 8, nbytes)[0] == "ring"
    for servers in (4, 8, 16, 64):
        assert cann.level1(operator, servers, 8, nbytes)[0] == "H-D_R"


@pytest.mark.parametrize(("servers", "megabytes"), [(3, 10.3), (5, 30.9), (6, 51.5), (7, 72.2)])
def test_where_broadcast_turns_from_halving_to_ring(servers, megabytes):
    """With 8 cards a server and 20 GB/s, in total bytes of 10^6."""
    below, above = (round((megabytes + step) * 1e6) for step in (-0.1, 0.1))
    assert cann.level1("broadcast", servers, 8, below)[0] == "H-D_R"
    assert cann.level1("reduce", servers, 8, above)[0] == "ring"


@pytest.mark.parametrize(
    ("operator", "block", "deterministic", "least"),
    [
        ("all_gather", 32 << 10, False, True),
        ("all_gather", (32 << 10) - 1, False, False),
        ("all_gather", 32 << 10, True, True),
        ("reduce_scatter", 32 << 10, False, True),
        ("reduce_scatter", 32 << 10, True, False),
        ("reduce_scatter", 256 << 10, True, True),
        ("all_reduce", 1 << 20, False, True),
        ("all_reduce", (1 << 20) - 1, False, False),
        ("all_reduce", 1 << 30, True, False),
        ("broadcast", 1 << 30, False, False),
    ],
)
def test_where_messages_are_pipelined(operator, block, deterministic, least):
    name, reason = cann.level1(operator, 4, 8, block * 32, deterministic)
    assert (name == "pipeline") == least
    assert ("pipelined" in reason) == least
    assert cann.level1(operator, 4, 1, block * 4, deterministic)[0] != "pipeline"


def test_two_servers_count_with_more_bandwidth():
    two, three = (cann.costs("all_gather", m, 8, 1 << 30)["ring"] for m in (2, 3))
    assert two == pytest.approx(60e-6 + (1 << 30) / 2 / (54.4 * 2**30))
    assert three == pytest.approx(2 * 60e-6 + 2 / 3 * (1 << 30) / (20 * 2**30))


def test_the_910():
    found = [cann.level1("all_reduce", m, 8, 1 << 20, product="910")[0] for m in (2, 3, 4, 5, 6, 7, 8, 9, 12)]
    assert found == ["H-D_R", "ring", "H-D_R", "ring", "ring", "ring", "H-D_R", "H-D_R", "H-D_R"]


class TestPolicy:
    def decided(self, operator, nbytes, ranks, spec=None, **settings):
        return choose(operator, nbytes, ranks, None, as_topology(spec), settings=Settings(policy="cann", **settings))

    def test_tiers(self):
        decision = self.decided("all_reduce", 1 << 20, 32, "4x8")
        assert (decision.algorithm, decision.asked_by) == ("level0:mesh;level1:NHR", "policy cann")
        assert decision.reason.startswith(
            "least by HCCL's formulas for 4 servers: ring 369 µs, NHR 249 µs, H-D_R 249 µs"
        )
        assert self.decided("all_reduce", 64 << 20, 32, "4x8").algorithm == "pipeline"
        assert (
            self.decided("all_reduce", 64 << 20, 32, "4x8", deterministic="true").algorithm == "level0:mesh;level1:NHR"
        )

    def test_a_buffer_hides_the_size(self):
        small = self.decided("all_reduce", 64 << 20, 32, "4x8", buffer=16 << 20)
        assert small.algorithm == "level0:mesh;level1:NHR"

    def test_one_server_and_unequal_ones(self):
        assert self.decided("all_reduce", 1 << 20, 8).algorithm == "mesh"
        assert self.decided("all_to_all", 1 << 20, 8).algorithm == "mesh"
        assert self.decided("all_reduce", 1 << 20, 8, "5+3").algorithm == "AHC"
        assert self.decided("all_to_all", 1 << 20, 32, "4x8").algorithm == "level0:mesh;level1:pairwise"
        assert self.decided("all_to_all_vc", 1 << 20, 32, "4x8").algorithm == "pairwise"
        assert self.decided("all_reduce", 1 << 20, 1).steps == 0

    def test_gather_is_none_of_hccls(self):
        decision = self.decided("gather", 1 << 20, 32, "4x8")
        assert "'NHR' has no gather" in decision.fallback

    def test_who_asks_first(self, monkeypatch):
        monkeypatch.setenv("HCCLJAX_POLICY", "cann")
        assert hccljax.explain("all_reduce", 64, 8).algorithm == "mesh"
        assert hccljax.explain("all_reduce", 64, 8, algorithm="ring").algorithm == "ring"
        monkeypatch.setenv("HCCL_ALGO", "tree")
        assert hccljax.explain("all_reduce", 64, 8).asked_by == "HCCL_ALGO"

    def test_the_910_as_a_policy(self):
        decision = choose("all_reduce", 1 << 20, 24, None, as_topology("3x8"), policy="cann-910")
        assert (decision.algorithm, decision.asked_by) == ("level0:ring;level1:ring", "policy cann-910")


class TestSeam:
    def test_a_policy_of_ones_own(self):
        asked = []

        def always_tree(question: Question):
            asked.append((question.operator, question.p, question.nbytes, question.servers))
            return (None, "no opinion") if question.nbytes > 100 else ("tree", "I like trees")

        register_policy("trees", always_tree)
        decision = choose("all_reduce", 64, 32, None, as_topology("4x8"), policy="trees")
        assert (decision.algorithm, decision.reason, decision.asked_by) == ("tree", "I like trees", "policy trees")
        assert asked == [("all_reduce", 32, 64, 4)]
        decision = choose("all_reduce", 640, 8, None, None, policy="trees")
        assert decision.algorithm == "ring"
        assert decision.reason.startswith("no opinion, so: all_reduce of up to 8 ranks")
        assert "trees" in policies()
        with pytest.raises(ArgumentError, match="registered already"):
            register_policy("trees", lambda question: (None, ""))

    def test_refusals(self, monkeypatch):
        with pytest.raises(ArgumentError, match=r"policy='can': expected one of ranks, .*Did you mean cann"):
            choose("all_reduce", 64, 8, policy="can")
        for wrong in (None, "ring", ("ring",), ("", ""), ("ring", "why", 3), (3, "why")):
            monkeypatch.setitem(_POLICIES, "wrong", lambda question, wrong=wrong: wrong)
            with pytest.raises(ArgumentError, match=r"policy 'wrong' answered .*; expected \(an algorithm's name"):
                choose("all_reduce", 64, 8, policy="wrong")
        with pytest.raises(ArgumentError, match="registered already"):
            register_policy("ranks", lambda question: (None, ""))
        with pytest.raises(ArgumentError, match="expected a name and a function"):
            register_policy("", None)
        with pytest.raises(SettingError, match="HCCLJAX_POLICY"):
            Settings(policy="")
        monkeypatch.setenv("HCCLJAX_POLICY", "fast")
        with pytest.raises(SettingError, match=r"HCCLJAX_POLICY is 'fast', expected one of ranks, .*or unset it"):
            hccljax.explain("all_reduce", 64, 8)
        with pytest.raises(ArgumentError, match=r"policy=\['cost'\]: expected one of ranks"):
            choose("all_reduce", 64, 8, policy=["cost"])
