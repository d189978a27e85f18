"""The messages of one communication: who sends how much to whom, in ranks numbered over all mapped axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from hccljax.errors import ArgumentError, shown
from hccljax.layout import Layout, whole
from hccljax.partition import listed
from hccljax.schedule.liveness import shaped, short_name

# Full-mesh primitives whose operand is cut into one block a rank; the others send it whole to everybody.
_CUT = frozenset({"hccl_mesh_exchange", "all_to_all", "reduce_scatter", "unreduced_reduce_scatter"})


class Ranks:
    """The numbering of all ranks: the axes flattened in the order of ``sizes``, the last changing fastest."""

    def __init__(self, sizes: Mapping[str, int]):
        self.sizes = dict(sizes)
        self.n = math.prod(self.sizes.values())

    def along(self, axes: Sequence[str]) -> np.ndarray:
        """[copies, indices]: the ranks along axes, flattened as given, for each index of the others."""
        unknown = [axis for axis in axes if axis not in self.sizes]
        if unknown:
            raise ArgumentError(
                f"axis {unknown[0]!r} has no size; expected it in axis_sizes, next to {list(self.sizes)}"
            )
        names = list(self.sizes)
        order = [*(axis for axis in names if axis not in axes), *axes]
        table = np.arange(self.n).reshape(tuple(self.sizes.values()))
        indices = math.prod(self.sizes[axis] for axis in axes)
        return table.transpose([names.index(axis) for axis in order]).reshape(-1, indices)


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of one communication; compares by value.

    Attributes:
      name: the primitive's name.
      nbytes: bytes of each message.
      moving: (source, destination) pairs [m, 2] of a permute, self-pairs left out; None for an exchange.
      members: the communicators [c, p] of a full-mesh exchange; None for a permute.
      stays: the ranks that keep something of their own.
    """

    name: str
    nbytes: int
    moving: np.ndarray | None
    members: np.ndarray | None
    stays: np.ndarray

    def rounds(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(sources, destinations), each rank at most once in both: messages that can travel together."""
        if self.moving is not None:
            yield self.moving[:, 0], self.moving[:, 1]
        if self.members is not None:
            sources = self.members.reshape(-1)
            for k in range(1, self.members.shape[1]):
                yield sources, np.roll(self.members, -k, axis=1).reshape(-1)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Messages)
            and (self.name, self.nbytes) == (other.name, other.nbytes)
            and _same(self.moving, other.moving)
            and _same(self.members, other.members)
            and _same(self.stays, other.stays)
        )

    def __str__(self) -> str:
        return f"{self.name!r} ({self.nbytes} bytes a message)"


def messages_of(equation: JaxprEqn, ranks: Ranks) -> Messages:
    """The messages of a communication equation."""
    name, parameters = short_name(equation), equation.params
    nbytes = sum(aval.size * aval.dtype.itemsize for aval in shaped(equation.invars))
    if name == "hccl_permute":
        pairs = parameters["layout"].expand(parameters["pattern"])
        return _permute(name, nbytes, ranks.along(parameters["axes"]), pairs)
    named = parameters.get("axes", parameters.get("axis_name"))
    named = named if isinstance(named, (tuple, list)) else (named,)
    axes = [axis for axis in named if not isinstance(axis, int)]  # psum may name array dimensions too
    if name == "ppermute":
        # lax.ppermute numbers a tuple of axes in mesh order, whatever the order given (jax 0.10.2).
        along = ranks.along(sorted(axes, key=list(ranks.sizes).index) if len(axes) > 1 else axes)
        return _permute(name, nbytes, along, parameters["perm"])
    along = ranks.along(axes)
    layout = _layout(parameters, along.shape[1])
    members = along[:, layout.members].reshape(-1, layout.p)
    return Messages(name, nbytes // layout.p if name in _CUT else nbytes, None, members, members.reshape(-1))


def _permute(name: str, nbytes: int, along: np.ndarray, pairs: Any) -> Messages:
    table = along[:, np.array(pairs, np.int64).reshape(-1, 2)].reshape(-1, 2)
    stay = table[:, 0] == table[:, 1]
    return Messages(name, nbytes, table[~stay], None, table[stay, 0])


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


def _same(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    if left is None or right is None:
        return left is right
    return np.array_equal(left, right)
