"""Clocks: when the results of communications are there, and how far a loop's times can be carried on.

Times are rows of NumPy arrays, [1, …]. To see how a loop goes on, it is run once more with a second row, [2, …]: by how
much each time grows from one trip to the next. The later of two times hands its own growth on, and stays the later one
for a number of trips that follows from the four figures: the ``horizon`` up to which every trip repeats this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np

from hccljax.schedule.event import Event

FOREVER = 2**62


class StepClock:
    """Counts communications along chains; a communication takes one step whatever it sends.

    Attributes:
      state: what later communications find besides their operands, [1, …] or [2, …]: here the longest chain so far.
      nothing: the time of what is there from the start.
      horizon: trips for which the growth in the second rows holds.
    """

    def __init__(self) -> None:
        self.state = np.zeros((1, 1), np.int64)
        self.nothing = np.zeros((1, 1), np.int64)
        self.horizon = FOREVER

    def later(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The later of two times, [1, …] or [2, …], elementwise."""
        if len(one) == len(other) == 1:
            return np.maximum(one, other)
        one, other = np.broadcast_arrays(grown(one), grown(other))
        ahead = (one[0] > other[0]) | ((one[0] == other[0]) & (one[1] >= other[1]))
        winner, loser = np.where(ahead, one, other), np.where(ahead, other, one)
        gaining = loser[1] > winner[1]
        if gaining.any():
            trips = (winner[0] - loser[0])[gaining] // (loser[1] - winner[1])[gaining]
            self.horizon = min(self.horizon, int(trips.min()))
        return winner

    def join(self, times: Iterable[np.ndarray]) -> np.ndarray:
        """When the last of several values is there."""
        return reduce(self.later, times, self.nothing)

    def communicate(self, event: Event, operand: np.ndarray) -> np.ndarray:
        """When the result is there, given when the operand is; computations take no time."""
        if not event.is_communication:
            return operand
        result = after(operand, 1)
        self.state = self.later(self.state, result)
        return result


class PortClock(StepClock):
    """Counts rounds: a rank sends one message and receives one at a time, each takes 1; times are [1, n].

    Messages start in program order, as soon as their sender has the value and both ports are free. The state is
    [1, 2, n]: when each rank can send again, and when it can receive.
    """

    def __init__(self, n: int):
        super().__init__()
        self.state, self.nothing = np.zeros((1, 2, n), np.int64), np.zeros((1, n), np.int64)

    def communicate(self, event: Event, operand: np.ndarray) -> np.ndarray:
        """When the result is there on each rank; one that receives nothing has its zeros from the start."""
        if not event.is_communication:
            return operand
        stays = event.stays
        self.state = self.state.copy() if len(self.state) == len(operand) else grown(self.state)
        operand = operand if len(self.state) == len(operand) else grown(operand)
        times = np.zeros_like(operand)
        times[:, stays] = operand[:, stays]
        rounds = event.rounds()
        if not event.is_permute and self._level(event.members, operand):
            rounds = iter([(event.members.reshape(-1),) * 2])
            took = event.layout.p - 1
        else:
            took = 1
        for sources, destinations in rounds:
            sending, receiving = self.state[:, 0], self.state[:, 1]
            ready = self.later(operand[:, sources], sending[:, sources])
            ends = after(self.later(ready, receiving[:, destinations]), took)
            sending[:, sources] = receiving[:, destinations] = ends
            times[:, destinations] = self.later(times[:, destinations], ends)
        return times

    def _level(self, members: np.ndarray, operand: np.ndarray) -> bool:
        """True if all members of a communicator start an exchange at the same time: its rounds are alike."""
        starts = np.concatenate([operand[:, None], self.state], 1)[:, :, members]
        level: bool = (starts == starts[..., :1]).all() and (starts[:, 1] == starts[:, 2]).all()
        return level and members.shape[1] > 1


def after(times: np.ndarray, duration: int) -> np.ndarray:
    """The times, that much later; their growth is the same."""
    result = times.copy()
    result[0] += duration
    return result


def grown(times: np.ndarray, growth: np.ndarray | int = 0) -> np.ndarray:
    """Times with a row for their growth, [2, …]; those that have one keep it."""
    return times.copy() if len(times) == 2 else np.stack([times[0], np.zeros_like(times[0]) + growth])
