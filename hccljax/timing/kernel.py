"""How long an algorithm's operator takes on a topology: its kernel, traced once and simulated for any size.

The schedule of a kernel has the same form for all sizes between two that its record tells apart, and its messages grow
with the size; so one trace serves many sizes. Sizes that do not cut into even blocks are taken as if they did.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from hccljax.algorithm import Algorithm
from hccljax.algorithm.base import GIVES_BLOCKS, REDUCING, TAKES_BLOCKS, run
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule import Schedule, trace
from hccljax.timing.settling import Settled, makespans, settled
from hccljax.topology import Topology

_AXIS = "rank"
_EVEN = 1 << 16  # bytes of a block


def kernel_schedule(
    record: Algorithm, operator: str, p: int, nbytes: int, tiers: tuple[int, ...] | None = None
) -> Schedule:
    """What an operator communicates for a message of nbytes, up to p - 1 more, on p ranks.

    Args:
      record: an algorithm that supports the operator.
      operator: such as ``"all_reduce"``.
      p: ranks.
      nbytes: bytes of one rank's message, all p blocks of it.
      tiers: members of each level, level 0 first, for a record that works on tiers.
    """
    block = -(-nbytes // p)
    if operator in TAKES_BLOCKS:
        shape: tuple[int, ...] = (p, block)
    else:
        shape = (block,) if operator in GIVES_BLOCKS else (block * p,)
    op, group = reduction("sum") if operator in REDUCING else None, Group(_AXIS, levels=tiers)
    operand = jax.ShapeDtypeStruct(shape, np.uint8)
    return trace(lambda x: run(record, operator, x, group, op), operand, axis_sizes={_AXIS: p})


_Key = tuple[Algorithm, str, int, tuple[int, int], Topology, tuple[int, ...] | None, int]

_RUNS: dict[_Key, tuple[Settled, int]] = {}
"""The run of each form, with the bytes it was traced for; the oldest goes when there are too many."""

_MOST = 4096


def kernel_seconds(
    record: Algorithm,
    operator: str,
    p: int,
    sizes: Sequence[int],
    topology: Topology,
    tiers: tuple[int, ...] | None = None,
    stride: int = 1,
) -> np.ndarray:
    """Seconds that an operator takes for messages of several sizes: [sizes].

    Args:
      record, operator, p, tiers: as in ``kernel_schedule``.
      sizes: bytes of one rank's message.
      topology: with levels.
      stride: the ranks take every stride-th place of the topology.
    """

    found = np.zeros(len(sizes))
    forms: dict[tuple[int, int], list[int]] = {}
    for index, nbytes in enumerate(sizes):
        forms.setdefault(_form(record, operator, p, nbytes), []).append(index)
    for indices in forms.values():
        run_, traced = _kept(record, operator, p, max(sizes[index] for index in indices), topology, tiers, stride)
        found[indices] = makespans(run_, [sizes[index] / traced for index in indices])
    return found


def kernel_level_bytes(
    record: Algorithm, operator: str, p: int, nbytes: int, topology: Topology, tiers: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """The most bytes that one port carries at each level of the wiring, the innermost first."""
    run_, traced = _kept(record, operator, p, nbytes, topology, tiers, 1)
    return tuple(round(most * nbytes / traced) for most in run_.most_bytes)


def _form(record: Algorithm, operator: str, p: int, nbytes: int) -> tuple[int, int]:
    """What tells apart the sizes for which a kernel works in another way."""
    return record.cost(operator, p, nbytes).steps, sum(nbytes > threshold for threshold in record.regimes)


def _kept(
    record: Algorithm,
    operator: str,
    p: int,
    nbytes: int,
    topology: Topology,
    tiers: tuple[int, ...] | None,
    stride: int,
) -> tuple[Settled, int]:
    """(a run of the form that nbytes has, the bytes that it was traced for)."""
    key = (record, operator, p, _form(record, operator, p, nbytes), topology, tiers, stride)
    if key not in _RUNS:
        # A message of many bytes a block, if the form has one: rounding up to whole blocks leaves it what it is. One of
        # no bytes would tell nothing of others.
        even = _EVEN * p if _form(record, operator, p, _EVEN * p) == key[3] else max(1, nbytes)
        run_ = settled(kernel_schedule(record, operator, p, even, tiers), topology, (np.arange(p) * stride).tolist())
        if len(_RUNS) >= _MOST:
            _RUNS.pop(next(iter(_RUNS)), None)
        _RUNS[key] = run_, -(-even // p) * p
    return _RUNS[key]
