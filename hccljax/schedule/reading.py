"""Reads a communication equation of a jaxpr as an event."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from hccljax.errors import ArgumentError, shown
from hccljax.layout import Layout, Pairs, Pattern, Shift, checked_pairs, whole
from hccljax.partition import listed
from hccljax.schedule.collective import COLLECTIVES
from hccljax.schedule.event import Event
from hccljax.schedule.liveness import shaped, short_name
from hccljax.schedule.ranks import Ranks


def event_of(equation: JaxprEqn, ranks: Ranks, **fields: Any) -> Event:
    """The event of a communication equation; fields are those that the equation itself does not say."""
    name, parameters = short_name(equation), equation.params
    collective = COLLECTIVES[name]
    operands = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in shaped(equation.invars))
    # Array dimensions among the axes of a psum are reduced on the rank, before anything is sent.
    within = {axis for axis in parameters.get("axes", ()) if isinstance(axis, int)}
    nbytes = sum(
        operand.dtype.itemsize * math.prod(size for k, size in enumerate(operand.shape) if k not in within)
        for operand in operands
    )
    axes, layout, pattern = _who(name, parameters, ranks)
    return Event(
        kind=collective.kind,
        primitive=name,
        label=str(parameters.get("label", "")),
        operands=operands,
        nbytes=nbytes // layout.p if collective.cut else nbytes,
        pattern=pattern,
        axes=axes,
        layout=layout,
        ranks=ranks,
        **fields,
    )


def _who(name: str, parameters: Mapping[str, Any], ranks: Ranks) -> tuple[tuple[str, ...], Layout, Pattern | None]:
    named = parameters.get("axes", parameters.get("axis_name"))
    named = named if isinstance(named, (tuple, list)) else (named,)
    axes = tuple(axis for axis in named if not isinstance(axis, int))  # psum may name array dimensions too
    if name == "ppermute":
        # lax.ppermute numbers a tuple of axes in mesh order, whatever the order given (jax 0.10.2).
        axes = tuple(sorted(axes, key=list(ranks.sizes).index)) if len(axes) > 1 else axes
        n = ranks.along(axes).shape[1]
        return axes, whole(n), _recognised(parameters["perm"], n)
    n = ranks.along(axes).shape[1]
    return axes, _layout(parameters, n), parameters["pattern"] if name == "hccl_permute" else None


def _layout(parameters: Mapping[str, Any], n: int) -> Layout:
    if "layout" in parameters:
        layout: Layout = parameters["layout"]
        return layout
    groups = parameters.get("axis_index_groups")
    if groups is None:
        return whole(n)
    partition = listed(tuple(tuple(group) for group in groups))
    if not isinstance(partition, Layout):
        raise ArgumentError(
            f"axis_index_groups={shown(groups)}: expected groups of one size; in others only permutes are counted"
        )
    return partition


def _recognised(pairs: Any, n: int) -> Pattern:
    """Pairs as a Shift where they are one."""
    checked = checked_pairs(pairs, n)
    distances = {(destination - source) % n for source, destination in checked}
    return Shift(distances.pop()) if len(checked) == n and len(distances) == 1 else Pairs(checked)
