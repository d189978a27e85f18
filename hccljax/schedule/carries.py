"""What the values stand for that a loop hands from one trip to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hccljax.schedule.event import Carry, Loop, Ref

Refs = frozenset[Ref]
"""A value: the events and carries that it is computed from, without what those needed in their turn."""


def substituted(refs: Refs, values: Mapping[Ref, Refs]) -> Refs:
    """The references with some of them replaced by what they stand for."""
    if values.keys().isdisjoint(refs):  # looks at the few references, not at all that is known
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


def inside_values(loop: Loop) -> dict[Ref, tuple[Refs, Refs]]:
    """What each carry of a loop stands for at the start of its trips, the loop's own numbers resolved.

    The first part is there before the loop, the second one comes from earlier trips: a value that is handed through
    d other carries needs d trips to arrive.
    """
    carries = {carry.number: carry for carry in loop.carries}
    values = {}
    for number in carries:
        first: Refs = frozenset()
        update: Refs = frozenset()
        level, seen = {number}, {number}
        for trip in range(loop.trips):
            first = first.union(*(carries[other].first for other in level))
            if trip < loop.trips - 1:
                update = update.union(*(carries[other].update for other in level))
            level = {ref for other in level for ref in carries[other].update if ref in carries} - seen
            seen |= level
            if not level:
                break
        values[number] = (first, update - set(carries))
    return values
