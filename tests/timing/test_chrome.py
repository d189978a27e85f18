"""Traces for Perfetto, read back as JSON and looked at track by track."""

import json
from collections import defaultdict
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hccljax
from hccljax.errors import ArgumentError
from hccljax.timing.rates import Rates
from hccljax.timing.simulation import simulate
from hccljax.topology import Level, Topology


@pytest.fixture
def trace_of(tmp_path):
    def trace_of(simulation):
        path = simulation.timeline().to_chrome(tmp_path / "trace.json")
        return json.loads(path.read_text())["traceEvents"]

    return trace_of


def test_ring_on_two_tiers(trace_of, schedule_of, a2):
    found = simulate(schedule_of("ring", "all_reduce", 16, 16 << 20), a2(2))
    events = trace_of(found)
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {rank: f"rank {rank}" for rank in range(16)}
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 2 * 16 * 30  # a message is a slice at either end
    assert {event["name"] for event in slices} == {"ring_reduce_scatter", "ring_all_gather"}
    first = next(event for event in slices if event["pid"] == 7 and event["args"]["from"] == 7)
    assert (tracks[first["tid"]], first["args"]["to"]) == ("RoCE to", 8)
    assert {tracks[event["tid"]] for event in slices if event["pid"] == 1} == {"HCCS to 2", "HCCS from 0"}
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(found.seconds * 1e6, abs=1e-3)


def test_slices_of_a_track_do_not_overlap(trace_of, a2):
    def step(x, w):
        y = hccljax.all_reduce(x @ w, "r", algorithm="mesh")
        z = hccljax.all_gather(w, "r", algorithm="NHR")
        return lax.psum(y @ w, "r"), z

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    schedule = hccljax.trace(step, x, x, axis_sizes={"r": 16}, compute=True)
    events = trace_of(simulate(schedule, a2(2), rates=Rates(1e12)))
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(nanoseconds(event))
    assert any(event["name"] == "compute" for event in events)
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def nanoseconds(event):
    """A slice as Perfetto counts: start and duration in whole nanoseconds, each rounded by itself."""
    start = round(event["ts"] * 1e3)
    return start, start + round(event["dur"] * 1e3)


def test_levels_that_share_a_name_have_tracks_of_their_own(trace_of, schedule_of):
    events = trace_of(simulate(schedule_of("mesh", "all_reduce", 16, 1 << 18), "atlas-800t-a2:2x2x4"))
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"RoCE (level 1) to", "RoCE (level 2) to"} <= names
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(nanoseconds(event))
    for spans in tracks.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))


@pytest.mark.parametrize("links", ["ring", "switch"])
@pytest.mark.parametrize(("algorithm", "nbytes"), [("ring", 16_000), ("NHR", 1 << 24), ("double_tree", 1 << 24)])
def test_nor_do_they_once_times_are_whole_nanoseconds(algorithm, nbytes, links, trace_of, schedule_of):
    topology = Topology(levels=(Level("links", 16, links, 56e9, 1.5e-6),))
    tracks = defaultdict(list)
    for event in trace_of(simulate(schedule_of(algorithm, "all_reduce", 16, nbytes), topology)):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(nanoseconds(event))
    assert sum(map(len, tracks.values())) > 100
    for spans in tracks.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))


def test_arrows_join_their_slices(trace_of, schedule_of, a2):
    events = trace_of(simulate(schedule_of("tree", "broadcast", 8, 1 << 20), a2(1)))
    starts, ends = ({event["id"]: event for event in events if event["ph"] == phase} for phase in "sf")
    assert len(starts) == 7
    assert starts.keys() == ends.keys()
    assert all(starts[k]["ts"] < ends[k]["ts"] and starts[k]["pid"] != ends[k]["pid"] for k in starts)


def test_long_timelines_are_refused(schedule_of, a2):
    with pytest.raises(ArgumentError, match="more than limit=100 messages"):
        simulate(schedule_of("ring", "all_reduce", 16, 16), a2(2)).timeline(limit=100)


def test_what_one_rank_does(schedule_of, a2):
    of_rank = simulate(schedule_of("tree", "all_reduce", 8, 1 << 10), a2(1)).timeline().of_rank(5)
    assert [(interval.source, interval.destination) for interval in of_rank] == [(5, 4), (4, 5)]
    assert str(of_rank[0]).endswith("µs: tree_reduce, 5 → 4, 1,024 bytes")
