"""Coalescing: consecutive computations that nobody can tell apart become one event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hccljax.schedule.carries import Refs
from hccljax.schedule.event import Event, Loop, Ref


def coalesced(events: Sequence[Event], loops: Sequence[Loop]) -> tuple[list[Event], list[Loop]]:
    """The events with runs of computations joined, numbered anew.

    A run ends where a communication, or a carry, needs what it has computed so far, and before a computation that waits
    for a communication that the run does not wait for. In place of an earlier computation it needs what that one waited
    for: a rank's computations run in program order anyway, but a chain of communications leads through them.
    """
    needed = {ref for event in events if event.is_communication for ref in event.inputs}
    needed |= {ref for loop in loops for carry in loop.carries for ref in carry.first | carry.update}
    computations = {event.index for event in events if not event.is_communication}
    new: dict[Ref, int] = {}
    found: list[Event] = []
    behind: dict[Ref, Refs] = {}  # the communications and carries that an event waits for, through computations
    ends = True
    for event in events:
        waits = event.inputs - computations if event.index in computations else event.inputs
        behind[event.index] = _waited_for(event.inputs, computations, behind)
        last = found[-1] if found else None
        joins = not ends and last is not None and event.index in computations and event.loop == last.loop
        if joins and last is not None and waits <= last.inputs:
            inputs = last.inputs | behind[event.index]
            found[-1] = replace(last, flops=last.flops + event.flops, nbytes=last.nbytes + event.nbytes, inputs=inputs)
        else:
            inputs = behind[event.index] if event.index in computations else event.inputs
            found.append(replace(event, index=len(found), inputs=inputs))
        new[event.index] = len(found) - 1
        ends = event.index not in computations or event.index in needed
    return (
        [replace(event, inputs=_renumbered(event.inputs, new)) for event in found],
        [_moved(loop, new) for loop in loops],
    )


def _waited_for(inputs: Refs, computations: set[Ref], behind: Mapping[Ref, Refs]) -> Refs:
    """What inputs stand for, with computations followed back, without what the others wait for themselves."""
    through = [behind[ref] for ref in inputs if ref in computations]
    if not through:
        return inputs
    every = (inputs - computations).union(*through)
    return every.difference(*(behind.get(ref, frozenset()) for ref in every))


def _renumbered(refs: Refs, new: Mapping[Ref, int]) -> Refs:
    return frozenset(new.get(ref, ref) for ref in refs)


def _moved(loop: Loop, new: Mapping[Ref, int]) -> Loop:
    carries = tuple(
        replace(carry, first=_renumbered(carry.first, new), update=_renumbered(carry.update, new))
        for carry in loop.carries
    )
    return replace(loop, events=range(new[loop.events[0]], new[loop.events[-1]] + 1), carries=carries)
