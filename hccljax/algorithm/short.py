"""Short messages that are not cut: up to a limit they go up and down a binomial tree, above it block by block.

What NHR and NB share beside their way of halving: the limits are HCCL's, for each operator in bytes on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax

from hccljax.algorithm.base import COMPOSED, Algorithm, composed, run
from hccljax.algorithm.nonuniform import depth
from hccljax.algorithm.tree import tree
from hccljax.group import Group
from hccljax.reduction import Reduction

Limits = Mapping[str, int]


def is_short(limits: Limits, operator: str, nbytes: int) -> bool:
    """True if a message of nbytes is not cut."""
    return nbytes <= limits.get(operator, -1)


def tree_or_blocks(
    algorithm: Algorithm, limits: Limits, operator: str, x: jax.Array, group: Group, op: Reduction | None = None
) -> jax.Array:
    """x […] through the tree if it is short, else through the two operators that the algorithm has for blocks."""
    if is_short(limits, operator, x.size * x.dtype.itemsize):
        return run(tree, operator, x, group, op)
    return composed(algorithm, operator, x, group, op)


def steps(limits: Limits, operator: str, p: int, nbytes: int) -> int:
    """N = ceil(log2 p) to halve and N to double, or what the tree takes."""
    if is_short(limits, operator, nbytes):
        return tree.steps(operator, p, nbytes)
    return depth(p) * (2 if operator in COMPOSED else 1)


def bytes_sent(limits: Limits, operator: str, p: int, nbytes: int) -> int:
    """p - 1 blocks a phase, or what the tree's root sends."""
    if is_short(limits, operator, nbytes):
        return tree.bytes_sent(operator, p, nbytes)
    return (p - 1) * -(-nbytes // p) * (2 if operator in COMPOSED else 1)
