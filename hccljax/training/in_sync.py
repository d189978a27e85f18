"""Do all ranks hold the same bits? Asked inside a mapped function, or of arrays on the host."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hccljax.collectives import all_gather
from hccljax.collectives.leaf import as_array
from hccljax.errors import OutOfSyncError, UnsupportedError
from hccljax.group import AxisName, Group, as_group
from hccljax.training.checksum import checksum

SHOWN = 5
"""Leaves and ranks that an error names before it only counts them."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SyncReport:
    """What ``check_in_sync`` finds inside a mapped function: a pytree of arrays, to be returned from it.

    Attributes:
      differs: the tree that was checked, with bool [p] in place of every leaf: True for the ranks whose bits are not
        those of most ranks (of the first such rank, if several values are equally frequent).
    """

    differs: Any

    @property
    def in_sync(self) -> jax.Array:
        """Whether all leaves are the same on all ranks: bool scalar, also while JAX traces."""
        leaves = jax.tree.leaves(self.differs)
        return jnp.asarray(True) if not leaves else ~jnp.stack([leaf.any() for leaf in leaves]).any()

    def check(self) -> None:
        """Raises an OutOfSyncError that names the leaves and the ranks that differ; on the host, outside jit."""
        _raise_for(
            (jax.tree_util.keystr(path), np.flatnonzero(leaf).tolist())
            for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(self.differs))
        )


def check_in_sync(params: Any, axis_name: AxisName | Group | None = None) -> SyncReport | None:
    """Whether every rank holds the same parameters, to the last bit: a NaN equals itself, -0.0 is not 0.0.

    Only checksums of 8 bytes a leaf travel. Inside ``jax.shard_map`` or ``jax.vmap(axis_name=…)``, with an axis name,
    it returns a report, which the mapped function returns in its turn: ``report.check()`` raises, on the host, where
    ranks differ. On the host, without an axis name, it takes global arrays and compares the copies that devices hold
    of the same part of an array; a program of several processes calls it in all of them.

    Args:
      params: array(s). On the host: those with a ``NamedSharding``; what is on one device has nothing to differ from.
      axis_name: a mapped axis name, a tuple of them, or a Group, whose communicators (of one size) are compared each in
        itself; None on the host.

    Returns:
      A SyncReport of arrays [p], the same on all ranks of a communicator (``out_specs=P()``); None on the host.

    Raises:
      OutOfSyncError: on the host, devices that differ, and in which leaf.
      AxisError: the axis is not mapped here.
      UnsupportedError: on the host, an array that is being traced, or one that is sharded in another way.

    Source: hccljax.

    >>> report = jax.vmap(lambda w: hccljax.check_in_sync({"w": w}, "rank"), axis_name="rank", out_axes=None)(
    ...     jnp.array([3.0, 3.0, 4.0, 3.0])
    ... )
    >>> report.differs["w"]
    Array([False, False,  True, False], dtype=bool)
    """
    if axis_name is None:
        _check_devices(params)
        return None
    leaves, structure = jax.tree.flatten(jax.tree.map(as_array, params))
    own = jnp.stack([checksum(leaf) for leaf in leaves]) if leaves else jnp.zeros((0, 2), jnp.uint32)
    to = "invarying" if as_group(axis_name).is_whole else "varying"
    sums = all_gather(own, axis_name, to=to)  # [p, leaves, 2]
    return SyncReport(jax.tree.unflatten(structure, [_apart(sums[:, i]) for i in range(len(leaves))]))


def _apart(sums: jax.Array) -> jax.Array:
    """sums [p, 2] → bool [p]: those that are not the most frequent ones."""
    alike = (sums[:, None] == sums[None]).all(-1)
    return ~alike[jnp.argmax(alike.sum(1))]


def _check_devices(params: Any) -> None:
    """The check on the host: one program for each mesh, which leaves every array where it is."""
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
    on: dict[Mesh, list[tuple[str, jax.Array]]] = defaultdict(list)
    for name, leaf in leaves:
        if isinstance(leaf, jax.core.Tracer):
            raise UnsupportedError(
                f"check_in_sync of {name or 'an array'}, which is being traced: expected arrays outside jit; inside a "
                f"mapped function, pass its axis name"
            )
        if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
            continue
        if not isinstance(leaf.sharding, NamedSharding) or not isinstance(leaf.sharding.mesh, Mesh):
            raise UnsupportedError(
                f"check_in_sync of {name or 'an array'}, sharded as {leaf.sharding}: expected a NamedSharding over a "
                f"mesh; use jax.device_put(x, NamedSharding(mesh, spec))"
            )
        on[leaf.sharding.mesh].append((name, leaf))
    found: dict[str, list[int]] = {}
    for mesh, members in on.items():
        names, arrays = zip(*members, strict=True)
        sums = np.asarray(_sums_on(mesh, tuple(x.sharding.spec for x in arrays))(arrays))  # [devices, leaves, 2]
        found |= {name: _different(x, mesh, sums[:, i]) for i, (name, x) in enumerate(zip(names, arrays, strict=True))}
    _raise_for(((name, found[name]) for name, _ in leaves if name in found), "device")


@lru_cache(maxsize=64)
def _sums_on(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Any:
    """The compiled function (arrays) → checksums of each device's part of each array, uint32 [devices, leaves, 2]."""
    axes = mesh.axis_names

    def local(parts: Sequence[jax.Array]) -> jax.Array:
        return lax.all_gather(jnp.stack([checksum(part) for part in parts]), axes)

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False))


def _different(x: jax.Array, mesh: Mesh, sums: np.ndarray) -> list[int]:
    """The devices of the mesh, by number, whose part of x is not what most holders of the same part have."""
    parts = x.sharding.devices_indices_map(x.shape)
    holders: dict[str, list[int]] = defaultdict(list)
    for place, device in enumerate(mesh.devices.flat):
        holders[str(parts[device])].append(place)
    wrong = []
    for places in holders.values():
        usual, _ = Counter(tuple(sums[place].tolist()) for place in places).most_common(1)[0]
        wrong += [place for place in places if tuple(sums[place].tolist()) != usual]
    return sorted(mesh.devices.flat[place].id for place in wrong)


def _raise_for(found: Any, holder: str = "rank") -> None:
    """An OutOfSyncError for (leaf, those that differ), unless nobody does."""
    wrong = [(name, who) for name, who in found if who]
    if not wrong:
        return
    lines = [f"{name or 'the array'}: {holder}{'s' if len(who) > 1 else ''} {_listed(who)}" for name, who in wrong]
    more = f" and {len(lines) - SHOWN} more leaves" if len(lines) > SHOWN else ""
    raise OutOfSyncError(
        f"{'; '.join(lines[:SHOWN])}{more}: other bits than on most {holder}s; expected the same everywhere: "
        f"hccljax.broadcast the parameters from one rank, and see that every gradient goes through "
        f"hccljax.sync_gradients"
    )


def _listed(who: list[int]) -> str:
    more = f" and {len(who) - SHOWN} more" if len(who) > SHOWN else ""
    return ", ".join(map(str, who[:SHOWN])) + more
