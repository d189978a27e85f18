"""The two complementary trees of p ranks, and rounds in which nobody sends or receives more than one message."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Edge:
    """One message path: source → destination in tree 0 or 1; depth is that of its lower end (1 next to the root)."""

    source: int
    destination: int
    tree: int
    depth: int


@dataclass(frozen=True, eq=False)
class Flow:
    """All edges in one direction, up or down.

    Attributes:
      rounds: the edges, packed into as few rounds as possible; in a round all sources differ, and all destinations.
      starts: the tick at which edges of each depth carry their first segment, [depth + 1].
      first_tick: the tick at which each rank sends its first segment, if it sends, for both trees, [2, p].
    """

    rounds: tuple[tuple[Edge, ...], ...]
    starts: tuple[int, ...]
    first_tick: np.ndarray

    def edges_from(self, p: int) -> np.ndarray:
        """Edges that leave each rank, [p]."""
        return np.bincount([edge.source for one in self.rounds for edge in one], minlength=p)


@dataclass(frozen=True)
class Plan:
    """Both trees: their depth, the root of the second (the first has rank 0), and the two flows."""

    depth: int
    second_root: int
    up: Flow
    down: Flow


def first_tree(p: int) -> list[int]:
    """Parents in the first tree, -1 for the root, rank 0.

    Rank r whose lowest set bit is b has the children r - b/2 and r + b/2; where the second does not exist, b is halved
    until it does. Odd ranks are leaves.
    """
    parents = [-1] * p
    if p > 1:
        parents[1 << ((p - 1).bit_length() - 1)] = 0
    for rank in range(2, p):
        half = (rank & -rank) // 2
        if half:
            parents[rank - half] = rank
        while half and rank + half >= p:
            half //= 2
        if half:
            parents[rank + half] = rank
    return parents


def second_tree(p: int) -> list[int]:
    """Parents in the second tree: the first mirrored (even p), or moved on by one rank (odd p)."""
    image = [p - 1 - r for r in range(p)] if p % 2 == 0 else [(r + 1) % p for r in range(p)]
    parents = [-1] * p
    for rank, parent in enumerate(first_tree(p)):
        parents[image[rank]] = -1 if parent < 0 else image[parent]
    return parents


@lru_cache(maxsize=256)
def plan(p: int) -> Plan:
    """The plan for p ranks."""
    trees = (first_tree(p), second_tree(p))
    depths = [_depths(parents) for parents in trees]
    deepest = max(depths[0])
    up = [
        Edge(rank, parent, tree, depths[tree][rank])
        for tree, parents in enumerate(trees)
        for rank, parent in enumerate(parents)
        if parent >= 0
    ]
    down = [Edge(edge.destination, edge.source, edge.tree, edge.depth) for edge in up]
    from_root = np.array(depths, np.int32)
    leaves_first = Flow(rounds_of(up), tuple(deepest - d for d in range(deepest + 1)), deepest - from_root)
    root_first = Flow(rounds_of(down), tuple(d - 1 for d in range(deepest + 1)), from_root)
    return Plan(deepest, trees[1].index(-1), leaves_first, root_first)


def _depths(parents: list[int]) -> list[int]:
    def depth(rank: int) -> int:
        return 0 if parents[rank] < 0 else 1 + depth(parents[rank])

    return [depth(rank) for rank in range(len(parents))]


Uses = dict[int, dict[int, Edge]]
"""The edge that each rank uses in each round."""


def rounds_of(edges: list[Edge]) -> tuple[tuple[Edge, ...], ...]:
    """The edges in as few rounds as the busiest end has edges (König's theorem on colouring bipartite graphs).

    An edge takes a round that is free at its source; if its destination uses that round, the edges on the alternating
    path from there swap the two rounds.
    """
    source_uses: Uses = {}
    destination_uses: Uses = {}
    for edge in edges:
        out, into = source_uses.setdefault(edge.source, {}), destination_uses.setdefault(edge.destination, {})
        a, b = _first_free(out), _first_free(into)
        if a != b:
            _swap_path(edge.destination, a, b, source_uses, destination_uses)
        out[a] = into[a] = edge
    count = 1 + max((round_ for used in source_uses.values() for round_ in used), default=-1)
    chosen: list[list[Edge]] = [[] for _ in range(count)]
    for used in source_uses.values():
        for round_, edge in used.items():
            chosen[round_].append(edge)
    return tuple(tuple(one) for one in chosen)


def _first_free(used: dict[int, Edge]) -> int:
    return next(i for i in range(len(used) + 1) if i not in used)


def _swap_path(destination: int, a: int, b: int, source_uses: Uses, destination_uses: Uses) -> None:
    """Frees round a at destination: follows edges in rounds a, b, a, … and swaps their rounds."""
    path, node, at_destination, wanted = [], destination, True, a
    while True:
        edge = (destination_uses if at_destination else source_uses)[node].get(wanted)
        if edge is None:
            break
        path.append((edge, wanted))
        node = edge.source if at_destination else edge.destination
        at_destination, wanted = not at_destination, a + b - wanted
    for edge, old in path:
        del source_uses[edge.source][old], destination_uses[edge.destination][old]
    for edge, old in path:
        source_uses[edge.source][a + b - old] = destination_uses[edge.destination][a + b - old] = edge
