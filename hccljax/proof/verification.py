"""verify: proves that an algorithm's kernel gives every rank every contribution exactly once, in the right place."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from hccljax.algorithm import Algorithm, run
from hccljax.algorithm.base import OPERATORS, REDUCING
from hccljax.errors import ArgumentError, UnsupportedError, VerificationError, shown
from hccljax.group import Group
from hccljax.numbers import whole
from hccljax.proof.expectation import Case, first_fault
from hccljax.proof.grain import Uneven, held
from hccljax.proof.interpret import Interpreter
from hccljax.proof.terms import FIRST as FIRST_RANK
from hccljax.proof.terms import SHIFT, Terms
from hccljax.proof.values import AXIS, Data
from hccljax.reduction import reduction
from hccljax.selection.choice import choose
from hccljax.selection.settings import Settings
from hccljax.topology import Topology, as_topology

_DTYPE = np.dtype(np.float32)
_PIECES = 128  # pieces that a block may be cut into, if their number is a power of two
_FINE = 8  # grains that a p-th of a message is cut into at least, if p is a power of two


@dataclass(frozen=True)
class Proof:
    """What ``verify`` has proved.

    Attributes:
      algorithm: its name, a hierarchy as ``"level0:ring;level1:tree"``.
      operator: such as ``"all_reduce"``.
      ranks: p.
      op: the reduction, or None for an operator that only moves data.
      root: the root, or None for an operator that has none.
      topology: the tiers, or None for one flat server.
      nbytes: the sizes of one rank's message, in bytes, for which it holds: one for each regime of the kernel.
      exact: True if contributors were counted one by one; False if the sum of random 64-bit labels stands for them.
    """

    algorithm: str
    operator: str
    ranks: int
    op: str | None
    root: int | None
    topology: Topology | None
    nbytes: tuple[int, ...]
    exact: bool

    def __str__(self) -> str:
        what = f"{self.op} " if self.op else ""
        tiers = f" in tiers of {self.topology}" if self.topology else ""
        root = "" if self.root is None else f", root {self.root}"
        how = "exactly" if self.exact else "by random 64-bit labels"
        sizes = ", ".join(map(str, self.nbytes))
        return (
            f"{what}{self.operator} by {self.algorithm} on {self.ranks} ranks{tiers}{root}: "
            f"proved {how} for {sizes} bytes per rank"
        )


def verify(
    algorithm: str | Algorithm,
    operator: str,
    p: int,
    *,
    op: str = "sum",
    root: int = 0,
    topology: str | Topology | None = None,
    nbytes: int | None = None,
) -> Proof:
    """Proves an algorithm on p ranks: every rank ends with every contribution exactly once, in the right place.

    The kernel is traced and its jaxpr is interpreted in NumPy for all ranks at once; nothing is compiled and no device
    is needed. Instead of numbers, the ranks hold where each value comes from. Sums and products are proved to count
    every contribution once, max and min at least once; operators that move data are proved element by element.

    Args:
      algorithm: a registered name, an ``Algorithm`` of your own, or an HCCL_ALGO text such as
        ``"level0:ring;level1:tree"``.
      operator: ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``, ``"broadcast"``, ``"reduce"``, ``"scatter"``,
        ``"gather"`` or ``"all_to_all"``.
      p: ranks.
      op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"`` or ``"mean"``, for the operators that reduce. A zero that stands
        where nothing was received does no harm to a sum, but is found under the others.
      root: the root of broadcast, reduce, scatter and gather.
      topology: the tiers, such as ``"4x8"``, for hierarchies.
      nbytes: bytes of one rank's message, all of its blocks together (float32; rounded up to whole elements); None
        proves a small message and one in each further regime that the record declares (``Algorithm.regimes``).

    Returns:
      A Proof: what was proved, for which sizes, and whether exactly or (above 128 ranks, sums) by random labels, which
      let a given mistake pass with a probability of 2^-64.

    Raises:
      VerificationError: the algorithm is wrong; the message names the rank, the block and the contributor.
      UnsupportedError: the algorithm lacks the operator, or its kernel does something that cannot be followed.
      ArgumentError: a bad argument.

    >>> hccljax.verify("ring", "all_reduce", 8).exact
    True
    """
    p, root = whole("p", p, 1), whole("root", root)
    nbytes = None if nbytes is None else whole("nbytes", nbytes, 0, (1 << 33) - 1)
    tiers = _checked(operator, p, op, root, topology)
    sizes = [_small(operator, p, tiers) if nbytes is None else _elements(operator, p, nbytes)]
    settings = Settings.from_environment()
    if nbytes is None:  # sizes are this function's own choice: to prove how slices are cut is not what they are for
        settings = replace(settings, buffer=2**62)
    record = _record(algorithm, operator, p, sizes[0], tiers, settings)
    if nbytes is None:
        sizes += [_beyond(operator, p, threshold) for threshold in record.regimes]
    exact = True
    for size in sizes:
        record = _record(algorithm, operator, p, size, tiers, settings)
        exact &= _proved(record, operator, p, op, root, tiers, size)
    return Proof(
        algorithm=record.name,
        operator=operator,
        ranks=p,
        op=op if operator in REDUCING else None,
        root=root if operator in ("broadcast", "reduce", "scatter", "gather") else None,
        topology=tiers,
        nbytes=tuple(_nbytes(operator, p, size) for size in sizes),
        exact=exact,
    )


def _checked(operator: str, p: int, op: str, root: int, topology: str | Topology | None) -> Topology | None:
    if operator not in OPERATORS:
        raise ArgumentError(f"operator={shown(operator)}: expected one of {', '.join(OPERATORS)}")
    if root >= p:
        raise ArgumentError(f"root={root} is not a rank of {p}: expected 0 to {p - 1}")
    reduction(op)
    if op != "sum" and operator not in REDUCING:
        raise ArgumentError(f"op={op!r}: {operator} reduces nothing; expected no op, or one of {', '.join(REDUCING)}")
    return as_topology(topology)


def _record(
    algorithm: str | Algorithm, operator: str, p: int, size: int, topology: Topology | None, settings: Settings
) -> Algorithm:
    """The record that runs; a substitute for what was asked for would prove another algorithm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decision = choose(operator, _nbytes(operator, p, size), p, algorithm, topology, settings=settings)
    if decision.fallback is not None or decision.record is None:
        raise UnsupportedError(f"nothing to prove: {decision.fallback}; expected an algorithm that has {operator}")
    return decision.record


# Sizes: elements of a message, or of one block for the operators that have blocks of their own.


def _has_blocks(operator: str) -> bool:
    return operator not in ("all_reduce", "broadcast", "reduce")


def _nbytes(operator: str, p: int, size: int) -> int:
    return size * _DTYPE.itemsize * (p if _has_blocks(operator) else 1)


def _small(operator: str, p: int, topology: Topology | None) -> int:
    """Two elements a block. A message has at least as many, and cannot be cut evenly.

    However it is cut, no part is padding alone: what happens to padding proves nothing.
    """
    if _has_blocks(operator):
        return 2
    cuts = [(p,), (1 << p.bit_length() - 1,), (2,), (4,), topology.sizes if topology else ()]
    sizes = (size for size in range(2 * p - 1, 16 * p * p) if size % p or p == 1)
    return next((size for size in sizes if all(_fills(size, parts) for parts in cuts)), 2 * p - 1)


def _fills(size: int, cuts: tuple[int, ...]) -> bool:
    """True if a message cut into so many parts, each of them into so many, …, has something in every part."""
    for parts in cuts:
        length = -(-size // parts)
        if length * (parts - 1) >= size:
            return False
        size = length
    return True


def _elements(operator: str, p: int, nbytes: int) -> int:
    return -(-nbytes // (_DTYPE.itemsize * (p if _has_blocks(operator) else 1)))


def _parts(operator: str, p: int) -> int:
    """Into how many grains a large message is divided: a number that every way of cutting it should divide."""
    return _PIECES if _has_blocks(operator) else math.lcm(p * _PIECES, _FINE << p.bit_length())


def _grains(operator: str, p: int, size: int) -> list[int]:
    """Lengths of a grain to try, longest first, the last one always does; short messages are proved by elements."""
    parts = (_parts(operator, p), _FINE << p.bit_length(), 1 if _has_blocks(operator) else p, 1 << p.bit_length())
    return [*(size // n for n in sorted(set(parts)) if size >= 64 * n and size % n == 0), 1]


def _beyond(operator: str, p: int, threshold: int) -> int:
    """The elements of the first message of more than ``threshold`` bytes that divides into grains."""
    parts = _parts(operator, p)
    return parts * (_elements(operator, p, threshold) // parts + 1)


def _proved(record: Algorithm, operator: str, p: int, op: str, root: int, topology: Topology | None, size: int) -> bool:
    """Proves one size; True if exactly."""
    length = size if _has_blocks(operator) else -(-size // p)
    case = Case(operator, p, root, size, length)
    combines = reduction(op) if operator in REDUCING else None
    group = Group(AXIS, levels=None if topology is None else topology.sizes)
    traced = jax.make_jaxpr(
        lambda x: run(record, operator, x, group, combines, root), axis_env=[(AXIS, p)]
    )(jax.ShapeDtypeStruct(case.shape, _DTYPE))  # fmt: skip
    for grain in _grains(operator, p, size):
        terms = Terms(p, combines)
        try:
            codes = _interpreted(traced, case, terms, grain)
            break
        except Uneven:
            continue
    if grain > 1:  # the case in grains: element k stands for the k-th run
        case = Case(operator, p, root, size // grain, length // grain)
    fault = first_fault(case, terms, codes)
    if fault is not None:
        what = f"{op} {operator}" if combines else operator
        nbytes = _nbytes(operator, p, size)
        raise VerificationError(f"{what} by {record.name!r} is wrong on {p} ranks ({nbytes} bytes): {fault}")
    return terms.exact


def _interpreted(traced: ClosedJaxpr, case: Case, terms: Terms, grain: int) -> np.ndarray:
    """The codes of the result, [ranks, elements]."""
    shape = held(case.shape, grain)
    elements = np.arange(math.prod(shape)).reshape(shape)
    ranks = np.arange(case.p).reshape(-1, *(1 for _ in shape))
    operand = Data((ranks + FIRST_RANK) << SHIFT | elements)
    walker = Interpreter(case.p, terms, grain)
    (out,) = walker.walk(traced.jaxpr, traced.consts, [operand], [True])
    codes = walker.data(out)  # type: ignore[arg-type]
    return np.broadcast_to(codes, (case.p, *codes.shape[1:])).reshape(case.p, -1)
