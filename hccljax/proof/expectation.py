"""What every rank has to end with, and in which words a result differs from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hccljax.algorithm.base import REDUCING
from hccljax.proof.terms import CONSTANT, FIRST, IDENTITY, INDEX, PADDING, SHIFT, SPOKEN, UNRECEIVED, UNSET, Terms

BLOCKED = ("reduce_scatter", "scatter", "all_to_all")
"""Operators whose operand is one block for each rank, [p, …]."""

AT_ROOT = ("reduce", "gather")
"""Operators whose result is defined on the root only."""


@dataclass(frozen=True)
class Case:
    """One operator on p ranks with a message of ``size`` elements a rank, as the kernels see it.

    Elements of a rank's operand are numbered in order. A block is ``length`` of them: the p-th part of a message,
    rounded up, or what the operator itself calls a block.
    """

    operator: str
    p: int
    root: int
    size: int
    length: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one rank's operand."""
        return (self.p, self.length) if self.operator in BLOCKED else (self.size,)

    def expected(self) -> tuple[np.ndarray | None, np.ndarray]:
        """(contributors or None for all of them, elements), each [ranks, elements of the result]."""
        p, length = self.p, self.length
        everywhere = np.broadcast_to(np.arange(self.size), (p, self.size))
        own = np.arange(p)[:, None] * length + np.arange(length)
        if self.operator in REDUCING:
            return None, own if self.operator == "reduce_scatter" else everywhere
        if self.operator in ("broadcast", "scatter"):
            elements = own if self.operator == "scatter" else everywhere
            return np.full(elements.shape, self.root), elements
        blocks = np.broadcast_to(np.repeat(np.arange(p), length), (p, p * length))
        if self.operator == "all_to_all":
            return blocks, np.tile(own, (1, p))
        return blocks, np.broadcast_to(np.tile(np.arange(length), p), (p, p * length))

    def home(self, contributor: int, element: int) -> str:
        """Where a contribution belongs."""
        if self.operator in ("all_gather", "gather"):
            return f"block {contributor}"
        block = f"block {element // self.length}"
        return f"{block} of rank {element // self.length}" if self.operator == "all_to_all" else block


def first_fault(case: Case, terms: Terms, codes: np.ndarray) -> str | None:
    """What is wrong with the results, codes [ranks, elements]; None if every rank has what it should have."""
    contributors, elements = case.expected()
    if contributors is None:
        right = terms.complete(codes) & ((codes & INDEX) == elements)
    else:
        right = codes == ((contributors + FIRST) << SHIFT | elements)
    if case.operator in AT_ROOT:
        right = right[case.root : case.root + 1]
    if right.all():
        return None
    rank, position = (int(i) for i in np.argwhere(~right)[0])
    rank += case.root if case.operator in AT_ROOT else 0
    others = int((~right).sum()) - 1
    element = int(elements[rank, position])
    sources = range(case.p) if contributors is None else [int(contributors[rank, position])]
    faults = _differences(case, terms, int(codes[rank, position]), sources, element)
    block = position // case.length if case.operator not in ("reduce_scatter", "scatter") else rank
    more = f" (and {others} more elements are wrong)" if others else ""
    return f"rank {rank}, block {block}: {'; '.join(faults)}{more}"


def _differences(case: Case, terms: Terms, code: int, sources: range | list[int], element: int) -> list[str]:
    """What is wrong with one value that should hold the element of each source."""
    contents = terms.contents(code)
    found = contents.contributions
    faults = [
        f"the contribution of rank {rank} belongs to {case.home(rank, index)}"
        + (f", element {index}" if index // case.length == element // case.length and rank in sources else "")
        for rank, index in sorted(found)
        if index != element or rank not in sources
    ]
    if len(sources) == 1 or terms.counting:
        faults += [
            f"the contribution of rank {rank} is counted {'twice' if times == 2 else f'{times} times'}"
            for (rank, index), times in sorted(found.items())
            if times > 1 and index == element and rank in sources
        ]
    missing = [rank for rank in sources if not found[rank, element]]
    if missing:
        ranks = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {_listed(missing)} are"
        faults.append(f"the contribution{'s' if len(missing) > 1 else ''} of {ranks} missing")
    combined = terms.primitive is not None and len(sources) > 1
    for term in (UNRECEIVED, PADDING, CONSTANT, UNSET, IDENTITY):
        if term in contents.others:
            joined = found and not (combined and terms.is_neutral(term, str(terms.primitive)))
            faults.append(f"{SPOKEN[term]} is {'combined with it' if joined else 'in its place'}")
    for primitive in sorted(contents.operations):
        wanted = f"expected {terms.primitive!r}" if combined else "expected data that is only moved"
        faults.append(f"contributions are combined by {primitive!r}, {wanted}")
    return faults[:4]


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:6]))
    return f"{shown} … ({len(ranks)} in all)" if len(ranks) > 6 else shown
