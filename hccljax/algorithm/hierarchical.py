"""Hierarchies: one algorithm a level, level 0 inside a server, level 1 between servers, level 2 between super pods.

Source: HCCL's hierarchical execution. all_reduce is reduce_scatter inside, all_reduce between, all_gather inside, so
that the slow tier carries 1/s of the message, s being the ranks of a server. A level-1 communicator holds the ranks
with the same place in their servers. A level whose algorithm has no reduce_scatter or scatter of its own (tree) moves
the whole message instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache, partial
from itertools import accumulate
from operator import mul
from typing import Any

import jax.numpy as jnp

from hccljax.algorithm.base import COMPOSED, Algorithm, Cost, Kernel, run
from hccljax.algorithm.blocks import by_server, join_blocks, split_blocks
from hccljax.errors import ArgumentError
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message

Levels = tuple[Algorithm, ...]


@lru_cache(maxsize=512)
def hierarchy(levels: Levels, sizes: tuple[int, ...]) -> Algorithm:
    """The Algorithm that runs levels[k] on tier k of sizes[k] members; it needs a group with those tiers."""
    if len(levels) != len(sizes) or len(levels) < 1:
        raise ArgumentError(
            f"a hierarchy of {len(levels)} algorithms over {len(sizes)} tiers: expected one for each tier"
        )
    kernels: dict[str, Kernel] = {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "broadcast": broadcast,
        "reduce": reduce,
        "scatter": scatter,
        "gather": gather,
        "all_to_all": all_to_all,
    }
    able: dict[str, Any] = {
        operator: partial(kernel, levels)
        for operator, kernel in kernels.items()
        if all(serves(one, operator, k == len(levels) - 1) for k, one in enumerate(levels))
    }
    return Algorithm(
        name=";".join(f"level{k}:{one.name}" for k, one in enumerate(levels)),
        source="HCCL's hierarchical execution",
        steps=lambda operator, p, nbytes: _total(levels, sizes, operator, nbytes).steps,
        bytes_sent=lambda operator, p, nbytes: _total(levels, sizes, operator, nbytes).bytes_sent,
        rooted=True,
        regimes=_regimes(levels, sizes),
        order="as the levels' algorithms: inside the servers first, except that reduce_scatter starts between them",
        **able,
    )


def _regimes(levels: Levels, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The levels' thresholds as bytes of the whole message: a level sees a part of it, or what is gathered so far."""
    p = math.prod(sizes)
    return tuple(
        sorted(
            {
                threshold * factor
                for k, level in enumerate(levels)
                for threshold in level.regimes
                for factor in (math.prod(sizes[:k]), p // math.prod(sizes[: k + 1]))
            }
        )
    )


def serves(algorithm: Algorithm, operator: str, top: bool) -> bool:
    """True if the algorithm can do its part of operator on a level (top: the outermost one).

    One that works over all tiers at once has no part on one of them.
    """
    if algorithm.over is not None:
        return False
    return (not top and operator in COMPOSED and _wraps(algorithm, operator)) or algorithm.supports(operator)


def _wraps(algorithm: Algorithm, operator: str) -> bool:
    return all(algorithm.supports(part) for part in COMPOSED[operator])


def passed_up(algorithm: Algorithm, operator: str, nbytes: int, size: int) -> int:
    """Bytes that the levels above see of a message, if the algorithm works on a level of size members below them."""
    return -(-nbytes // size) if operator in COMPOSED and _wraps(algorithm, operator) else nbytes


def all_reduce(levels: Levels, x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […]."""
    inner, first = group.level(0), levels[0]
    if len(levels) == 1:
        return run(first, "all_reduce", x, inner, op)
    if not _wraps(first, "all_reduce"):
        return all_reduce(levels[1:], run(first, "all_reduce", x, inner, op), group.above(), op)
    mine = run(first, "reduce_scatter", split_blocks(x, inner.size), inner, op)
    mine = all_reduce(levels[1:], mine, group.above(), op)
    return join_blocks(run(first, "all_gather", mine, inner), x.shape)


def all_gather(levels: Levels, block: Block, group: Group) -> Blocks:
    """block […] → [p, …]: inside the servers first."""
    blocks = run(levels[0], "all_gather", block, group.level(0))
    if len(levels) > 1:
        blocks = all_gather(levels[1:], blocks, group.above())
    return blocks.reshape(group.size, *block.shape)


def reduce_scatter(levels: Levels, blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]: between the servers first."""
    if len(levels) > 1:
        blocks = reduce_scatter(levels[1:], by_server(blocks, group.level(0).size), group.above(), op)
    return run(levels[0], "reduce_scatter", blocks, group.level(0), op)


def broadcast(levels: Levels, x: Message, group: Group, root: int) -> Message:
    """x of the root → x everywhere: scatter in the root's server, broadcast between servers, gather in all."""
    inner, first = group.level(0), levels[0]
    place, above = root % inner.size, root // inner.size
    if len(levels) == 1:
        return run(first, "broadcast", x, inner, root=place)
    if not _wraps(first, "broadcast"):
        return run(first, "broadcast", broadcast(levels[1:], x, group.above(), above), inner, root=place)
    mine = run(first, "scatter", split_blocks(x, inner.size), inner, root=place)
    mine = broadcast(levels[1:], mine, group.above(), above)
    return join_blocks(run(first, "all_gather", mine, inner), x.shape)


def reduce(levels: Levels, x: Message, group: Group, op: Reduction, root: int) -> Message:
    """x → the reduction on the root: reduce_scatter in the servers, reduce between them, gather in the root's."""
    inner, first = group.level(0), levels[0]
    place, above = root % inner.size, root // inner.size
    if len(levels) == 1:
        return run(first, "reduce", x, inner, op, root=place)
    if not _wraps(first, "reduce"):
        return reduce(levels[1:], run(first, "reduce", x, inner, op, root=place), group.above(), op, above)
    mine = run(first, "reduce_scatter", split_blocks(x, inner.size), inner, op)
    mine = reduce(levels[1:], mine, group.above(), op, above)
    return join_blocks(run(first, "gather", mine, inner, root=place), x.shape)


def scatter(levels: Levels, blocks: Blocks, group: Group, root: int) -> Block:
    """blocks [p, …] of the root → block […]: between servers first."""
    inner = group.level(0).size
    if len(levels) > 1:
        blocks = scatter(levels[1:], by_server(blocks, group.level(0).size), group.above(), root // inner)
    return run(levels[0], "scatter", blocks, group.level(0), root=root % inner)


def gather(levels: Levels, block: Block, group: Group, root: int) -> Blocks:
    """block […] → [p, …] on the root: inside the servers first."""
    inner = group.level(0).size
    blocks = run(levels[0], "gather", block, group.level(0), root=root % inner)
    if len(levels) > 1:
        blocks = gather(levels[1:], blocks, group.above(), root // inner)
    return blocks.reshape(group.size, *block.shape)


def all_to_all(levels: Levels, blocks: Blocks, group: Group) -> Blocks:
    """blocks [p, …] → [p, …]: inside the servers first, all servers' blocks for one place travelling together."""
    if len(levels) == 1:
        return run(levels[0], "all_to_all", blocks, group.level(0))
    by_place = jnp.swapaxes(by_server(blocks, group.level(0).size), 0, 1)
    here = run(levels[0], "all_to_all", by_place, group.level(0))
    return all_to_all(levels[1:], jnp.swapaxes(here, 0, 1), group.above()).reshape(blocks.shape)


def _total(levels: Levels, sizes: tuple[int, ...], operator: str, nbytes: int) -> Cost:
    """The costs of all levels, each with the bytes that it sees."""

    def cost(k: int, part: str, size: int) -> Cost:
        return levels[k].cost(part, sizes[k], size)

    top, p = len(levels) - 1, math.prod(sizes)
    if operator not in COMPOSED:
        # all_to_all moves the whole message on every level; the others move what their level has gathered so far.
        below = [nbytes if operator == "all_to_all" else nbytes * size // p for size in accumulate(sizes, mul)]
        return _sum(cost(k, operator, below[k]) for k in range(top + 1))
    costs = []
    for k in range(top):
        parts = COMPOSED[operator] if _wraps(levels[k], operator) else (operator,)
        costs += [cost(k, part, nbytes) for part in parts]
        nbytes = passed_up(levels[k], operator, nbytes, sizes[k])
    return _sum([*costs, cost(top, operator, nbytes)])


def _sum(costs: Iterable[Cost]) -> Cost:
    return Cost(*map(sum, zip(*costs, strict=True)))
