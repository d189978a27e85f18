"""Collectives of ``jax.lax`` as hccljax would run them: what a prediction walks in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from hccljax.algorithm import Algorithm
from hccljax.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from hccljax.group import Group
from hccljax.prediction.part import part
from hccljax.schedule.liveness import short_name
from hccljax.schedule.ranks import Ranks
from hccljax.topology import Topology

_SUMS = {"psum": "sum", "psum_invariant": "sum", "unreduced_psum": "sum", "pmax": "max", "pmin": "min"}
_GATHERS = ("all_gather", "all_gather_invariant", "all_gather_reduced")
_SCATTERS = ("reduce_scatter", "unreduced_reduce_scatter")


@dataclass(frozen=True)
class Replacement:
    """A collective of jax.lax as a per-device function of its operands.

    Attributes:
      kind: JAX's name of the primitive.
      axes: the mapped axes.
      groups: axis_index_groups, or None.
      dimensions: the array dimensions that the primitive names: gathered or scattered, or split and concatenated.
      tiled: as in jax.lax.
      topology: the tiers between the ranks of one communicator.
      algorithm: what runs it, as ``algorithm=`` of the collectives; None leaves it to settings and policy.
    """

    kind: str
    axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...] | None
    dimensions: tuple[int, ...]
    tiled: bool
    topology: Topology
    algorithm: str | Algorithm | None

    def __call__(self, *operands: jax.Array) -> list[jax.Array]:
        """The results, one for each operand."""
        group = Group(self.axes)
        group = group if self.groups is None else group.split(self.groups)
        return [self._one(x, group) for x in operands]

    def _one(self, x: jax.Array, group: Group) -> jax.Array:
        options: dict[str, Any] = {"algorithm": self.algorithm, "topology": self.topology}
        if self.kind in _SUMS:
            return all_reduce(x, group, _SUMS[self.kind], **options)
        options["tiled"] = self.tiled
        if self.kind in _GATHERS:
            return all_gather(x, group, axis=self.dimensions[0], **options)
        if self.kind in _SCATTERS:
            return reduce_scatter(x, group, scatter_dimension=self.dimensions[0], **options)
        return all_to_all(x, group, *self.dimensions, **options)


def replacing(
    topology: Topology, places: Sequence[int], algorithm: str | Algorithm | None
) -> Callable[[Mapping[str, int]], Callable[[JaxprEqn], Replacement | None]]:
    """What ``trace_with`` takes: every collective of jax.lax becomes one of hccljax on its part of the topology."""

    def for_axes(sizes: Mapping[str, int]) -> Callable[[JaxprEqn], Replacement | None]:
        ranks = Ranks(sizes)

        def instead(equation: JaxprEqn) -> Replacement | None:
            name, parameters = short_name(equation), equation.params
            if name not in (*_SUMS, *_GATHERS, *_SCATTERS, "all_to_all"):
                return None
            named = parameters.get("axes", parameters.get("axis_name"))
            axes = tuple(named) if isinstance(named, (tuple, list)) else (named,)
            if not all(isinstance(axis, str) for axis in axes):
                return None  # positional axes too: left to be counted as it is
            groups = parameters.get("axis_index_groups")
            along = ranks.along(axes)[0]
            members = along if groups is None else along[list(groups[0])]
            return Replacement(
                name,
                axes,
                None if groups is None else tuple(tuple(group) for group in groups),
                _dimensions(name, parameters),
                bool(parameters.get("tiled", False)),
                part(topology, [places[rank] for rank in members]),
                algorithm,
            )

        return instead

    return for_axes


def _dimensions(name: str, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    if name in _GATHERS:
        return (parameters["all_gather_dimension"],)
    if name in _SCATTERS:
        return (parameters["scatter_dimension"],)
    return (parameters["split_axis"], parameters["concat_axis"]) if name == "all_to_all" else ()
