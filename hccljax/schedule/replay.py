"""Replays a schedule against a clock: loops run until their trips repeat each other, then jump to their end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hccljax.schedule.clock import FOREVER, StepClock, grown
from hccljax.schedule.event import Event, Loop, Ref

_PERIODS = (1, 2, 3, 4)  # a pattern may take several trips to come back, as where two buffers take turns


def replay(events: Sequence[Event], loops: Sequence[Loop], clock: StepClock, jump: bool = True) -> None:
    """Hands every execution of every event to the clock, in program order; the clock's state is the result.

    Args:
      events: those of a schedule.
      loops: its loops.
      clock: what to measure with.
      jump: False to run every trip of every loop: the same result, in time proportional to the trips.
    """
    _Replay(events, loops, clock, jump).run(None, range(len(events)))


class _Replay:
    def __init__(self, events: Sequence[Event], loops: Sequence[Loop], clock: StepClock, jump: bool):
        self.events, self.loops, self.clock, self.jump = events, loops, clock, jump
        self.times: dict[Ref, np.ndarray] = {}
        self.starting = {(loop.parent, loop.events.start): loop for loop in loops}

    def run(self, parent: int | None, events: range) -> None:
        """The events of one body, once."""
        index = events.start
        while index < events.stop:
            loop = self.starting.get((parent, index))
            if loop is not None:
                self._loop(loop)
                index = loop.events.stop
            else:
                self.times[index] = self.clock.communicate(self.events[index], self._at(self.events[index].inputs))
                index += 1

    def _at(self, refs: frozenset[Ref]) -> np.ndarray:
        return self.clock.join(self.times[ref] for ref in refs)

    def _once(self, loop: Loop) -> None:
        self.run(loop.index, loop.events)
        updated = {carry.number: self._at(carry.update) for carry in loop.carries}
        self.times.update(updated)

    def _loop(self, loop: Loop) -> None:
        self.times.update({carry.number: self._at(carry.first) for carry in loop.carries})
        done, next_try = 0, 0
        past: list[np.ndarray] = []
        while done < loop.trips:
            if self.jump and len(self.clock.state) == 1:  # with two rows, a loop around this one is being looked at
                past = [*past[-2 * _PERIODS[-1] :], self._snapshot(loop)]
                period = _period(past) if done >= next_try else 0
                if 0 < period <= loop.trips - done:
                    growth = past[-1] - past[-1 - period]
                    periods = self._skip(loop, period, (loop.trips - done) // period, growth)
                    done += period * periods
                    # A period that does not repeat is looked at again later, ever less often.
                    next_try, past = (2 * done if periods == 1 else done), []
                    continue
            self._once(loop)
            done += 1

    def _snapshot(self, loop: Loop) -> np.ndarray:
        times = [self.clock.state, *(self.times[carry.number] for carry in loop.carries)]
        return np.concatenate([row.reshape(-1) for row in times])

    def _skip(self, loop: Loop, period: int, most: int, growth: np.ndarray) -> int:
        """Runs one period with its growth and repeats it as often as that is exact; how many periods are done."""
        start = self._snapshot(loop)
        self.clock.horizon = FOREVER
        self._set(loop, np.stack([start, growth]))
        for _ in range(period):
            self._once(loop)
        end = np.concatenate([grown(row).reshape(2, -1) for row in (self.clock.state, *self._carried(loop))], 1)
        exact = np.array_equal(end, np.stack([start + growth, growth]))
        periods = min(most, self.clock.horizon + 1) if exact else 1
        self._set(loop, (start + periods * growth if exact else end[0])[None])
        return periods

    def _carried(self, loop: Loop) -> list[np.ndarray]:
        return [self.times[carry.number] for carry in loop.carries]

    def _set(self, loop: Loop, rows: np.ndarray) -> None:
        """Puts a snapshot back, [1, …] or [2, …]."""
        used = self.clock.state[0].size
        self.clock.state = rows[:, :used].reshape(len(rows), *self.clock.state.shape[1:]).copy()
        for carry in loop.carries:
            shape = self.times[carry.number].shape[1:]
            size = self.times[carry.number][0].size
            self.times[carry.number] = rows[:, used : used + size].reshape(len(rows), *shape).copy()
            used += size


def _period(past: Sequence[np.ndarray]) -> int:
    """After how many trips the times have grown by the same twice in a row; 0 if they have not."""
    for period in _PERIODS:
        if len(past) > 2 * period:
            now, before, first = past[-1], past[-1 - period], past[-1 - 2 * period]
            if np.array_equal(now - before, before - first):
                return period
    return 0
