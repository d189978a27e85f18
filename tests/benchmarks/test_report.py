"""The figures and verdicts of the benchmarks, against ones worked out by hand."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def module(load):
    return load("_report")


@pytest.mark.parametrize(
    ("values", "mean"), [([3.0], 3.0), ([2.0, 0.5], 1.0), ([1.0, 8.0], 8**0.5), ([1.0, 2.0, 4.0], 2.0)]
)
def test_the_geometric_mean_is_the_root_of_the_product(module, values, mean):
    assert module.geometric_mean(values) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("size", "text"),
    [(32 * 2**20, "32 MB"), (4096, "4 KB"), (2**20 + 2**10, "1025 KB"), (1000, "1000 bytes"), (0, "0 bytes")],
)
def test_bytes_are_named_in_the_largest_whole_unit(module, size, text):
    assert module.bytes_text(size) == text


@pytest.mark.parametrize(
    ("figure", "at_least", "verdict"),
    [
        (1.0, False, "ok"),
        (1.1, False, "ok"),
        (1.11, False, "SHORT"),
        (1.0, True, "SHORT"),
        (1.1, True, "ok"),
        (1.11, True, "ok"),
        (None, False, "not measured"),
        (None, True, "not measured"),
        (float("nan"), False, "SHORT"),
        (float("nan"), True, "SHORT"),
    ],
)
def test_a_figure_may_reach_its_target_but_not_miss_it(module, figure, at_least, verdict):
    finding = module.Finding("ring", figure, 1.1, at_least=at_least)
    assert finding.verdict == verdict
    assert finding.short == (verdict == "SHORT")


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (("ring / psum", 1.234, 1.5), ["ring", "/", "psum", "1.23", "×", "≤", "1.50", "×", "ok"]),
        (("speed-up", 56042.4, 3000, "×", True), ["speed-up", "56,042", "×", "≥", "3,000", "×", "ok"]),
        (("call", 20.5, 20, "µs"), ["call", "20.50", "µs", "≤", "20", "µs", "SHORT"]),
        (("programs", 0, 0, ""), ["programs", "0", "≤", "0", "ok"]),
        (("ring / psum", None, 1.5), ["ring", "/", "psum", "–", "≤", "1.50", "×", "not", "measured"]),
    ],
)
def test_a_line_shows_name_figure_target_and_verdict(module, finding, words):
    assert str(module.Finding(*finding)).split() == words


@pytest.mark.parametrize(
    ("figures", "strict", "status"),
    [((1.0, 1.0), True, 0), ((1.0, 2.0), True, 1), ((1.0, 2.0), False, 0), ((None, 1.0), True, 0)],
)
def test_only_strict_turns_a_shortfall_into_an_exit_status(module, capsys, figures, strict, status):
    findings = (module.Finding(f"figure {i}", figure, 1.5) for i, figure in enumerate(figures))
    assert module.report(findings, strict) == status
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("figure 1") if 2.0 in figures else last == "Nothing falls short."


def test_candidates_take_turns_and_preparation_precedes_every_call(module):
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "AB"}
    module.interleaved(calls, rounds=2, block=2, before=lambda: order.append("-"))
    assert "".join(order) == "-A-A-B-B-A-A-B-B"


def test_the_median_of_each_candidate_leaves_out_preparation(module, monkeypatch):
    now, durations = [0.0], iter([1.0, 5.0, 9.0, 5.0, 2.0, 6.0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def spend(seconds):
        now[0] += seconds

    calls = {name: lambda: spend(next(durations)) for name in "AB"}
    assert module.interleaved(calls, rounds=3, before=lambda: spend(100)) == {"A": 2.0, "B": 5.0}
