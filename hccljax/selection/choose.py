"""choose: from what the call, the communicator and the environment ask for to one Decision. No fallback is silent."""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import replace
from functools import lru_cache

from hccljax.algorithm import Algorithm, algorithms, hierarchy, registered
from hccljax.algorithm.hierarchical import AROUND, serves
from hccljax.errors import ArgumentError, FallbackWarning, SettingError
from hccljax.selection import ranks
from hccljax.selection.decision import Decision
from hccljax.selection.grammar import Levels, parse_algo
from hccljax.selection.settings import Settings
from hccljax.topology import Topology

logger = logging.getLogger("hccljax")

ALIASES = {"fullmesh": "mesh", "NHR_V1": "NHR", "AHC_BROKE": "AHC"}
"""Words of HCCL_ALGO that mean another registered name."""

SUBSTITUTES = {
    "ring": ("NHR", "H-D_R"),
    "H-D_R": ("NHR", "ring"),
    "NHR": ("H-D_R", "ring"),
    "tree": ("H-D_R", "ring"),
    "double_tree": ("tree", "H-D_R", "ring"),
}
"""What runs instead of an algorithm that lacks the operator, in order; HCCL's rule, with its trees added."""

_ANY = ("NHR", "H-D_R", "ring", "pairwise")


def choose(
    operator: str,
    nbytes: int,
    p: int,
    algorithm: str | Algorithm | None = None,
    topology: Topology | None = None,
    *,
    communicator: str | Algorithm | None = None,
    settings: Settings | None = None,
) -> Decision:
    """The Decision for one operator on p ranks.

    Args:
      operator: such as ``"all_reduce"``.
      nbytes: bytes of one rank's message.
      p: ranks in the group.
      algorithm: what the call asks for; it beats communicator, which beats HCCL_ALGO.
      topology: the tiers, for hierarchies.
      communicator: what the communicator asks for.
      settings: the environment; None reads it now.

    Raises:
      ArgumentError: an unknown algorithm, or a topology of another size.
      SettingError: a malformed HCCL_ALGO.
    """
    settings = Settings.from_environment() if settings is None else settings
    wanted, asked_by = algorithm, "call"
    if wanted is None:
        wanted, asked_by = communicator, "communicator"
    if wanted is None and settings.algo:
        wanted, asked_by = settings.algo, "HCCL_ALGO"
    if topology is not None and topology.ranks != p:
        raise ArgumentError(f"topology {topology} has {topology.ranks} ranks, but the group has {p}; expected {p}")
    decision = _decide(operator, nbytes, p, wanted, asked_by, None if topology is None else topology.sizes)
    if decision.fallback:
        warnings.warn(f"{operator} of {p} ranks: {decision.fallback}", FallbackWarning, stacklevel=outside())
    if settings.entry_log:
        _log(decision)
    return decision


def available() -> tuple[str, ...]:
    """The names that ``algorithm=`` takes: every registered algorithm, and ``hierarchical``.

    A hierarchy of one algorithm for each level is written ``"level0:ring;level1:tree"``.
    """
    return (*algorithms(), "hierarchical")


@lru_cache(maxsize=4096)
def _decide(
    operator: str, nbytes: int, p: int, wanted: str | Algorithm | None, asked_by: str, tiers: tuple[int, ...] | None
) -> Decision:
    if isinstance(wanted, Algorithm):
        return _flat(operator, nbytes, p, wanted.name, asked_by, f"{_said(asked_by, wanted.name)} is a record of its own", wanted)
    # A name alone, said of one call or one communicator, is that algorithm; in HCCL_ALGO "tree" depends on the size.
    if isinstance(wanted, str) and wanted in algorithms() and asked_by != "HCCL_ALGO":
        return _flat(operator, nbytes, p, wanted, asked_by, f"{_said(asked_by, wanted)} names it")
    levels = None if wanted is None else _parsed(wanted, asked_by).for_operator(operator)
    if levels is not None and levels.automatic:
        levels = None
    if levels is not None and levels.every_level and levels.names[0] != "hierarchical":
        name = levels.names[0] or ""
        name = ranks.tree_for(nbytes) if name == "tree" else ALIASES.get(name, name)
        return _flat(operator, nbytes, p, name, asked_by, f"{_said(asked_by, wanted)} names {levels.names[0]!r}")
    sizes = tiers or ranks.servers(p)
    hierarchical = levels is not None or p > ranks.MEDIUM
    if len(sizes) > 1 and p > 1 and hierarchical:
        return _tiered(operator, nbytes, sizes, levels, wanted, asked_by, tiers is None)
    if levels is None or levels.names[0] in (None, "hierarchical"):
        name, reason = ranks.flat(operator, p, nbytes)
        if levels is not None:
            reason = f"{_said(asked_by, wanted)} chooses nothing for one flat server, so: {reason}"
        return _flat(operator, nbytes, p, name, "policy ranks", reason)
    name = levels.names[0]
    name = ranks.tree_for(nbytes) if name == "tree" else ALIASES.get(name, name)
    unused = ", and its other levels have no effect: no topology says there are servers" if len(levels.names) > 1 else ""
    return _flat(operator, nbytes, p, name, asked_by, f"{_said(asked_by, wanted)} names {levels.names[0]!r} inside a server{unused}")


def _said(asked_by: str, wanted: object) -> str:
    return f"HCCL_ALGO={wanted}" if asked_by == "HCCL_ALGO" else f"algorithm={wanted!r} of the {asked_by}"


def _parsed(wanted: str, asked_by: str):  # noqa: ANN202
    if not isinstance(wanted, str):
        raise ArgumentError(f"algorithm={wanted!r}: expected a name, an HCCL_ALGO text or an Algorithm")
    try:
        return parse_algo(wanted, frozenset(available()))
    except SettingError as error:
        if asked_by == "HCCL_ALGO":
            raise
        known = ", ".join(available())
        raise ArgumentError(f"algorithm={wanted!r}: expected one of {known}, or an HCCL_ALGO text ({error})") from None


def _flat(
    operator: str, nbytes: int, p: int, name: str, asked_by: str, reason: str, record: Algorithm | None = None
) -> Decision:
    """The Decision for one algorithm on all ranks, or for its substitute."""
    record, fallback = _substituted(operator, name, record, lambda one: one.supports(operator))
    if p == 1:
        reason = f"one rank: nothing is sent ({reason})"
    return Decision(
        operator, p, nbytes, record.name, reason, asked_by, fallback,
        steps=record.steps(operator, p, nbytes) if p > 1 else 0,
        bytes_sent=record.bytes_sent(operator, p, nbytes) if p > 1 else 0,
        record=record,
    )  # fmt: skip


def _tiered(
    operator: str, nbytes: int, sizes: tuple[int, ...], levels: Levels | None, wanted: object, asked_by: str, assumed: bool
) -> Decision:
    """The Decision for one algorithm on each tier."""
    records, fallbacks, seen = [], [], nbytes
    names = None if levels is None or levels.every_level else levels
    for k, size in enumerate(sizes):
        top = k == len(sizes) - 1
        named = names.at(k) if names else None
        name = ranks.tiered(operator, k, seen) if named is None else ALIASES.get(named, named)
        name = ranks.tree_for(seen) if name == "tree" else name
        record, fallback = _substituted(operator, name, None, lambda one, top=top: serves(one, operator, top))
        records.append(record)
        fallbacks += [f"level{k}: {fallback}"] if fallback else []
        if operator in AROUND:
            seen = -(-seen // size)
    plan = hierarchy(tuple(records), sizes)
    p = Topology(sizes).ranks
    reason = f"{operator} of more than {ranks.MEDIUM} ranks is hierarchical"
    if levels is not None:
        reason = f"{_said(asked_by, wanted)} chooses an algorithm for each level"
    if assumed:
        reason += f"; no topology was given, so servers of {ranks.SERVER} are assumed"
    return Decision(
        operator, p, nbytes, plan.name, reason, asked_by if levels is not None else "policy ranks",
        "; ".join(fallbacks) or None,
        steps=plan.steps(operator, p, nbytes), bytes_sent=plan.bytes_sent(operator, p, nbytes),
        tiers=sizes, record=plan,
    )  # fmt: skip


def _substituted(operator: str, name: str, record: Algorithm | None, able) -> tuple[Algorithm, str | None]:  # noqa: ANN001
    """(the algorithm of that name, None) if it is able, else (the first substitute that is, what happened)."""
    if record is None and name in algorithms():
        record = registered(name)
    if record is not None and able(record):
        return record, None
    if name == "native":
        raise _no_native(operator)
    lack = f"{name!r} has no {operator}" if record is not None else f"{name!r} is not part of this version"
    for other in (*SUBSTITUTES.get(name, ()), *_ANY):
        if other in algorithms() and able(registered(other)):
            return registered(other), f"{lack}; {other!r} runs instead"
    raise ArgumentError(f"{lack}, and no other algorithm has it")


def _no_native(operator: str) -> Exception:
    from hccljax.algorithm.base import unsupported

    return unsupported(registered("native"), operator)


def outside() -> int:
    """The stack level of the first caller outside hccljax and JAX, for warnings that point at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("hccljax", "jax"):
        frame, level = frame.f_back, level + 1
    return level


_logged: set[Decision] = set()


def _log(decision: Decision) -> None:
    """One line for every new decision, on stderr unless the program has set up logging itself."""
    key = replace(decision, record=None)
    if key in _logged:
        return
    _logged.add(key)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    logger.info("%s", " | ".join(line.strip() for line in str(decision).splitlines()))
