"""bucket_bytes="auto": the shortest bucket whose time is not mostly latency."""

from __future__ import annotations

import pytest

import hccljax
from hccljax.topology import Level, Topology, as_topology
from hccljax.training.sizing import LATENCY_SHARE, bucket_size

MEBIBYTE = 1 << 20


def auto(p, algorithm=None, topology=None):
    return bucket_size("auto", p, algorithm, as_topology(topology))


def switch(p, latency, bandwidth):
    return Topology(levels=(Level("links", p, "switch", bandwidth, latency),))


@pytest.mark.parametrize("p", [2, 5, 8, 32])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "H-D_R"])
def test_latency_is_a_tenth_at_most_and_half_the_size_would_have_more(p, algorithm):
    """Against the closed form, which counts messages and bytes."""
    alpha, bandwidth = 2e-6, 20e9
    nbytes = auto(p, algorithm, switch(p, alpha, bandwidth))

    def share(n):
        terms = hccljax.closed_form(algorithm, "all_reduce", p, n)
        return terms.messages * alpha / terms.seconds(alpha, 1 / bandwidth)

    assert share(nbytes) <= LATENCY_SHARE * 1.01 < share(nbytes // 2) * 1.02
    assert nbytes.bit_count() == 1


def test_it_grows_with_latency_bandwidth_and_ranks():
    base = auto(8, "ring", switch(8, 2e-6, 20e9))
    assert auto(8, "ring", switch(8, 8e-6, 20e9)) == 4 * base
    assert auto(8, "ring", switch(8, 2e-6, 80e9)) == 4 * base
    assert auto(64, "ring", switch(64, 2e-6, 20e9)) == 8 * base


def test_it_is_not_longer_than_hccl_buffsize(monkeypatch):
    assert auto(32, "ring", "4x8") > MEBIBYTE
    monkeypatch.setenv("HCCL_BUFFSIZE", "1")
    assert auto(32, "ring", "4x8") == MEBIBYTE


def test_one_rank_sends_nothing():
    assert auto(1) == 200 * MEBIBYTE


def test_what_xla_does_is_taken_for_what_the_policy_runs():
    assert auto(8, "native") == auto(8)


def test_servers_may_differ():
    assert auto(8, "AHC", "5+3") > 0


@pytest.mark.parametrize("policy", ["ranks", "cann"])
def test_every_policy_has_a_size(monkeypatch, policy):
    monkeypatch.setenv("HCCLJAX_POLICY", policy)
    assert 2**8 <= auto(32, topology="4x8") <= 200 * MEBIBYTE
