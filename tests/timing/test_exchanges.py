"""Full-mesh exchanges over one switch: their rounds are taken together, and it makes no difference."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import hccljax
from hccljax.errors import ArgumentError
from hccljax.group import Group
from hccljax.timing.clock import TierClock
from hccljax.timing.settling import makespans, settled
from hccljax.timing.simulation import simulate
from hccljax.topology import Level, Topology

X = jax.ShapeDtypeStruct((1000,), "uint8")
P = 12


def on_switches(*sizes):
    return Topology(levels=tuple(Level(f"l{k}", size, "switch", 1e9, 1e-6 * (1 + k)) for k, size in enumerate(sizes)))


def round_by_round(monkeypatch):
    monkeypatch.setattr(TierClock, "_level", lambda self, one, start: False)


@pytest.fixture
def together(monkeypatch):
    """How many exchanges have been taken together so far."""
    taken = []
    send_together = TierClock._send_together

    def counted(self, *arguments):
        taken.append(arguments[0])
        send_together(self, *arguments)

    monkeypatch.setattr(TierClock, "_send_together", counted)
    return taken


@pytest.mark.parametrize("gamma", [0.0, 1e-10, 1e-9, 1e-7])
@pytest.mark.parametrize("p", [3, 4, 13])
def test_sums_among_equals(p, gamma, together, monkeypatch):
    """p - 1 messages on one port: combined while the next one arrives, or as soon as the one before is."""
    run = settled(hccljax.trace(lambda x: lax.psum(x, "r"), X, axis_sizes={"r": p}), on_switches(p), gamma=gamma)
    scales = np.array([0.0, 1.0, 7.0])
    at_once = makespans(run, scales)
    message, combining = 1e-6 + scales * 1e-6, gamma * 1000 * scales
    expected = message + combining + (p - 2) * np.maximum(message, combining)
    np.testing.assert_allclose(at_once, expected, rtol=1e-12)
    assert len(together) == 1
    round_by_round(monkeypatch)
    np.testing.assert_allclose(makespans(run, scales), at_once, rtol=1e-12)


def test_a_receiver_still_combines_when_the_next_sum_arrives(uniform):
    """Two sums that do not need each other, 3 messages of 2 µs each; combining one takes 10 µs, all six 60."""
    both = lambda x, y: (lax.psum(x, "r"), lax.psum(y, "r"))  # noqa: E731
    schedule = hccljax.trace(both, X, X, axis_sizes={"r": 4})
    assert simulate(schedule, uniform(4), gamma=1e-8).seconds == pytest.approx(2e-6 + 6 * 10e-6)


def test_who_comes_late_is_waited_for_round_by_round(together):
    """Rank 0 has its value 2 µs after the others: the rounds overtake each other."""

    def late(x):
        return lax.all_gather(x + lax.ppermute(x, "r", [(1, 0)]), "r")

    found = simulate(hccljax.trace(late, X, axis_sizes={"r": 4}), on_switches(4))
    assert not together
    assert found.seconds == pytest.approx(8e-6)  # ranks 0 and 1 start at 2 µs; three rounds after that


MOVES = st.lists(
    st.one_of(
        st.sampled_from(["psum", "inside", "between"]),
        st.permutations(range(P)).map(lambda to: list(enumerate(to))),
        st.just([(0, 1)]),
    ),
    min_size=1,
    max_size=4,
)
GROUPS = {"inside": np.arange(P).reshape(3, 4), "between": np.arange(P).reshape(3, 4).T}


def moved(moves, values):
    """Two values take turns: a move does not need the one before it, so that they are in two streams."""
    for move in moves:
        x = values[0]
        if move == "psum":
            x = x + lax.psum(x, "r")
        elif isinstance(move, str):
            x = x + Group("r", GROUPS[move].tolist()).mesh_gather(x)[0]
        else:
            x = x + Group("r").permute(x, move, "some_reduce")
        values = (values[1], x)
    return values


@settings(max_examples=40, deadline=None)
@given(MOVES, MOVES, st.integers(1, 30), st.sampled_from([(12,), (4, 3)]), st.sampled_from([0.0, 1e-10, 1e-7]))
def test_random_programs(body, tail, trips, sizes, gamma):
    fn = lambda x: moved(tail, lax.fori_loop(0, trips, lambda i, v: moved(body, v), (x, x)))  # noqa: E731
    run = settled(hccljax.trace(fn, X, axis_sizes={"r": P}), on_switches(*sizes), gamma=gamma)
    at_once = makespans(run, [1.0, 0.01])
    with pytest.MonkeyPatch.context() as monkeypatch:
        round_by_round(monkeypatch)
        np.testing.assert_allclose(at_once, makespans(run, [1.0, 0.01]), rtol=1e-12)


def test_a_mesh_of_16384_ranks(schedule_of, together):
    """268 million messages."""
    p = 16_384
    found = simulate(schedule_of("mesh", "all_reduce", p, 1000 * p), on_switches(p))
    assert found.seconds == pytest.approx(2 * (p - 1) * 2e-6, rel=1e-9)
    assert len(together) == 2
    (tier,) = found.tiers
    assert (tier.nbytes, tier.most) == (2 * p * (p - 1) * 1000, 2 * (p - 1) * 1000)
    assert tier.busy == pytest.approx(found.seconds)
    assert found.busy_by_axes() == {"rank": pytest.approx(found.seconds)}


def test_what_would_take_too_much_memory_is_refused(schedule_of, a2):
    with pytest.raises(ArgumentError, match=r"among 8,192 ranks over several levels .* expected 16,777,216 at most"):
        simulate(schedule_of("mesh", "all_gather", 8192, 8192), a2(1024))


def test_the_timeline_has_every_message(uniform):
    found = simulate(hccljax.trace(lambda x: lax.psum(x, "r"), X, axis_sizes={"r": 5}), uniform(5), gamma=1e-9)
    timeline = found.timeline()
    assert len({(one.source, one.destination) for one in timeline}) == len(timeline) == 20
    assert timeline.seconds == pytest.approx(found.seconds)
    assert [one.waited_for for one in timeline.critical_path()] == ["", "port", "port", "port"]


def test_switches_with_faults_go_round_by_round(uniform, together):
    schedule = hccljax.trace(lambda x: lax.psum(x, "r"), X, axis_sizes={"r": 4})
    slow = simulate(schedule, uniform(4).degrade(rank=1, factor=0.5))
    assert not together
    assert slow.seconds > simulate(schedule, uniform(4)).seconds
