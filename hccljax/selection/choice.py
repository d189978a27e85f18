"""choose: from what the call, the communicator and the environment ask for to one Decision. No fallback is silent."""

from __future__ import annotations

from dataclasses import dataclass

import hccljax.selection.ranks as ranks
from hccljax.algorithm import Algorithm, algorithms, hierarchy
from hccljax.algorithm.base import VARIABLE
from hccljax.algorithm.hierarchical import AROUND, serves
from hccljax.errors import ArgumentError, SettingError, shown
from hccljax.selection.accumulation import accumulated
from hccljax.selection.decision import Decision
from hccljax.selection.grammar import Levels, parse_algo
from hccljax.selection.notice import log_entry, warn_of_fallback
from hccljax.selection.settings import Settings
from hccljax.selection.substitute import substituted
from hccljax.topology import Topology

POLICY = "policy ranks"


@dataclass(frozen=True)
class OfCommunicator:
    """An algorithm that a communicator asks for, and not the call itself."""

    algorithm: str | Algorithm | None


def choose(
    operator: str,
    nbytes: int,
    p: int,
    algorithm: str | Algorithm | OfCommunicator | None = None,
    topology: Topology | None = None,
    *,
    settings: Settings | None = None,
    accumulate_dtype: str | None = None,
) -> Decision:
    """The Decision for one operator on p ranks.

    Args:
      operator: such as ``"all_reduce"``.
      nbytes: bytes of one rank's message.
      p: ranks in the group.
      algorithm: what the call or else its communicator asks for; it beats HCCL_ALGO.
      topology: the tiers, for hierarchies.
      settings: the environment; None reads it now.
      accumulate_dtype: the dtype in which contributions are to be added, by name; None is the message's own.

    Raises:
      ArgumentError: an unknown algorithm, or a topology of another size.
      SettingError: a malformed HCCL_ALGO.
      UnsupportedError: ``native`` was asked for and lacks the operator.
    """
    settings = Settings.from_environment() if settings is None else settings
    wanted, asked_by = (algorithm, "call")
    if isinstance(algorithm, OfCommunicator):
        wanted, asked_by = algorithm.algorithm, "communicator"
    if wanted is None:
        wanted, asked_by = (settings.algo, "HCCL_ALGO") if settings.algo else (None, POLICY)
    if topology is not None and topology.ranks != p:
        raise ArgumentError(f"topology {topology} has {topology.ranks} ranks, but the group has {p}; expected {p}")
    decision = _Case(operator, nbytes, p, topology).decide(wanted, asked_by)
    if accumulate_dtype is not None:
        decision = accumulated(decision, accumulate_dtype)
    warn_of_fallback(decision)
    if settings.entry_log:
        log_entry(decision)
    return decision


def available() -> tuple[str, ...]:
    """The names that ``algorithm=`` takes: every registered algorithm, and ``hierarchical``.

    A hierarchy of one algorithm for each level is written ``"level0:ring;level1:tree"``.
    """
    return (*algorithms(), "hierarchical")


class _Case:
    """One operator, message size, group size and topology, for which a Decision is to be made."""

    def __init__(self, operator: str, nbytes: int, p: int, topology: Topology | None):
        # A V form runs the kernels of the operator that it is a form of; only the Decision has its name.
        self.name, self.operator = operator, VARIABLE.get(operator, operator)
        self.nbytes, self.p, self.topology = nbytes, p, topology

    def decide(self, wanted: object, asked_by: str) -> Decision:
        """The Decision for what was asked for, None being nothing."""
        said = f"HCCL_ALGO={wanted}" if asked_by == "HCCL_ALGO" else f"algorithm={shown(wanted)} of the {asked_by}"
        if isinstance(wanted, Algorithm):
            return self._flat(wanted, f"{said} is a record of its own", asked_by)
        # A name alone is that algorithm, whatever it means in HCCL_ALGO, where "tree" depends on the size.
        if isinstance(wanted, str) and wanted in algorithms() and asked_by != "HCCL_ALGO":
            return self._flat(wanted, f"{said} names it", asked_by)
        levels = None if wanted is None else _levels(wanted, asked_by, self.operator)
        if levels is not None and levels.every_level and levels.names[0] != "hierarchical":
            return self._flat(self._sized(levels.names[0]), f"{said} names {levels.names[0]!r}", asked_by)
        if levels is None and self.name == "all_to_all_vc":
            return self._flat("pairwise", "only pairwise exchange sends every pair of ranks its own count", POLICY)
        tiers = self.topology.sizes if self.topology else ranks.servers(self.p)
        if len(tiers) > 1 and self.p > 1 and (levels is not None or self.p > ranks.MEDIUM):
            return self._tiered(tiers, levels, said, asked_by)
        name = levels.names[0] if levels is not None else None
        if levels is None or name in (None, "hierarchical"):
            automatic, reason = ranks.flat(self.operator, self.p, self.nbytes)
            nothing = f"{said} chooses nothing for one flat server, so: " if levels is not None else ""
            return self._flat(automatic, nothing + reason, POLICY)
        idle = ", and has no effect between servers: there is one" if len(levels.names) > 1 else ""
        return self._flat(self._sized(name), f"{said} names {name!r} inside a server{idle}", asked_by)

    def _sized(self, name: str | None, nbytes: int | None = None) -> str:
        """A name of HCCL_ALGO as a registered one, for the bytes it is to move."""
        return ranks.tree_for(self.nbytes if nbytes is None else nbytes) if name == "tree" else str(name)

    def _flat(self, wanted: str | Algorithm, reason: str, asked_by: str) -> Decision:
        """One algorithm on all ranks, or its substitute."""
        record, fallback = substituted(self.operator, wanted, lambda one: one.supports(self.operator))
        return self._decision(record, reason, asked_by, fallback, None)

    def _tiered(self, tiers: tuple[int, ...], levels: Levels | None, said: str, asked_by: str) -> Decision:
        """One algorithm on each tier."""
        records, fallbacks, nbytes = [], [], self.nbytes
        for k, size in enumerate(tiers):
            top = k == len(tiers) - 1
            named = None if levels is None or levels.every_level else levels.at(k)
            name = ranks.tiered(self.operator, k, nbytes) if named is None else self._sized(named, nbytes)
            record, fallback = substituted(self.operator, name, lambda one, top=top: serves(one, self.operator, top))  # type: ignore[misc]
            records.append(record)
            fallbacks += [f"level{k}: {fallback}"] if fallback else []
            if self.operator in AROUND:
                nbytes = -(-nbytes // size)
        reason = f"{said} chooses an algorithm for each level"
        if levels is None:
            asked_by, reason = POLICY, f"{self.operator} of more than {ranks.MEDIUM} ranks is hierarchical"
        if self.topology is None:
            reason += f"; no topology was given, so servers of {ranks.SERVER} are assumed"
        return self._decision(hierarchy(tuple(records), tiers), reason, asked_by, "; ".join(fallbacks) or None, tiers)

    def _decision(
        self, record: Algorithm, reason: str, asked_by: str, fallback: str | None, tiers: tuple[int, ...] | None
    ) -> Decision:
        alone = self.p == 1
        return Decision(
            operator=self.name,
            ranks=self.p,
            nbytes=self.nbytes,
            algorithm=record.name,
            reason=f"one rank: nothing is sent ({reason})" if alone else reason,
            asked_by=asked_by,
            fallback=fallback,
            steps=0 if alone else record.steps(self.operator, self.p, self.nbytes),
            bytes_sent=0 if alone else record.bytes_sent(self.operator, self.p, self.nbytes),
            tiers=tiers,
            record=record,
        )


def _levels(wanted: object, asked_by: str, operator: str) -> Levels | None:
    """What an HCCL_ALGO text says of operator; None if it chooses nothing."""
    if not isinstance(wanted, str):
        raise ArgumentError(f"algorithm={shown(wanted)}: expected a name, an HCCL_ALGO text or an Algorithm")
    try:
        setting = parse_algo(wanted, frozenset(available()))
    except SettingError as error:
        if asked_by == "HCCL_ALGO":
            raise
        names, why = ", ".join(available()), str(error).removeprefix(f"{error.code}: ")
        raise ArgumentError(
            f"algorithm={shown(wanted)}: expected one of {names}, or an HCCL_ALGO text. Read as the latter: {why}"
        ) from None
    levels = setting.for_operator(operator)
    return None if levels is None or levels.automatic else levels
