"""choose: from what the call, the communicator and the environment ask for to one Decision. No fallback is silent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import hccljax.selection.ranks as ranks
from hccljax.algorithm import Algorithm, base, hierarchy, registered
from hccljax.algorithm.base import REDUCING, VARIABLE
from hccljax.algorithm.hierarchical import passed_up, serves
from hccljax.algorithm.native import native
from hccljax.errors import ArgumentError, SettingError, nearest, shown
from hccljax.selection.accumulation import accumulated
from hccljax.selection.buffer import in_slices
from hccljax.selection.decision import Decision
from hccljax.selection.grammar import Levels
from hccljax.selection.policies import RANKS, Question, answer, policies, policy_named
from hccljax.selection.settings import Settings
from hccljax.selection.substitute import lack, substituted
from hccljax.selection.wanted import idle, levels_of, spanning
from hccljax.topology import Topology

POLICY = f"policy {RANKS}"
CALLERS = ("call", "communicator")
FASTEST, FASTEST_POLICY = "fastest", "cost"
COVERING = "runs in communicators of one size only"
ALONE = "works on all levels together and runs on none beside another algorithm"
UNEQUAL = "needs servers of one size"


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
    leaves_out: bool = False,
    policy: str | None = None,
) -> Decision:
    """The Decision for one operator on p ranks; it is said aloud where something runs (``announce``).

    Args:
      operator: such as ``"all_reduce"``.
      nbytes: bytes of one rank's message.
      p: ranks in the group.
      algorithm: what the call or else its communicator asks for; it beats HCCL_ALGO.
      topology: the tiers, for hierarchies.
      settings: the environment; None reads it now.
      accumulate_dtype: the dtype in which contributions are to be added, by name; None is the message's own.
      policy: the rule that chooses if nobody asks for an algorithm; None is that of the environment.
      leaves_out: True if the group leaves ranks of the axis out, which XLA's own collectives cannot do.

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
    case = _Case(operator, nbytes, p, topology, leaves_out)
    if policy is None:
        policy = _of_environment(settings)
    if wanted == FASTEST and asked_by != "HCCL_ALGO":
        decision = _by(FASTEST_POLICY, case, settings, asked_by)
    elif wanted is None and policy != RANKS:
        decision = _by(policy, case, settings, asked_by)
    else:
        decision = case.decide(wanted, asked_by)
    if accumulate_dtype is not None or (settings.deterministic == "strict" and operator in REDUCING):
        decision = accumulated(decision, accumulate_dtype)
    if nbytes > settings.buffer and p > 1:
        decision = in_slices(decision, settings.buffer)
    return decision


def _by(policy: str, case: _Case, settings: Settings, asked_by: str) -> Decision:
    """The Decision of a policy other than ``ranks``."""
    rule, asked_by = policy_named(policy), asked_by if asked_by in CALLERS else f"policy {policy}"
    if rule is None or case.p == 1 or case.name == "all_to_all_vc":
        return case.decide(None, asked_by)
    name, reason = answer(policy, rule, Question(case.operator, case.p, case.nbytes, case.topology, settings))
    decision = case.decide(name, asked_by, exact=True)
    if name is None:
        return replace(decision, reason=f"{reason}, so: {decision.reason}")
    return replace(decision, reason=f"{reason} (policy {policy})" if asked_by in CALLERS else reason)


def _of_environment(settings: Settings) -> str:
    """The policy that HCCLJAX_POLICY names."""
    if settings.policy not in policies():
        raise SettingError(
            f"HCCLJAX_POLICY is {shown(settings.policy)}, expected one of {', '.join(policies())}"
            f"{nearest(settings.policy, policies())}; set one of them, or unset it"
        )
    return settings.policy


class _Case:
    """One operator, message size, group size and topology, for which a Decision is to be made."""

    def __init__(self, operator: str, nbytes: int, p: int, topology: Topology | None, leaves_out: bool):
        # A V form runs the kernels of the operator that it is a form of; only the Decision has its name.
        self.name, self.operator = operator, VARIABLE.get(operator, operator)
        self.nbytes, self.p, self.topology, self.leaves_out = nbytes, p, topology, leaves_out
        self._exact = False

    @property
    def tiers(self) -> tuple[int, ...]:
        """Members of each level: those of the topology, else those to assume."""
        return (self.topology or ranks.assumed(self.p)).sizes

    @property
    def _uneven(self) -> bool:
        """True if servers differ in size."""
        return self.topology is not None and self.topology.servers is not None

    def decide(self, wanted: object, asked_by: str, exact: bool = False) -> Decision:
        """The Decision for what was asked for, None being nothing; exact: "tree" is the binomial tree of any size."""
        self._exact = exact
        said = f"HCCL_ALGO={wanted}" if asked_by == "HCCL_ALGO" else f"algorithm={shown(wanted)} of the {asked_by}"
        if isinstance(wanted, Algorithm):
            return self._flat(wanted, said, "is a record of its own", asked_by)
        # A name alone is that algorithm, whatever it means in HCCL_ALGO, where "tree" depends on the size.
        if isinstance(wanted, str) and wanted in base.algorithms() and asked_by != "HCCL_ALGO":
            return self._flat(wanted, said, "names it", asked_by)
        levels = None if wanted is None else levels_of(wanted, asked_by, self.operator)
        if levels is None:
            return self._by_policy()
        if levels.every_level and levels.names[0] != "hierarchical":
            return self._flat(self._sized(levels.names[0]), said, f"names {levels.names[0]!r}", asked_by)
        if self._uneven and self.p > 1:
            return self._by_unequal_servers(levels, said, asked_by)
        decision = self._by_levels(levels, said, asked_by)
        left = idle(levels, self.p, len(self.tiers)) if asked_by != "HCCL_ALGO" else None
        if left is None:
            return decision
        return replace(decision, fallback="; ".join(filter(None, [decision.fallback, left])))

    def _by_policy(self) -> Decision:
        """The Decision where nobody asked for anything."""
        if self._uneven and self.p > ranks.MEDIUM and registered("AHC").supports(self.operator):
            return self._flat("AHC", "", f"{self.name} of more than {ranks.MEDIUM} ranks is hierarchical", POLICY)
        if self.name == "all_to_all_vc":
            return self._flat("pairwise", "only pairwise exchange sends every pair of ranks its own count", "", POLICY)
        if len(self.tiers) > 1 and self.p > ranks.MEDIUM:
            return self._tiered(None, "", POLICY)
        return self._flat(*ranks.flat(self.operator, self.p, self.nbytes), "", POLICY)

    def _by_unequal_servers(self, levels: Levels, said: str, asked_by: str) -> Decision:
        """The Decision for a text that names levels, where servers differ in size: AHC is their hierarchy."""
        alone = spanning(levels)
        if alone is not None:
            return self._flat(alone, said, f"names {alone!r}, which works on all levels together", asked_by)
        if registered("AHC").supports(self.operator):
            name, reason = "AHC", "AHC is the hierarchy of servers of unequal size"
        else:
            name, reason = ranks.flat(self.operator, self.p, self.nbytes)
        if levels.names[0] == "hierarchical" and name == "AHC":
            return self._flat(name, said, f"chooses a hierarchy: {reason}", asked_by)
        decision = self._flat(name, said, f"cannot be had: {reason}", asked_by)
        why = f"{str(levels)!r} needs servers of one size, and these have {self.topology} ranks"
        return replace(decision, fallback=f"{why}; {decision.algorithm!r} runs instead")

    def _by_levels(self, levels: Levels, said: str, asked_by: str) -> Decision:
        """The Decision for a text that names levels, or ``hierarchical``."""
        if len(self.tiers) > 1 and self.p > 1:
            alone = spanning(levels)
            if alone is not None and registered(alone).supports(self.operator):
                return self._flat(alone, said, f"names {alone!r}, which works on all levels together", asked_by)
            return self._tiered(levels, said, asked_by)
        name = levels.names[0]
        if name in (None, "hierarchical"):
            automatic, reason = ranks.flat(self.operator, self.p, self.nbytes)
            return self._flat(automatic, said, f"chooses nothing for one flat server, so: {reason}", POLICY)
        idle = ", and has no effect between servers: there is one" if len(levels.names) > 1 else ""
        return self._flat(self._sized(name), said, f"names {name!r} inside a server{idle}", asked_by)

    def _sized(self, name: str | None, nbytes: int | None = None) -> str:
        """A name of HCCL_ALGO as a registered one, for the bytes it is to move."""
        sized = name == "tree" and not self._exact
        return ranks.tree_for(self.nbytes if nbytes is None else nbytes) if sized else str(name)

    def _flat(self, wanted: str | Algorithm, said: str, how: str, asked_by: str) -> Decision:
        """One algorithm on all ranks, or its substitute."""
        strict = asked_by == "call"
        record, fallback = substituted(self.operator, wanted, self._refuses, strict)
        reason = f"{said} {'cannot be had' if fallback else how}".strip()
        if record.over is None:
            return self._decision(record, reason, asked_by, fallback, None)
        if self.topology is not None and self.topology.servers is not None and record.over_servers is not None:
            servers = self.topology.servers
            return replace(
                self._decision(record.over_servers(servers), reason, asked_by, fallback, None), servers=servers
            )
        reason += self._assumed if len(self.tiers) > 1 else ""
        return self._decision(record.over(self.tiers), reason, asked_by, fallback, self.tiers)

    def _tiered(self, levels: Levels | None, said: str, asked_by: str) -> Decision:
        """One algorithm on each tier."""
        records, fallbacks, nbytes, tiers = [], [], self.nbytes, self.tiers
        for k, size in enumerate(tiers):
            top = k == len(tiers) - 1
            named = None if levels is None or levels.every_level else levels.at(k)
            name = ranks.tiered(self.operator, k, nbytes) if named is None else self._sized(named, nbytes)
            record, fallback = substituted(self.operator, name, partial(self._refuses_tier, top))
            records.append(record)
            fallbacks += [f"level{k}: {fallback}"] if fallback else []
            nbytes = passed_up(record, self.operator, nbytes, size)
        reason = f"{said} chooses an algorithm for each level"
        if levels is None:
            reason = f"{self.operator} of more than {ranks.MEDIUM} ranks is hierarchical"
        reason += self._assumed
        return self._decision(hierarchy(tuple(records), tiers), reason, asked_by, "; ".join(fallbacks) or None, tiers)

    def _refuses(self, one: Algorithm) -> str | None:
        """Why an algorithm cannot run on all ranks; None if it can."""
        lacks = lack(self.operator, one)
        if lacks is not None:
            return lacks
        if self._uneven and one.over is not None and one.over_servers is None:
            return UNEQUAL
        return COVERING if self.leaves_out and one is native else None

    def _refuses_tier(self, top: bool, one: Algorithm) -> str | None:
        """Why an algorithm cannot run on one tier (top: the outermost); None if it can."""
        if serves(one, self.operator, top):
            return COVERING if self.leaves_out and one is native else None
        return lack(self.operator, one) or ALONE

    @property
    def _assumed(self) -> str:
        """What a reason adds where the tiers were not given."""
        return "" if self.topology else f"; no topology was given, so servers of {ranks.SERVER} are assumed"

    def _decision(
        self, record: Algorithm, reason: str, asked_by: str, fallback: str | None, tiers: tuple[int, ...] | None
    ) -> Decision:
        steps, bytes_sent = record.cost(self.operator, self.p, self.nbytes)
        return Decision(
            operator=self.name,
            ranks=self.p,
            nbytes=self.nbytes,
            algorithm=record.name,
            reason=f"one rank: nothing is sent ({reason})" if self.p == 1 else reason,
            asked_by=asked_by,
            fallback=fallback,
            steps=steps,
            bytes_sent=bytes_sent,
            record=record,
            tiers=tiers,
        )
