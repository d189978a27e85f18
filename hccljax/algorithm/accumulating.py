"""Sums in rank order, and of 16-bit numbers in a wider dtype with 16 bits on the wire and one rounding at the end.

A ring that rounds its partial sum at every hop gains nothing from a wider addition. Here every contribution travels
unreduced to the owner of its block (one full-mesh exchange: the same bytes as any reduce_scatter); the owner adds them
in rank order in the wider dtype, divides a mean, and rounds once. The all_gather that follows is the chosen
algorithm's, if it has one.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm.base import Algorithm, run
from hccljax.algorithm.mesh import mesh
from hccljax.group import Group
from hccljax.reduction import Reduction


def gatherer(algorithm: Algorithm) -> Algorithm:
    """What gathers the sums of an all_reduce: the algorithm itself, or mesh if it has no all_gather."""
    return algorithm if algorithm.supports("all_gather") else mesh


@lru_cache(maxsize=256)
def accumulating(algorithm: Algorithm, dtype: str | None) -> Algorithm:
    """The algorithm with its reductions done by ``mesh``, in dtype or (None) in the operand's own.

    A mean of integers is gathered as floats.
    """
    gathers = gatherer(algorithm)
    spreads = algorithm if algorithm.supports("broadcast") else mesh

    def reduce_scatter(blocks: jax.Array, group: Group, op: Reduction) -> jax.Array:
        contributions = group.mesh_exchange(blocks, "accumulating_reduce_scatter")
        total = op.in_order(contributions if dtype is None else lax.convert_element_type(contributions, dtype))
        if op.name == "mean":
            mean_dtype = (jnp.zeros((), blocks.dtype) / group.size).dtype
            return lax.convert_element_type(total / group.size, mean_dtype)
        return lax.convert_element_type(total, blocks.dtype)

    def steps(operator: str, p: int, nbytes: int) -> int:
        after = {"all_reduce": gathers.steps("all_gather", p, nbytes), "reduce": 1}
        return 1 + after.get(operator, 0)

    def bytes_sent(operator: str, p: int, nbytes: int) -> int:
        after = {"all_reduce": gathers.bytes_sent("all_gather", p, nbytes), "reduce": -(-nbytes // p)}
        return (p - 1) * -(-nbytes // p) + after.get(operator, 0)

    return Algorithm(
        name=f"mesh in {dtype or 'rank order'}, then {gathers.name}",
        source="hccljax",
        steps=steps,
        bytes_sent=bytes_sent,
        reduce_scatter=reduce_scatter,
        all_gather=gathers.all_gather,
        gather=lambda block, group, root: run(mesh, "gather", block, group, root=root),
        # What derivatives take; nothing is added up there.
        broadcast=lambda x, group, root: run(spreads, "broadcast", x, group, root=root),
        scatter=lambda blocks, group, root: run(mesh, "scatter", blocks, group, root=root),
        rooted=True,
        order=mesh.order,
    )
