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
    "pipeline": ("AHC",),
    "NHR_pipeline": ("pipeline", "AHC"),
}
"""What runs instead of an algorithm that lacks the operator, in order; HCCL's rule, with hccljax's own words added."""

ANY = ("NHR", "H-D_R", "ring", "pairwise")
"""What runs instead of all others."""


Refuses = Callable[[Algorithm], str | None]
"""Why an algorithm cannot be had, as what follows its name in a sentence; None if it can."""


def lack(operator: str, algorithm: Algorithm) -> str | None:
    """Why an algorithm without the operator cannot be had; None if it has it."""
    return None if algorithm.supports(operator) else f"has no {operator}"


def substituted(
    operator: str, wanted: str | Algorithm, refuses: Refuses, strict: bool = True
) -> tuple[Algorithm, str | None]:
    """(what is wanted, a record or the algorithm of a name; None) if it can be had, else (its substitute, why).

    Raises:
      UnsupportedError: ``native`` cannot be had and strict: it stands for XLA's own code, and who asks one call
        for it wants nothing else. As a setting for all operators it gives way like any other.
      ArgumentError: no registered algorithm has the operator.
    """
    known = algorithms()
    name = wanted.name if isinstance(wanted, Algorithm) else ALIASES.get(wanted, wanted)
    record = wanted if isinstance(wanted, Algorithm) else registered(name) if name in known else None
    why = "is not part of this version" if record is None else refuses(record)
    if record is not None and why is None:
        return record, None
    if name == "native" and strict:
        raise unsupported(registered(name), operator, why)
    for other in (*SUBSTITUTES.get(name, ()), *ANY):
        if other in known and refuses(registered(other)) is None:
            return registered(other), f"{name!r} {why}; {other!r} runs instead"
    raise ArgumentError(f"{name!r} {why}, and no other algorithm has it")
