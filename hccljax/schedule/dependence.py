"""What the events of a schedule wait for: carries that say nothing removed, dependences resolved, streams assigned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hccljax.schedule.carries import Refs, inside_values, last_values, substituted
from hccljax.schedule.event import Carry, Event, Loop, Ref


def resolved(events: Sequence[Event], loops: Sequence[Loop]) -> tuple[tuple[Event, ...], tuple[Loop, ...]]:
    """The recorded events with needs, carried and stream, and the loops with the carries that events wait for."""
    settled = _settled(loops)
    events = [replace(event, inputs=substituted(event.inputs, settled)) for event in events]
    loops = [replace(loop, carries=_kept(loop.carries, settled)) for loop in loops]
    used = _used(events, loops)
    loops = [replace(loop, carries=tuple(c for c in loop.carries if c.number in used)) for loop in loops]
    reach = _Reach(loops)
    needs = [reach.of(event) for event in events]
    streams = _streams(events, [now for now, _ in needs])
    return tuple(
        replace(event, needs=tuple(sorted(now)), carried=tuple(sorted(earlier)), stream=stream)
        for event, (now, earlier), stream in zip(events, needs, streams, strict=True)
    ), tuple(loops)


def _settled(loops: Sequence[Loop]) -> dict[Ref, Refs]:
    """The carries that depend on the same in every trip, such as a loop's counter, and on what they do."""
    carries = {carry.number: carry for loop in loops for carry in loop.carries}
    found: dict[Ref, Refs] = {}
    mentioned_by: dict[Ref, set[Ref]] = {number: set() for number in carries}
    for number, carry in carries.items():
        for ref in carry.first | carry.update:
            if ref < 0:
                mentioned_by[ref].add(number)

    def known(refs: Refs) -> Refs:
        while not found.keys().isdisjoint(refs):
            refs = substituted(refs, found)
        return refs

    # One that is found may let those that mention it be found, so they are looked at again.
    waiting = list(reversed(carries))
    while waiting:
        number = waiting.pop()
        if number in found:
            continue
        first, update = known(carries[number].first), known(carries[number].update)
        if update == first or (update - {number} <= first and number in update):
            found[number] = first
            waiting += sorted(mentioned_by[number])
            for ref in first:
                if ref < 0:
                    mentioned_by[ref] |= mentioned_by[number]
    return {number: known(refs) for number, refs in found.items()}


def _kept(carries: Sequence[Carry], settled: dict[Ref, Refs]) -> tuple[Carry, ...]:
    return tuple(
        replace(carry, first=substituted(carry.first, settled), update=substituted(carry.update, settled))
        for carry in carries
        if carry.number not in settled
    )


def _used(events: Sequence[Event], loops: Sequence[Loop]) -> set[Ref]:
    """The carries that some event waits for, directly or through other carries."""
    carries = {carry.number: carry for loop in loops for carry in loop.carries}
    waiting = [ref for event in events for ref in event.inputs if ref < 0]
    used: set[Ref] = set()
    while waiting:
        number = waiting.pop()
        if number not in used:
            used.add(number)
            waiting += [ref for ref in carries[number].first | carries[number].update if ref < 0]
    return used


class _Reach:
    """Follows carries back to the events that they stand for."""

    def __init__(self, loops: Sequence[Loop]):
        self.loops = loops
        self.loop_of = {carry.number: loop.index for loop in loops for carry in loop.carries}
        self.inside: dict[Ref, tuple[Refs, Refs]] = {}
        self.last: dict[Ref, Refs] = {}
        for loop in _as_they_end(loops):
            # What a loop inside leaves may be this one's own carries, some trips ago: trips are counted after this.
            around = self._around(loop.index)
            carries = tuple(
                replace(carry, first=self._left(carry.first, around), update=self._left(carry.update, around))
                for carry in loop.carries
            )
            self.inside |= inside_values(replace(loop, carries=carries))
            values = last_values(carries, loop.trips)
            self.last.update(zip((carry.number for carry in carries), values, strict=True))

    def of(self, event: Event) -> tuple[set[int], set[int]]:
        """(events needed now, events needed from an earlier trip)."""
        found = ({ref for ref in event.inputs if ref >= 0}, set[int]())
        # A carry means its value at the start of a trip in its own loop, and the last one anywhere else: each is
        # followed with the loop that it is looked at from.
        waiting = [(ref, False, event.loop) for ref in event.inputs if ref < 0]
        seen = set(waiting)
        while waiting:
            ref, earlier, seen_from = waiting.pop()
            if ref >= 0:
                found[earlier].add(ref)
                continue
            loop = self.loop_of[ref]
            if loop in self._around(seen_from):
                before, after = self.inside[ref]
                further = {(r, earlier, self.loops[loop].parent) for r in before} | {(r, True, loop) for r in after}
            else:
                further = {(r, earlier, seen_from) for r in self.last[ref]}
            waiting += further - seen
            seen |= further
        return found

    def _left(self, refs: Refs, around: set[int]) -> Refs:
        """The references with what other loops have left in place of their carries."""
        ended = {ref for ref in refs if ref < 0 and self.loop_of[ref] not in around}
        return substituted(refs, {ref: self.last[ref] for ref in ended})

    def _around(self, loop: int | None) -> set[int]:
        around = set()
        while loop is not None:
            around.add(loop)
            loop = self.loops[loop].parent
        return around


def _as_they_end(loops: Sequence[Loop]) -> list[Loop]:
    """The loops in the order in which they end: those inside before the one around them."""
    inside: dict[int | None, list[Loop]] = {}
    for loop in loops:
        inside.setdefault(loop.parent, []).append(loop)

    def ended(parent: int | None) -> list[Loop]:
        return [one for loop in inside.get(parent, ()) for one in (*ended(loop.index), loop)]

    return ended(None)


def _streams(events: Sequence[Event], needs: Sequence[set[int]]) -> list[int]:
    """Every event goes on with the stream of the first event it needs that nothing has gone on with, or opens one.

    What a computation needs is needed by what needs the computation.
    """
    streams: list[int] = []
    last: set[int] = set()
    opened = 0
    through: dict[int, set[int]] = {}  # the communications that a computation needs
    for index, needed in enumerate(needs):
        if through:
            needed = {other for one in needed for other in through.get(one, {one})}
        if not events[index].is_communication:
            through[index] = needed
            streams.append(-1)
            continue
        before = min((other for other in needed if other in last), default=None)
        if before is None:
            streams.append(opened)
            opened += 1
        else:
            last.discard(before)
            streams.append(streams[before])
        last.add(index)
    return streams
