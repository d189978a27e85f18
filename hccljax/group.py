"""Group: the ranks an algorithm sees, and everything they can say to each other."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hccljax.errors import ArgumentError, AxisError, shown
from hccljax.layout import Layout, Pairs, Pattern, Shift, Xor, checked_pairs, whole
from hccljax.partition import Uneven, listed, split
from hccljax.primitives import mesh
from hccljax.primitives.permute import flat_index, permute, rank_in
from hccljax.primitives.replication import vary
from hccljax.topology import Topology, as_sizes

AxisName = str | tuple[str, ...]


@dataclass(frozen=True, init=False)
class Group:
    """The indices of a named axis, split into one or more communicators that work at the same time.

    It is HCCL's communicator, torch's ``new_group`` and JAX's ``axis_index_groups`` in one: every communicator runs
    the same steps on its own ranks. Ranks are counted inside the communicator, 0 to ``size - 1``.

    Communicators may differ in size. One program runs on all ranks, so a collective then runs once for each size
    (``classes``), on all ranks, and each rank keeps the result of its own. ``all_reduce``, ``broadcast``, ``reduce``,
    ``barrier`` and ``send_recv`` do; the others, whose results have p blocks, raise an ArgumentError.

    Attributes:
      axes: the axis names, flattened in the order given (the last one changes fastest).
      layout: the partition, or None for one communicator of all indices.
      levels: members of each tier, level 0 first, or None for one flat server.
    """

    axes: tuple[str, ...]
    layout: Layout | Uneven | None
    levels: tuple[int, ...] | None

    def __init__(
        self,
        axis_name: AxisName,
        groups: Iterable[Sequence[int]] | None = None,
        *,
        levels: Sequence[int] | None = None,
    ):
        """A group over axis_name.

        Args:
          axis_name: a mapped axis name, or a tuple of them.
          groups: lists of axis indices that cover the axis exactly once; None is one communicator.
          levels: members of each tier, level 0 (inside a server) first; their product is the size.
        """
        axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
        if not axes or not all(isinstance(axis, Hashable) for axis in axes) or len(set(axes)) != len(axes):
            raise AxisError(f"axis_name={shown(axis_name)}: expected one axis name or several different ones")
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "layout", None if groups is None else listed(_as_groups(groups)))
        object.__setattr__(self, "levels", None if levels is None else as_sizes(levels, "levels"))

    @property
    def axis_name(self) -> AxisName:
        """The axis name as ``jax.lax`` takes it: a str, or a tuple of them."""
        return self.axes[0] if len(self.axes) == 1 else self.axes

    @property
    def size(self) -> int:
        """Ranks in each communicator; raises an ArgumentError where they differ (see ``smallest`` and ``classes``)."""
        return self.layout.p if self.layout is not None else self.axis_size

    @property
    def smallest(self) -> int:
        """Ranks in the smallest communicator: ``size``, unless they differ."""
        return self.layout.smallest if isinstance(self.layout, Uneven) else self.size

    @property
    def size_here(self) -> int | jax.Array:
        """Ranks in this device's communicator: ``size``, or a traced int32 scalar where they differ."""
        if not isinstance(self.layout, Uneven):
            return self.size
        self.resolved  # noqa: B018  (the table has a row for each index of the axis)
        return jnp.asarray(self.layout.sizes)[flat_index(self.axes)]

    @property
    def classes(self) -> tuple[Group, ...]:
        """One group for each size of communicator, the largest first; this group alone if all are of one size.

        A group of a class leaves the other ranks out: they send and receive nothing in it.
        """
        if not isinstance(self.layout, Uneven):
            return (self,)
        return tuple(self._over(layout, self.levels) for layout in self.layout.classes)

    @property
    def covers(self) -> bool:
        """True unless this group leaves ranks of the axis out."""
        return self.layout is None or self.layout.covers

    @property
    def is_member(self) -> jax.Array:
        """Whether this device is in a communicator of this group of one size: bool scalar."""
        return jnp.asarray(self._resolved_even.positions >= 0)[flat_index(self.axes)]

    @property
    def axis_size(self) -> int:
        """Indices of the axis, all communicators together; needs to run under shard_map or vmap."""
        return math.prod(_axis_size(axis) for axis in self.axes)

    @property
    def topology(self) -> Topology | None:
        """The tiers as a Topology; None for one flat server."""
        return None if self.levels is None else Topology(self.levels)

    @property
    def rank(self) -> jax.Array:
        """This device's rank inside its communicator: int32 scalar."""
        return rank_in(self.axes, self.resolved)

    @property
    def resolved(self) -> Layout | Uneven:
        """The layout, with the axis size filled in and checked."""
        return self.resolved_for(self.axis_size)

    def resolved_for(self, size: int) -> Layout | Uneven:
        """The layout for an axis of that size, checked."""
        if self.layout is None:
            return whole(size)
        if self.layout.n != size:
            raise ArgumentError(
                f"groups list {self.layout.n} ranks, but axis {self.axis_name!r} has {size}; "
                f"expected every index 0 to {size - 1} exactly once"
            )
        return self.layout

    @property
    def _known(self) -> Layout:
        """The layout, without a mapped axis where the partition says it all; communicators have one size."""
        if isinstance(self.layout, Uneven):
            self.layout.p  # noqa: B018  (raises)
        return whole(self.axis_size) if self.layout is None else self.layout  # type: ignore[return-value]

    def checked_pairs(self, pairs: Iterable[Sequence[int]]) -> Pairs:
        """Pairs of ranks as a pattern, once they are known to exist in every communicator, and only once."""
        where = "every communicator" if isinstance(self.layout, Uneven) else "this communicator"
        return Pairs(checked_pairs(pairs, self.smallest, where))

    @property
    def is_whole(self) -> bool:
        """True if one communicator holds every index of the axis."""
        return self.layout is None or self.layout.is_whole

    def permute(self, x: jax.Array, pairs: Iterable[Sequence[int]], label: str = "permute") -> jax.Array:
        """Sends x along (source, destination) pairs of ranks, in every communicator at once.

        Ranks that are no destination receive zeros. Zero is not the identity of max, min and prod: select what was
        received before combining it.

        A label names the step in schedules and timelines. One with ``reduce`` in it says that receivers combine what
        they get with what they have: simulations add the time for that.
        """
        return self._send(x, self.checked_pairs(pairs), label)

    def shift(self, x: jax.Array, k: int = 1, label: str = "shift") -> jax.Array:
        """Sends x from every rank r to rank r + k (mod size)."""
        return self._send(x, Shift(k), label)

    def exchange(self, x: jax.Array, mask: int, label: str = "exchange") -> jax.Array:
        """Swaps x between ranks r and r XOR mask; ranks without a partner receive zeros."""
        if mask < 0:
            raise ArgumentError(f"mask={shown(mask)}: expected 0 or more; rank r exchanges with r XOR mask")
        return self._send(x, Xor(mask), label)

    def mesh_exchange(self, blocks: jax.Array, label: str = "exchange") -> jax.Array:
        """blocks [p, …] → [p, …]: block i comes from rank i; every pair of ranks talks at once."""
        return mesh.exchange(vary(blocks, self.axes), axes=self.axes, layout=self._resolved_even, label=label)

    def mesh_gather(self, block: jax.Array) -> jax.Array:
        """block […] → [p, …]: every rank's block, in rank order; every pair of ranks talks at once."""
        return mesh.gather(vary(block, self.axes), axes=self.axes, layout=self._resolved_even)

    @property
    def _resolved_even(self) -> Layout:
        """The layout for the axis as it is mapped; communicators have one size."""
        self.resolved  # noqa: B018  (raises for an unmapped axis or a partition of another size)
        return self._known

    def rotated(self, root: int) -> Group:
        """The same communicators with ``root`` as rank 0, the others following in order."""
        if not 0 <= root < self.size:
            raise ArgumentError(f"root={shown(root)} is not a rank of this communicator; expected 0 to {self.size - 1}")
        return self if root == 0 else self._over(self._known.rotated(root), None)

    def level(self, k: int) -> Group:
        """The communicators of tier k: ranks that differ only in their coordinate of level k."""
        levels = self._tiers()
        if not 0 <= k < len(levels):
            raise ArgumentError(
                f"level {shown(k)} does not exist; this group has levels 0 to {len(levels) - 1}, expected one of them"
            )
        return self._over(self._known.regrouped(_tier(levels, (k,))), None)

    def above(self) -> Group:
        """The communicators of all tiers above level 0: ranks with the same place in their servers."""
        levels = self._tiers()
        upper = tuple(range(1, len(levels)))
        return self._over(self._known.regrouped(_tier(levels, upper)), levels[1:] if len(upper) > 1 else None)

    def split(self, groups: Iterable[Sequence[int]]) -> Group:
        """Splits every communicator into smaller ones: lists of its ranks, each rank once."""
        parts = listed(_as_groups(groups))
        if parts.n != self.size:
            raise ArgumentError(
                f"groups list {parts.n} ranks, but the group has {self.size}; "
                f"expected each of 0 to {self.size - 1} once"
            )
        return self._over(split(self._known, parts), None)

    def among(self, members: np.ndarray) -> Group:
        """Communicators of some ranks of every communicator only: members [c, q], each rank once at most.

        The others send and receive nothing in it, and its collectives leave them with nothing of use.
        """
        return self._over(self._known.regrouped(members), None)

    def with_levels(self, levels: Sequence[int] | None) -> Group:
        """The same ranks with tiers of these sizes, level 0 first."""
        changed = replace_fields(self, levels=None if levels is None else as_sizes(levels, "levels"))
        if levels is not None:
            changed._tiers()
        return changed

    def _tiers(self) -> tuple[int, ...]:
        levels = self.levels or (self.size,)
        if math.prod(levels) != self.size:
            shape = "x".join(str(size) for size in reversed(levels))
            raise ArgumentError(
                f"topology {shape} has {math.prod(levels)} ranks, but the group has {self.size}; "
                f"expected a topology whose sizes multiply to {self.size}"
            )
        return levels

    def _over(self, layout: Layout | Uneven, levels: tuple[int, ...] | None) -> Group:
        return replace_fields(self, layout=layout, levels=levels)

    def _send(self, x: jax.Array, pattern: Pattern, label: str) -> jax.Array:
        return permute(vary(x, self.axes), axes=self.axes, layout=self.resolved, pattern=pattern, label=label)


def replace_fields(group: Group, **changes: object) -> Group:
    """A Group with some of its fields replaced (dataclasses.replace needs a generated __init__)."""
    changed = object.__new__(Group)
    for name in ("axes", "layout", "levels"):
        object.__setattr__(changed, name, changes.get(name, getattr(group, name)))
    return changed


def as_group(axis_name: AxisName | Group) -> Group:
    """A Group of an axis name, a tuple of them, or a Group as it is."""
    return axis_name if isinstance(axis_name, Group) else Group(axis_name)


def _as_groups(groups: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(tuple(int(rank.__index__()) for rank in group) for group in groups)
    except (TypeError, AttributeError):
        raise ArgumentError(f"groups={shown(groups)}: expected lists of ranks, such as [[0, 1], [2, 3]]") from None


def _axis_size(axis: str) -> int:
    try:
        return lax.axis_size(axis)
    except (NameError, ValueError, TypeError):  # a positional axis is no NameError
        raise AxisError(
            f"axis name {shown(axis)} is not mapped here; expected the name of an enclosing jax.shard_map or "
            f"jax.vmap(axis_name=…) axis: call this function inside one, or use hccljax.Communicator"
        ) from None


@lru_cache(maxsize=256)
def _tier(levels: tuple[int, ...], kept: tuple[int, ...]) -> np.ndarray:
    """Ranks [communicators, members] that differ only in the coordinates of the kept levels."""
    outer_first = tuple(reversed(levels))
    ranks = np.arange(math.prod(levels)).reshape(outer_first)
    kept_axes = [len(levels) - 1 - k for k in reversed(kept)]
    others = [axis for axis in range(len(levels)) if axis not in kept_axes]
    return ranks.transpose(others + kept_axes).reshape(-1, math.prod(levels[k] for k in kept))
