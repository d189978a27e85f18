"""What the values stand for that a loop hands from one trip to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hccljax.schedule.event import Carry, Ref

Refs = frozenset[Ref]
"""A value: the events and carries that it is computed from, without what those needed in their turn."""


def substituted(refs: Refs, values: Mapping[Ref, Refs]) -> Refs:
    """The references with some of them replaced by what they stand for."""
    if refs.isdisjoint(values):
        return refs
    return frozenset().union(*(values.get(ref, frozenset({ref})) for ref in refs))


def last_values(carries: Sequence[Carry], trips: int) -> list[Refs]:
    """The carries after the loop, its own numbers resolved: the update, applied trips times by repeated squaring."""
    power = {carry.number: carry.update for carry in carries}
    total = {carry.number: frozenset({carry.number}) for carry in carries}
    while trips:
        if trips & 1:
            total = {number: substituted(refs, total) for number, refs in power.items()}
        power = {number: substituted(refs, power) for number, refs in power.items()}
        trips >>= 1
    first = {carry.number: carry.first for carry in carries}
    return [substituted(total[carry.number], first) for carry in carries]
