"""Counts what a per-device function communicates: steps, permutes and rounds are different figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hccljax.schedule.tracing import trace


@dataclass(frozen=True)
class Counts:
    """What a per-device function communicates, unused results left out.

    Attributes:
      steps: communications on the longest chain in which each needs the one before: what latency pays. A
        full-mesh exchange is one.
      permutes: permutes executed, loop bodies times their trips; each of several independent ones counts.
      exchanges: full-mesh communications executed: all-to-all, all-gather, psum, ….
      rounds: when the last message ends, if each takes 1 from the moment its sender has the value and both
        ports are free, in program order; a rank sends one and receives one at a time. A full-mesh exchange
        among p ranks takes p - 1.
      bytes_sent: bytes sent by the rank that sends most; what a rank sends to itself is free. ``psum`` and
        its like count as every rank sending its operand to every other: how XLA does it is not visible.
    """

    steps: int
    permutes: int
    exchanges: int
    rounds: int
    bytes_sent: int


def count(fn: Callable[..., Any], *args: Any, axis_sizes: Mapping[str, int]) -> Counts:
    """The five figures of ``hccljax.trace(fn, *args, axis_sizes=axis_sizes)``; it has the same arguments and errors.

    >>> swap = lambda x: jax.lax.ppermute(x, "rank", [(0, 1), (1, 0)])
    >>> count(swap, jax.ShapeDtypeStruct((256,), "float32"), axis_sizes={"rank": 2})
    Counts(steps=1, permutes=1, exchanges=0, rounds=1, bytes_sent=1024)
    """
    schedule = trace(fn, *args, axis_sizes=axis_sizes)
    return Counts(
        steps=schedule.steps,
        permutes=schedule.permutes,
        exchanges=schedule.exchanges,
        rounds=schedule.rounds,
        bytes_sent=schedule.max_bytes_sent,
    )
