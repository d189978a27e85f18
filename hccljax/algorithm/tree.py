"""Binomial tree: the whole message goes up to rank 0 in ceil(log2 p) levels, and down again.

Source: the binomial trees of MPI (Thakur, Rabenseifner, Gropp 2005). The depth is ceil(log2 p): with floor(log2 p),
ranks get lost whenever p is not a power of two.
"""

from __future__ import annotations

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import choose
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Message


def depth(p: int) -> int:
    """Levels of the tree: ceil(log2 p)."""
    return (p - 1).bit_length()


def reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x → the reduction on rank 0: at level s, rank r with r mod 2d = d (d = 2^s) sends to r - d."""
    p, rank = group.size, group.rank
    for s in range(depth(p)):
        d = 1 << s
        received = group.permute(x, [(r, r - d) for r in range(d, p, 2 * d)], "tree_reduce")
        has_child = (rank & (2 * d - 1) == 0) & (rank + d < p)
        x = choose(has_child, op(x, received), x)
    return x


def broadcast(x: Message, group: Group) -> Message:
    """x of rank 0 → x everywhere: the levels of reduce in reverse."""
    p, rank = group.size, group.rank
    for s in reversed(range(depth(p))):
        d = 1 << s
        received = group.permute(x, [(r - d, r) for r in range(d, p, 2 * d)], "tree_broadcast")
        x = choose(rank & (2 * d - 1) == d, received, x)
    return x


def all_reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x → the reduction on every rank."""
    return broadcast(reduce(x, group, op), group)


def steps(operator: str, p: int, nbytes: int) -> int:
    """One level is one step."""
    return depth(p) * (2 if operator == "all_reduce" else 1)


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """Every rank sends the whole message up once; rank 0 sends it down once a level."""
    return nbytes if operator == "reduce" else depth(p) * nbytes


tree = register(
    Algorithm(
        name="tree",
        source="binomial tree, Thakur, Rabenseifner and Gropp 2005; HCCL's tree for short messages",
        steps=steps,
        bytes_sent=bytes_sent,
        all_reduce=all_reduce,
        broadcast=broadcast,
        reduce=reduce,
        order="((0 + 1) + (2 + 3)) + …: neighbouring halves of the ranks, lower half on the left",
    )
)
