"""Rounds: the messages of an event on the wires of a topology, as many together as can start together.

An exchange among p ranks has p - 1 rounds. Those that share no port are one round; those over one switch are alike, and
one round stands for all: 16,384 ranks then take as much memory as a step of a ring.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hccljax.errors import ArgumentError
from hccljax.schedule.event import Event
from hccljax.topology.wiring import Routes, Wiring

_TOGETHER = 1 << 22  # messages of one full-mesh event that are looked at together
_MOST = 1 << 24  # messages of one full-mesh event whose rounds differ: 0.7 GB


@dataclass(frozen=True, eq=False)
class Round:
    """Messages of one event that can start together.

    Attributes:
      sources, destinations: the ranks of each message, [m].
      ports: the ports that each takes, [m, k]; 0 is none.
      kind: which of the ways each takes, [m].
      ways: (latency in seconds, bytes/s) of each kind of way, [kinds, 2].
      parts: slices of the messages in which each rank sends one at most, and receives one.
      repeats: how many rounds it stands for: those of an exchange over one switch, of which it is the first. In round
        k each rank sends to the k-th after it in its communicator of repeats + 1 ranks, which lie side by side.
    """

    sources: np.ndarray
    destinations: np.ndarray
    ports: np.ndarray
    kind: np.ndarray
    ways: np.ndarray
    parts: tuple[slice, ...]
    repeats: int = 1

    def each(self) -> Iterator[Round]:
        """The rounds that it stands for."""
        members, inward = (side.reshape(-1, self.repeats + 1) for side in (self.sources, self.ports[:, -1]))
        for k in range(self.repeats):
            ports = np.stack([self.ports[:, 0], np.roll(inward, -k, axis=1).reshape(-1)], 1)
            yield replace(self, destinations=np.roll(members, -k - 1, axis=1).reshape(-1), ports=ports, repeats=1)

    def seconds(self, nbytes: np.ndarray) -> np.ndarray:
        """How long a message of each size takes on each kind of way, [sizes, kinds]."""
        latency, rate = self.ways.T
        return latency + nbytes[:, None] / rate


def rounds_of(events: Sequence[Event], wiring: Wiring, places: np.ndarray) -> dict[int, list[Round]]:
    """The messages of each event, by its index; those of events that are alike are one object."""
    known: dict[Hashable, list[Round]] = {}
    found: dict[int, list[Round]] = {}
    for event in events:
        key = (event.axes, event.layout, event.pattern)
        if not event.is_communication:
            found[event.index] = []
            continue
        if key not in known:
            known[key] = list(_rounds(event, wiring, places))
        found[event.index] = known[key]
    return found


def _rounds(event: Event, wiring: Wiring, places: np.ndarray) -> Iterator[Round]:
    """The rounds of an event; those that share no port are one, and so are those of an exchange over one switch."""
    if event.pattern is None and event.layout.p > 2:
        if _is_over_one_switch(event.members, wiring, places):
            sources, destinations = next(event.rounds())
            routes = wiring.routes(places[sources], places[destinations])
            yield replace(_round(sources, destinations, routes, (slice(None),)), repeats=event.layout.p - 1)
            return
        if event.members.size * (event.layout.p - 1) > _MOST:
            raise ArgumentError(
                f"an exchange among {event.layout.p:,} ranks over several levels has "
                f"{event.members.size * (event.layout.p - 1):,} messages in rounds that differ; expected {_MOST:,} at "
                f"most: simulate fewer ranks, or one that goes level by level (algorithm='level0:mesh;level1:mesh'); "
                f"hccljax.explain costs it by a closed form"
            )
    rounds = [(sources, destinations) for sources, destinations in event.rounds() if len(sources)]
    if len(rounds) > 1 and len(rounds) * len(places) <= _TOGETHER:
        sources, destinations = (np.concatenate(side) for side in zip(*rounds, strict=True))
        routes = wiring.routes(places[sources], places[destinations])
        used = routes.ports[routes.ports > 0]
        if len(np.unique(used)) == len(used):
            cuts = np.cumsum([0, *(len(each) for each, _ in rounds)])
            yield _round(sources, destinations, routes, tuple(map(slice, cuts[:-1], cuts[1:])))
            return
    for sources, destinations in rounds:
        yield _round(
            sources, destinations, wiring.routes(places[sources], places[destinations]), (slice(0, len(sources)),)
        )


def _is_over_one_switch(members: np.ndarray, wiring: Wiring, places: np.ndarray) -> bool:
    """True if the ranks of each communicator, [communicators, p], differ at one level only, a sound switch."""
    coordinates = wiring.places[places[members]]
    differ = np.flatnonzero((coordinates != coordinates[:, :1]).any(axis=(0, 1)))
    links = [wiring.topology.levels[k].links for k in differ]
    return links == ["switch"] and not wiring.topology.faults


def _round(sources: np.ndarray, destinations: np.ndarray, routes: Routes, parts: tuple[slice, ...]) -> Round:
    # Pairs as complex numbers: with axis=0, np.unique took half the time of a simulation of 1,024 ranks.
    ways, kind = np.unique(routes.latency + 1j * routes.rate, return_inverse=True)
    return Round(sources, destinations, _distinct(routes.ports), kind, np.stack([ways.real, ways.imag], 1), parts)


def _distinct(ports: np.ndarray) -> np.ndarray:
    """The ports with no port twice in a column, where messages share one: the second one moves to a further column."""
    columns: list[np.ndarray] = []
    for column in ports.T:
        left = column
        while left.any():
            first = np.zeros_like(left)
            at = np.unique(left, return_index=True)[1]
            first[at] = left[at]
            columns.append(first)
            left = np.where(first > 0, 0, left)
    return np.stack(columns, 1) if columns else ports
