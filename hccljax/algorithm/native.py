"""native: XLA's own collectives, behind the same record, so that they can be compared and mixed with the others.

XLA has no broadcast, reduce, scatter or gather over ranks (``lax.pbroadcast`` does not exist on CPU), and ``jax.lax``
exposes no product. JAX (0.10.2) refuses ``psum`` over groups in a checked shard_map and under vmap; so does this.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.errors import UnsupportedError
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message

_ALL_REDUCE = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


def axis_index_groups(group: Group) -> Any:
    """The group's partition as ``jax.lax`` takes it: None for the whole axis in order."""
    return None if group.resolved.is_identity else group.resolved.groups


def all_reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […] by ``lax.psum``, ``pmax`` or ``pmin``."""
    if op.name not in _ALL_REDUCE:
        raise UnsupportedError(
            f"algorithm 'native' has no all_reduce of op {op.name!r}; expected sum, mean, max or min"
        )
    return by_xla(_ALL_REDUCE[op.name], x, group)


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […] by ``lax.psum_scatter``."""
    return psum_scatter(blocks, group, op, 0, tiled=False)


def psum_scatter(x: jax.Array, group: Group, op: Reduction, dimension: int, tiled: bool) -> jax.Array:
    """x as ``lax.psum_scatter`` takes it, over any dimension."""
    if op.name != "sum":
        raise UnsupportedError(f"algorithm 'native' has no reduce_scatter of op {op.name!r}; expected sum or mean")
    return by_xla(lax.psum_scatter, x, group, scatter_dimension=dimension, tiled=tiled)


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …] by ``lax.all_gather``."""
    return by_xla(lax.all_gather, block, group)


def all_to_all(blocks: Blocks, group: Group) -> Blocks:
    """blocks [p, …] → [p, …] by ``lax.all_to_all``."""
    return by_xla(lax.all_to_all, blocks, group, split_axis=0, concat_axis=0)


def by_xla(collective: Any, x: jax.Array, group: Group, **options: Any) -> jax.Array:
    """A collective of ``jax.lax`` over a group, with its own options; what JAX does not implement is named."""
    try:
        return collective(x, group.axis_name, axis_index_groups=axis_index_groups(group), **options)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"algorithm 'native' over groups is not implemented in JAX here ({str(error) or 'checked shard_map'}); "
            f"use another algorithm, or check_vma=False"
        ) from error


def steps(operator: str, p: int, nbytes: int) -> int:
    """XLA decides how it works inside; seen from the program it is one communication."""
    return 1


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """The bandwidth-optimal bytes, the least that XLA can send."""
    return (2 if operator == "all_reduce" else 1) * (p - 1) * -(-nbytes // p)


native = register(
    Algorithm(
        name="native",
        source="XLA's own collectives, as jax.lax calls them",
        steps=steps,
        bytes_sent=bytes_sent,
        all_reduce=all_reduce,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        all_to_all=all_to_all,
        order="XLA's own",
    )
)
