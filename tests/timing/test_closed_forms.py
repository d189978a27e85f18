"""Closed forms against the figures of the records, and against formulas of papers written out again."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hccljax.algorithm import algorithms, registered
from hccljax.algorithm.base import COMPOSED, OPERATORS
from hccljax.algorithm.slicing import sliced
from hccljax.errors import ArgumentError, UnsupportedError
from hccljax.timing.closed import _FORMULAS, closed_form
from hccljax.timing.kernel import kernel_schedule
from hccljax.timing.simulation import simulate
from hccljax.topology import Level, Topology

FULL_MESH = ("mesh", "star", "pipeline", "NHR_pipeline")
"""Algorithms whose formulas are those of a full mesh."""


def has_formula(name, operator, p):
    """The others cost their records' own steps and bytes, whatever these are."""
    formula = _FORMULAS[name]
    parts = [formula(part, p, 1.0) for part in COMPOSED.get(operator, (operator,))]
    return formula(operator, p, 1.0) is not None or None not in parts


COSTED = [
    (name, operator, p)
    for name in _FORMULAS
    for operator in OPERATORS
    for p in (2, 3, 8, 13, 64)
    if registered(name).supports(operator) and has_formula(name, operator, p)
]
LONG = 1 << 24


@pytest.mark.parametrize(("name", "operator", "p"), COSTED)
def test_messages_are_the_steps_of_the_record(name, operator, p):
    nbytes = LONG * p
    assert closed_form(name, operator, p, nbytes).messages == registered(name).cost(operator, p, nbytes).steps


@pytest.mark.parametrize(("name", "operator", "p"), COSTED)
def test_bytes_are_no_fewer_than_one_rank_sends(name, operator, p):
    """On one port all that the busiest rank sends goes one after the other; a full mesh sends p - 1 at once."""
    nbytes = LONG * p
    sent = registered(name).cost(operator, p, nbytes).bytes_sent
    at_once = (p - 1) if name in FULL_MESH else 1
    assert closed_form(name, operator, p, nbytes).sent * at_once >= sent


@pytest.mark.parametrize("p", [2, 3, 7, 8, 32])
def test_all_reduce_of_the_papers(p):
    n, steps = 840.0 * p, math.ceil(math.log2(p))
    assert closed_form("ring", "all_reduce", p, 840 * p) == (2 * (p - 1), 2 * (p - 1) / p * n, (p - 1) / p * n)
    assert closed_form("tree", "all_reduce", p, 840 * p) == (2 * steps, 2 * steps * n, steps * n)
    assert closed_form("NHR", "all_reduce", p, 840 * p) == (2 * steps, 2 * steps * n, steps * n)  # not cut
    assert closed_form("mesh", "all_reduce", p, 840 * p) == (2, 2 * n / p, (p - 1) / p * n)


@pytest.mark.parametrize(("p", "messages", "sent"), [(8, 6, 7 / 4), (6, 6, 2 * 3 / 4 + 2), (5, 6, 2 * 3 / 4 + 2)])
def test_halving_and_doubling(p, messages, sent):
    terms = closed_form("H-D_R", "all_reduce", p, 840 * p)
    assert (terms.messages, terms.sent) == (messages, pytest.approx(sent * 840 * p))


@pytest.mark.parametrize("name", _FORMULAS)
def test_one_rank_needs_nothing(name):
    operator = next(each for each in OPERATORS if registered(name).supports(each))
    assert closed_form(name, operator, 1, 800) == (0, 0, 0)


def test_a_record_of_the_same_name_is_another_algorithm():
    """It costs what its own record says: 1,024 slices of a ring, or what a user has written."""
    mine = replace(registered("mesh"), steps=lambda operator, p, nbytes: 99)
    assert closed_form(mine, "all_reduce", 8, 800).messages == 99
    nbytes = 1 << 20
    assert closed_form(sliced(registered("ring"), 1 << 10), "all_reduce", 8, nbytes).messages == 14 * 1024
    assert closed_form(registered("mesh"), "all_reduce", 8, 800) == closed_form("mesh", "all_reduce", 8, 800)


def test_short_forms_end_at_their_limit():
    at, above = (closed_form("NHR", "all_reduce", 8, 256 * 1024 + extra) for extra in (0, 8))
    assert at.sent == 6 * 256 * 1024
    assert above.sent == pytest.approx(7 / 4 * (256 * 1024 + 8))


def test_numbers_of_numpy():
    assert closed_form("ring", "all_reduce", np.int64(8), np.int32(800)) == closed_form("ring", "all_reduce", 8, 800)


def test_bruck_moves_half_at_powers_of_two():
    assert closed_form("bruck", "all_to_all", 8, 800) == (3, 3 * 400, 0)
    assert closed_form("bruck", "all_to_all", 6, 600).sent == 100 * (3 + 2 + 2)  # distances 1 3 5, 2 3, 4 5


def test_seconds():
    terms = closed_form("tree", "all_reduce", 5, 10)
    assert terms.seconds(alpha=1, beta=1, gamma=0.3) == pytest.approx(6 + 60 + 9)


def test_v_forms_cost_what_they_run():
    assert closed_form("pairwise", "all_to_all_v", 8, 800) == closed_form("pairwise", "all_to_all", 8, 800)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("ring", "all_reduce", 0, 8), ArgumentError, "p=0"),
        (("ring", "all_reduce", 8.0, 8), ArgumentError, "p=8.0"),
        (("rign", "all_reduce", 8, 8), ArgumentError, "unknown algorithm"),
        ((3, "all_reduce", 8, 8), ArgumentError, "unknown algorithm 3"),
        (("ring", "sum", 8, 8), ArgumentError, "operator='sum'"),
        (("ring", "all_reduce", 8, -8), ArgumentError, "nbytes=-8"),
        (("tree", "all_to_all", 8, 8), UnsupportedError, "has no all_to_all"),
    ],
)
def test_refusals(arguments, error, words):
    with pytest.raises(error, match=words):
        closed_form(*arguments)


@pytest.mark.parametrize("p", [2, 3, 7, 8, 12])
@pytest.mark.parametrize("name", [name for name in algorithms() if name not in ("native",)])
def test_they_are_what_is_simulated(name, p):
    """On the links that they are made for: one port a rank, or a full mesh; nothing is combined."""
    record, links = registered(name), "full_mesh" if name in FULL_MESH else "switch"
    topology = Topology((p,), levels=(Level("links", p, links, 1e9, 1e-6),))
    for operator in (operator for operator in OPERATORS if record.supports(operator)):
        nbytes = 840 * p
        found = closed_form(name, operator, p, nbytes)
        for latency, bandwidth in ((1e-6, 1e12), (0.0, 1e9)):
            links = topology.with_level(0, latency=latency, bandwidth=bandwidth)
            seconds = simulate(kernel_schedule(record, operator, p, nbytes), links).seconds
            assert found.seconds(latency, 1 / bandwidth) == pytest.approx(seconds, rel=0.02), operator


def test_integers_of_numpy():
    for number in (np.int32, np.int64, np.uint8):
        assert closed_form("double_tree", "all_reduce", 7, number(200)) == closed_form(
            "double_tree", "all_reduce", 7, 200
        )
    assert closed_form("AHC", "all_reduce", 7, np.int32(2**31 - 1)).sent > 2**31
