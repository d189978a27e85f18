"""What communications do to the values of all ranks at once: arrays are [ranks, …]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jax.extend.core import JaxprEqn

from hccljax.proof.grain import Uneven
from hccljax.schedule.event import Event

Combine = Callable[[np.ndarray, np.ndarray, str], np.ndarray]

FOLDS = {
    "psum": "add", "psum_invariant": "add", "unreduced_psum": "add", "pmax": "max", "pmin": "min",
    "reduce_scatter": "add", "unreduced_reduce_scatter": "add",
}  # fmt: skip
"""Communications that combine, and the primitive they combine with."""

_GATHERS = ("all_gather", "all_gather_invariant", "all_gather_reduced")


def sources(event: Event, ranks: int) -> np.ndarray:
    """Of a permute: the rank that each rank receives from, -1 if from nobody, [ranks]."""
    out = np.full(ranks, -1)
    moving, stays = event.messages, event.stays
    out[moving[:, 1]] = moving[:, 0]
    out[stays] = stays
    return out


def permuted(x: np.ndarray, source: np.ndarray, nothing: int) -> np.ndarray:
    """x [ranks, …] sent along a permute; ``nothing`` where nothing is received."""
    out = x[source]
    out[source < 0] = nothing
    return out


def exchanged(name: str, equation: JaxprEqn, x: np.ndarray, members: np.ndarray, combine: Combine) -> np.ndarray:
    """x [ranks, …] after a full-mesh communication among members [communicators, p]."""
    params, last = equation.params, x.ndim - 2
    shape: tuple[int, ...] = equation.invars[0].aval.shape  # type: ignore[attr-defined]
    coarse = x.shape[1:] != shape
    if name == "hccl_mesh_gather":
        return _everybody(x, members)
    if name in _GATHERS:
        return _into(_everybody(x, members), params["all_gather_dimension"], params["tiled"])
    if name in ("hccl_mesh_exchange", "all_to_all") or name.endswith("reduce_scatter"):
        cut = params.get("split_axis", params.get("scatter_dimension", 0))
        if coarse and cut == last:
            raise Uneven
        tiled = params.get("tiled", False)
        blocks = _swapped(_blocks(x, cut, members.shape[1], tiled), members)
        if name in FOLDS:
            return _folded(np.moveaxis(blocks, 1, 0), FOLDS[name], combine)
        return blocks if name == "hccl_mesh_exchange" else _into(blocks, params["concat_axis"], tiled)
    return _folded(np.moveaxis(_everybody(x, members), 1, 0), FOLDS[name], combine)


def _everybody(x: np.ndarray, members: np.ndarray) -> np.ndarray:
    """[ranks, …] → [ranks, p, …]: the values of the whole communicator."""
    out = np.empty((len(x), members.shape[1], *x.shape[1:]), x.dtype)
    out[members] = x[members][:, None]
    return out


def _swapped(blocks: np.ndarray, members: np.ndarray) -> np.ndarray:
    """[ranks, p, …] → [ranks, p, …]: block i of the result comes from member i."""
    out = np.empty_like(blocks)
    out[members] = np.swapaxes(blocks[members], 1, 2)
    return out


def _blocks(x: np.ndarray, axis: int, p: int, tiled: bool) -> np.ndarray:
    """[ranks, …] → [ranks, p, …]: cut along an axis; untiled, the axis has one block for each member."""
    if tiled:
        shape = x.shape[1:]
        x = x.reshape(len(x), *shape[:axis], p, shape[axis] // p, *shape[axis + 1 :])
    return np.moveaxis(x, axis + 1, 1)


def _into(blocks: np.ndarray, axis: int, tiled: bool) -> np.ndarray:
    """[ranks, p, …] → [ranks, …]: the blocks along a new axis, or one after the other along an old one."""
    x = np.moveaxis(blocks, 1, axis + 1)
    if not tiled:
        return x
    shape = x.shape[1:]
    return x.reshape(len(x), *shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _folded(values: np.ndarray, primitive: str, combine: Combine) -> np.ndarray:
    """values [p, …] combined in rank order."""
    total = values[0]
    for value in values[1:]:
        total = combine(total, value, primitive)
    return total
