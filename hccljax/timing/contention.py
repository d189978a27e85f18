"""Contention: which ports can make a message wait.

A message that waits for both its ends to be done with what came before it in its stream waits for most ports on the
way with that: a port is free by then if one rank is an end of all its messages, they are of one stream, and no
execution of an event has two of them. What is left are ports that streams share, switches in an exchange, and links of
a ring of links that carry what others send. Where one collective goes step by step, on switches or full meshes, none
is: a ring of 16,384 ranks with a slow link, whose loops cannot be skipped, then takes a ninth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hccljax.schedule.event import Event
from hccljax.timing.rounds import Round

_UNKNOWN = -1


def contended(events: Sequence[Event], rounds: Mapping[int, Sequence[Round]], ports: int, ordered: bool) -> np.ndarray:
    """True for each port that a message may have to wait for, bool [ports]; port 0 is none.

    Args:
      events: those of a schedule.
      rounds: the messages of each event, by its index.
      ports: how many there are.
      ordered: False if messages do not wait for those before them in their stream.
    """
    found = np.zeros(ports, bool)
    stream, source, destination = (np.full(ports, _UNKNOWN) for _ in range(3))
    same_source, same_destination = np.ones(ports, bool), np.ones(ports, bool)
    seen: set[tuple[int, int]] = set()
    for event in events:
        mine = rounds[event.index]
        if not mine or (id(mine), event.stream) in seen:
            continue
        seen.add((id(mine), event.stream))
        taken = np.concatenate([one.ports.reshape(-1) for one in mine])
        if not ordered or any(one.repeats > 1 for one in mine):
            found[taken] = True
            continue
        found |= np.bincount(taken, minlength=ports) > 1
        found[taken] |= (stream[taken] != _UNKNOWN) & (stream[taken] != event.stream)
        stream[taken] = event.stream
        for one in mine:
            for column in one.ports.T:
                same_source[column] &= _agrees(source, column, one.sources)
                same_destination[column] &= _agrees(destination, column, one.destinations)
    found |= ~(same_source | same_destination)
    found[0] = False
    return found


def _agrees(end: np.ndarray, ports: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Whether the ports have had no other end so far; where it is not known, it is noted."""
    known = end[ports]
    end[ports] = np.where(known == _UNKNOWN, ranks, known)
    return (known == _UNKNOWN) | (known == ranks)
