"""What a call, a communicator or HCCL_ALGO asks for: its text read as levels, for one operator."""

from __future__ import annotations

from hccljax.algorithm import base, registered
from hccljax.errors import ArgumentError, SettingError, nearest, shown
from hccljax.selection.grammar import Levels, parse_algo
from hccljax.selection.substitute import ALIASES

LONGEST = 40
"""Characters of a word that could be the slip of a known one."""


def algorithms() -> tuple[str, ...]:
    """The names that ``algorithm=`` takes: every registered algorithm, and ``hierarchical``; ``"fastest"`` goes beside.

    A hierarchy of one algorithm for each level is written ``"level0:ring;level1:tree"``.
    """
    return (*base.algorithms(), "hierarchical")


def spanning(levels: Levels) -> str | None:
    """The algorithm over all tiers that levels name and nothing beside it.

    HCCL writes its pipeline, which is inside the servers as much as between them, as ``level0:NA;level1:pipeline``.
    """
    named = {ALIASES.get(name, name) for name in levels.names if name is not None}
    name = named.pop() if len(named) == 1 else None
    return name if name in base.algorithms() and registered(name).over is not None else None


def levels_of(wanted: object, asked_by: str, operator: str) -> Levels | None:
    """What an HCCL_ALGO text says of operator; None if it chooses nothing."""
    if not isinstance(wanted, str):
        raise ArgumentError(f"algorithm={shown(wanted)}: expected a name, an HCCL_ALGO text or an Algorithm")
    try:
        setting = parse_algo(wanted, frozenset(algorithms()))
    except SettingError as error:
        if asked_by == "HCCL_ALGO":
            raise
        names, why = ", ".join(algorithms()), str(error).removeprefix(f"{error.code}: HCCL_ALGO ")
        if any(c in wanted for c in ":;=/") or len(wanted) > LONGEST:
            raise ArgumentError(f"algorithm={shown(wanted)}, read as HCCL_ALGO: {why}") from None
        raise ArgumentError(
            f"algorithm={shown(wanted)}: expected one of {names}, or one for each level, such as "
            f"'level0:ring;level1:tree'{nearest(wanted, algorithms())}"
        ) from None
    levels = setting.for_operator(operator)
    return None if levels is None or levels.automatic else levels


def idle(levels: Levels, p: int, there: int) -> str | None:
    """What is asked of levels that p ranks in so many levels do not have; None if nothing."""
    if p == 1:
        return None
    missing = [f"level{k}" for k, name in enumerate(levels.names) if k >= there and name is not None]
    outer = len(levels.names) - 1
    if levels.names[0] == "hierarchical" and there == 1:
        missing, outer = ["a hierarchy"], 1
    if not missing:
        return None
    ranks = f"{p} ranks in {'one flat server' if there == 1 else f'{there} levels'}"
    inner, rest = divmod(p, 2**outer)
    example = "x".join(map(str, (p, *[1] * outer) if rest else (*[2] * outer, inner)))
    return f"{' and '.join(missing)} has no effect on {ranks}: pass topology=, such as {example!r}"
