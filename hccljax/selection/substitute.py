"""The algorithm of a name, or the one that runs in its place where it cannot: HCCL's fallback rule, said aloud."""

from __future__ import annotations

from collections.abc import Callable

from hccljax.algorithm import Algorithm, algorithms, registered
from hccljax.algorithm.base import unsupported
from hccljax.errors import ArgumentError

ALIASES = {"fullmesh": "mesh", "NHR_V1": "NHR", "AHC_BROKE": "AHC"}
"""Words of HCCL_ALGO that mean another registered name."""

SUBSTITUTES = {
    "ring": ("NHR", "H-D_R"),
    "H-D_R": ("NHR", "ring"),
    "NHR": ("H-D_R", "ring"),
    "tree": ("H-D_R", "ring"),
    "double_tree": ("tree", "H-D_R", "ring"),
    "double_ring": ("ring",),
    "star": ("mesh",),
}
"""What runs instead of an algorithm that lacks the operator, in order; HCCL's rule, with hccljax's own words added."""

ANY = ("NHR", "H-D_R", "ring", "pairwise")
"""What runs instead of all others."""


def substituted(
    operator: str, wanted: str | Algorithm, able: Callable[[Algorithm], bool], strict: bool = True
) -> tuple[Algorithm, str | None]:
    """(what is wanted, a record or the algorithm of a name; None) if able, else (its substitute, what happened).

    Raises:
      UnsupportedError: ``native`` lacks the operator and strict: it stands for XLA's own code, and who asks one call
        for it wants nothing else. As a setting for all operators it gives way like any other.
      ArgumentError: no registered algorithm has the operator.
    """
    known = algorithms()
    name = wanted.name if isinstance(wanted, Algorithm) else ALIASES.get(wanted, wanted)
    record = wanted if isinstance(wanted, Algorithm) else registered(name) if name in known else None
    if record is not None and able(record):
        return record, None
    if name == "native" and strict:
        raise unsupported(registered(name), operator)
    lack = f"{name!r} has no {operator}" if record is not None else f"{name!r} is not part of this version"
    if record is not None and record.supports(operator):
        lack = f"{name!r} works on all levels together and runs on none beside another algorithm"
    for other in (*SUBSTITUTES.get(name, ()), *ANY):
        if other in known and able(registered(other)):
            return registered(other), f"{lack}; {other!r} runs instead"
    raise ArgumentError(f"{lack}, and no other algorithm has it")
