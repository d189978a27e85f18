"""Collectives of ``jax.lax`` as hccljax would run them: what a prediction walks in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from hccljax.algorithm import Algorithm
from hccljax.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from hccljax.group import Group
from hccljax.layout import Layout, whole
from hccljax.partition import listed
from hccljax.prediction.part import part
from hccljax.schedule.collective import KINDS, collective_of
from hccljax.schedule.liveness import shaped
from hccljax.schedule.ranks import Ranks
from hccljax.timing import lower_bound
from hccljax.topology import Topology

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Replacement:
    """A collective of jax.lax as a per-device function of its operands.

    Attributes:
      kind: of the events that the primitive gives.
      axes: the mapped axes.
      groups: axis_index_groups, or None.
      dimensions: the array dimensions that the primitive names: gathered or scattered, split and concatenated, or
        reduced with the axes.
      tiled: as in jax.lax.
      topologies: the tiers between the ranks of one communicator, for each size of them, the largest first.
      algorithm: what runs it, as ``algorithm=`` of the collectives; None leaves it to settings and policy.
    """

    kind: str
    axes: tuple[str, ...]
    groups: Groups | None
    dimensions: tuple[int, ...]
    tiled: bool
    topologies: tuple[Topology, ...]
    algorithm: str | Algorithm | None

    def __call__(self, *operands: jax.Array) -> list[jax.Array]:
        """The results, one for each operand."""
        group = Group(self.axes)
        group = group if self.groups is None else group.split(self.groups)
        return [self._one(x, group) for x in operands]

    def _one(self, x: jax.Array, group: Group) -> jax.Array:
        options: dict[str, Any] = {"algorithm": self.algorithm, "topology": self.topologies[0]}
        reduction = KINDS[self.kind].reduction
        if self.kind == "all_gather":
            return all_gather(x, group, axis=self.dimensions[0], tiled=self.tiled, **options)
        if self.kind == "reduce_scatter":
            return reduce_scatter(
                x, group, reduction, scatter_dimension=self.dimensions[0], tiled=self.tiled, **options
            )
        if self.kind == "all_to_all":
            return all_to_all(x, group, *self.dimensions, tiled=self.tiled, **options)
        if self.dimensions:
            x = _within(x, reduction, self.dimensions)
        first, *others = group.classes
        out = all_reduce(x, first, reduction, **options)
        for one, topology in zip(others, self.topologies[1:], strict=True):
            mine = all_reduce(x, one, reduction, algorithm=self.algorithm, topology=topology)
            out = lax.select(one.is_member, mine, out)
        return out


@dataclass
class Replacing:
    """What ``trace_with`` takes: every collective of jax.lax becomes one of hccljax on its part of the topology.

    One program runs in all communicators of an axis, so one part has to stand for all: where they lie differently, it
    is the one on which the collective takes longest at least (``lower_bound``).

    Attributes:
      topology: with levels.
      places: the place of each rank; None if rank r is at place r.
      algorithm: for the replaced collectives, as ``algorithm=`` of hccljax's.
      differing: the axes of those collectives so far whose communicators lie differently.
    """

    topology: Topology
    places: Sequence[int] | None
    algorithm: str | Algorithm | None
    differing: set[str] = field(default_factory=set)

    def __call__(self, sizes: Mapping[str, int]) -> Callable[[JaxprEqn], Replacement | None]:
        """What a Walker takes, for the sizes of all axes."""
        ranks = Ranks(sizes)
        places = range(ranks.n) if self.places is None else self.places
        known: dict[tuple[tuple[str, ...], Groups | None], list[list[Topology]]] = {}

        def instead(equation: JaxprEqn) -> Replacement | None:
            collective, parameters = collective_of(equation), equation.params
            if collective is None or not collective.opaque:
                return None
            named = parameters.get("axes", parameters.get("axis_name"))
            named = tuple(named) if isinstance(named, (tuple, list)) else (named,)
            axes = tuple(axis for axis in named if isinstance(axis, str))
            listed_groups = parameters.get("axis_index_groups")
            groups = None if listed_groups is None else tuple(tuple(group) for group in listed_groups)
            if (axes, groups) not in known:
                known[axes, groups] = self._parts(ranks, places, axes, groups)
            operator = "all_reduce" if collective.kind in ("psum", "pmax", "pmin") else collective.kind
            return Replacement(
                collective.kind,
                axes,
                groups,
                tuple(axis for axis in named if isinstance(axis, int)) or _dimensions(collective.kind, parameters),
                bool(parameters.get("tiled", False)),
                tuple(_slowest(operator, equation, parts) for parts in known[axes, groups]),
                self.algorithm,
            )

        return instead

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the choice of algorithms rests on, a sentence each."""
        return tuple(
            f"communicators over {axes} lie differently in the topology; all run the algorithm for the slowest of them"
            for axes in sorted(self.differing)
        )

    def _parts(
        self, ranks: Ranks, places: Sequence[int], axes: tuple[str, ...], groups: Groups | None
    ) -> list[list[Topology]]:
        """The different parts of the topology that communicators of each size have, the largest size first."""
        along = ranks.along(axes)
        partition = whole(along.shape[1]) if groups is None else listed(groups)
        found = []
        for layout in (partition,) if isinstance(partition, Layout) else partition.classes:
            members = along[:, layout.members].reshape(-1, layout.p)
            parts = dict.fromkeys(part(self.topology, [places[rank] for rank in one]) for one in members)
            if len(parts) > 1:
                self.differing.add(", ".join(axes))
            found.append(list(parts))
        return found


def _within(x: jax.Array, reduction: str, dimensions: tuple[int, ...]) -> jax.Array:
    """x reduced over some of its own dimensions, in its dtype."""
    if reduction == "sum":
        return jnp.sum(x, axis=dimensions, dtype=x.dtype)
    return (jnp.max if reduction == "max" else jnp.min)(x, axis=dimensions)


def _slowest(operator: str, equation: JaxprEqn, parts: Sequence[Topology]) -> Topology:
    """The part on which the collective takes longest; of parts that are alike, the one that is degraded most."""
    if len(parts) == 1:
        return parts[0]
    nbytes = max(aval.size * aval.dtype.itemsize for aval in shaped(equation.invars))
    nbytes *= parts[0].ranks if operator == "all_gather" else 1

    def slowness(topology: Topology) -> tuple[float, float]:
        left = [fault.factor for fault in topology.faults]
        return lower_bound(operator, nbytes, topology).seconds, -min(left, default=1.0)

    return max(parts, key=slowness)


def _dimensions(kind: str, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    names = {
        "all_gather": ("all_gather_dimension",),
        "reduce_scatter": ("scatter_dimension",),
        "all_to_all": ("split_axis", "concat_axis"),
    }
    return tuple(parameters[name] for name in names.get(kind, ()))
