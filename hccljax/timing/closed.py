"""Closed forms: what an algorithm costs on links that are all alike, as a formula.

Hockney's model: a step that moves b bytes and combines them takes α + b·β + b·γ. A formula is three numbers: messages,
bytes, and bytes combined, each counted one after the other. Sources stand beside each. Where a registered algorithm has
no formula here, messages and bytes are those of its own kernel, traced and simulated; a record that is not registered
costs its own steps and bytes. Of both nothing is known of what they combine.

The links are those the algorithm is made for: a full mesh (a link for each pair of ranks) for mesh and star, and for
the pipelines, which are the mesh where all ranks are in one server; else one port a rank that sends one message and
receives one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import hccljax.algorithm.nb as nb
import hccljax.algorithm.nhr as nhr
from hccljax.algorithm import Algorithm, algorithms, registered
from hccljax.algorithm.base import COMPOSED, OPERATORS, REDUCING, VARIABLE, unsupported
from hccljax.algorithm.nonuniform import depth
from hccljax.algorithm.short import is_short
from hccljax.errors import ArgumentError, shown
from hccljax.numbers import MOST_BYTES, whole
from hccljax.timing.kernel import kernel_schedule
from hccljax.timing.settling import makespans, settled
from hccljax.topology import Level, Topology


class Terms(NamedTuple):
    """A cost as a formula: ``messages``·α + ``sent``·β + ``combined``·γ; sent and combined are bytes."""

    messages: int
    sent: float
    combined: float = 0.0

    def seconds(self, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """The time; α in seconds, β and γ in seconds a byte."""
        return self.messages * alpha + self.sent * beta + self.combined * gamma


Formula = Callable[[str, int, float], Terms | None]
"""(operator, p, bytes) → what it costs, or None for an operator that is composed of two others, or has no formula."""


def closed_form(algorithm: str | Algorithm, operator: str, p: int, nbytes: int) -> Terms:
    """The cost of an operator on p ranks with links that are all alike.

    Args:
      algorithm: a registered name, or a record; one that is not registered costs its own steps and bytes.
      operator: such as ``"all_reduce"``; a V form costs what the operator does that it runs.
      p: ranks.
      nbytes: bytes of one rank's message, all p blocks of it, without padding.

    Raises:
      ArgumentError: an algorithm or operator that is not known, or a figure below its least.
      UnsupportedError: the algorithm lacks the operator.

    >>> hccljax.closed_form("ring", "all_reduce", 8, 1 << 20)
    Terms(messages=14, sent=1835008.0, combined=917504.0)
    """
    p, nbytes = whole("p", p, 1), whole("nbytes", nbytes, 0, MOST_BYTES)
    record = algorithm if isinstance(algorithm, Algorithm) else registered(algorithm)
    operator = VARIABLE.get(operator, operator) if isinstance(operator, str) else operator
    if operator not in OPERATORS:
        raise ArgumentError(f"operator={shown(operator)}: expected one of {', '.join(OPERATORS)}")
    if not record.supports(operator):
        raise unsupported(record, operator)
    if p == 1:
        return Terms(0, 0.0)
    n, formula = float(nbytes), _formula_of(record, operator, nbytes)
    terms = None if formula is None else formula(operator, p, n)
    if terms is None and formula is not None and operator in COMPOSED:
        parts = [formula(part, p, n) for part in COMPOSED[operator]]
        terms = None if None in parts else Terms(*map(sum, zip(*parts, strict=True)))
    if terms is not None:
        return terms
    if record.name in algorithms() and record == registered(record.name):
        return _simulated(record, operator, p, nbytes)
    steps, sent = record.cost(operator, p, nbytes)
    return Terms(steps, float(sent))


def _simulated(record: Algorithm, operator: str, p: int, nbytes: int) -> Terms:
    """What latency alone takes, and what bytes alone take, where each rank has one port."""
    schedule = kernel_schedule(record, operator, p, nbytes)

    def seconds(latency: float, scale: float) -> float:
        links = Level("links", p, "switch", bandwidth=1e9, latency=latency)
        return float(makespans(settled(schedule, Topology((p,), levels=(links,))), [scale])[0])

    return Terms(round(seconds(1.0, 0.0)), round(1e9 * seconds(0.0, 1.0)))


def _formula_of(record: Algorithm, operator: str, nbytes: int) -> Formula | None:
    """The formula of a registered record; another one of the same name is another algorithm, and has none."""
    if record.name not in _FORMULAS or record != registered(record.name):
        return None
    return _tree if is_short(_SHORT.get(record.name, {}), operator, nbytes) else _FORMULAS[record.name]


def _ring(operator: str, p: int, n: float) -> Terms | None:
    """Patarasuk and Yuan (2009): p - 1 steps of one block for each of the operators with blocks."""
    if operator not in ("reduce_scatter", "all_gather", "scatter", "gather"):
        return None
    moved = (p - 1) * n / p
    return Terms(p - 1, moved, moved if operator in REDUCING else 0.0)


def _mesh(operator: str, p: int, n: float) -> Terms | None:
    """One step on a link for each pair; the receiver of a reduce_scatter combines p - 1 blocks."""
    if operator in COMPOSED:
        return None
    return Terms(1, n / p, (p - 1) * n / p if operator in REDUCING else 0.0)


def _tree(operator: str, p: int, n: float) -> Terms | None:
    """Binomial: ceil(log2 p) levels, the whole message at each."""
    levels = depth(p)
    reducing = Terms(levels, levels * n, levels * n)
    return {
        "reduce": reducing,
        "broadcast": Terms(levels, levels * n),
        "all_reduce": Terms(2 * levels, 2 * levels * n, levels * n),
    }.get(operator)


def _halving_doubling(operator: str, p: int, n: float) -> Terms | None:
    """Thakur, Rabenseifner and Gropp (2005); the ranks beyond a power of two join and leave with the whole message."""
    k = p.bit_length() - 1
    share = (2**k - 1) / 2**k * n
    if operator == "all_reduce" and p != 2**k:
        return Terms(2 * k + 2, 2 * share + 2 * n, share + n)
    if operator in ("reduce_scatter", "all_gather", "scatter", "gather") and p == 2**k:
        return Terms(k, share, share if operator in REDUCING else 0.0)
    return None


def _nonuniform(operator: str, p: int, n: float) -> Terms | None:
    """NHR and NB: ceil(log2 p) steps that move p - 1 blocks together."""
    if operator not in ("reduce_scatter", "all_gather", "scatter"):
        return None
    moved = (p - 1) * n / p
    return Terms(depth(p), moved, moved if operator in REDUCING else 0.0)


def _pairwise(operator: str, p: int, n: float) -> Terms | None:
    """p - 1 exchanges of one block."""
    return Terms(p - 1, (p - 1) * n / p) if operator == "all_to_all" else None


def _bruck(operator: str, p: int, n: float) -> Terms | None:
    """Bruck et al. (1997): at step b the blocks whose distance has bit b."""
    if operator != "all_to_all":
        return None
    blocks = sum(1 for k in range(1, p) for b in range(depth(p)) if k >> b & 1)
    return Terms(depth(p), blocks * n / p)


def _star(operator: str, p: int, n: float) -> Terms | None:
    """One step on a link from the root to each other rank."""
    return {
        "broadcast": Terms(1, n),
        "reduce": Terms(1, n, (p - 1) * n),
        "scatter": Terms(1, n / p),
        "gather": Terms(1, n / p),
    }.get(operator)


_FORMULAS: dict[str, Formula] = {
    "ring": _ring,
    "mesh": _mesh,
    "tree": _tree,
    "H-D_R": _halving_doubling,
    "NHR": _nonuniform,
    "NB": _nonuniform,
    "pairwise": _pairwise,
    "bruck": _bruck,
    "star": _star,
    "pipeline": _mesh,
    "NHR_pipeline": _mesh,
}

_SHORT = {"NHR": nhr.LIMITS, "NB": nb.LIMITS}
"""Messages up to these sizes, in bytes, go up and down a binomial tree."""
