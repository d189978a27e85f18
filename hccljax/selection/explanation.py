"""explain: the Decision for a collective, without running anything."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from hccljax.algorithm import Algorithm
from hccljax.algorithm.base import OPERATORS, REDUCING, SHAPE_KEEPING, VARIABLE
from hccljax.errors import ArgumentError, shown
from hccljax.group import Group
from hccljax.numbers import MOST_BYTES, whole
from hccljax.reduction import as_dtype
from hccljax.selection.choice import OfCommunicator, choose
from hccljax.selection.cost import Field
from hccljax.selection.decision import Decision
from hccljax.selection.notice import warn_of_fallback
from hccljax.selection.outlook import Outlook, outlook_of
from hccljax.selection.ranks import assumed
from hccljax.selection.settings import Settings
from hccljax.topology import Topology, as_topology, with_figures


@dataclass(frozen=True)
class Explanation(Decision):
    """A Decision with all that could have run in its place.

    Attributes:
      topology: the tiers that it was made for, or None.
      settings: what the environment asked for.
    """

    topology: Topology | None = None
    settings: Settings = field(default=Settings(), repr=False, compare=False)

    @classmethod
    def of(cls, decision: Decision, topology: Topology | None, settings: Settings) -> Explanation:
        """The decision, for these tiers in this environment."""
        known = {one.name: getattr(decision, one.name) for one in fields(decision)}
        return cls(**known, topology=topology, settings=settings)

    @cached_property
    def outlook(self) -> Outlook | None:
        """All candidates with their predicted times; None for one rank.

        Tiers without figures are wired as those of atlas-800t-a2; so are the tiers that are assumed without a topology.
        """
        if self.ranks == 1:
            return None
        topology = self.topology or assumed(self.ranks)
        operator = VARIABLE.get(self.operator, self.operator)
        automatic = replace(self.settings, algo="")
        hccl = choose(self.operator, self.nbytes, self.ranks, None, topology, settings=automatic, policy="cann")
        candidates = Field(operator, with_figures(topology), self.settings.buffer)
        return outlook_of(self, candidates, not topology.levels, f"{hccl.algorithm}: {hccl.reason}")

    def __str__(self) -> str:
        text = super().__str__()
        if self.classes or self.outlook is None:
            return text
        return "\n".join([text, *self.outlook.lines()])


def explain(
    operator: str,
    nbytes: int,
    ranks_or_group: int | Group,
    topology: str | Topology | None = None,
    algorithm: str | Algorithm | OfCommunicator | None = None,
    accumulate_dtype: Any = None,
    policy: str | None = None,
) -> Explanation:
    """Which algorithm runs a collective, and why; nothing is run.

    Args:
      operator: ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``, ``"broadcast"``, ``"reduce"``, ``"scatter"``,
        ``"gather"`` or ``"all_to_all"``; ``"all_gather_v"``, ``"reduce_scatter_v"``, ``"all_to_all_v"`` and
        ``"all_to_all_vc"`` with the figures of blocks that are all as long as the longest.
      nbytes: bytes of one rank's message: of the whole array for all_reduce, broadcast and reduce, of all p blocks for
        the others (a V form: p blocks as long as the longest).
      ranks_or_group: the number of ranks, or a Group (one with groups of its own, or inside shard_map or vmap).
      topology: the tiers, such as ``"4x8"`` for 4 servers of 8 ranks, or ``"5+3"`` for servers of 5 and 3.
      algorithm: as the ``algorithm=`` of the collectives.
      accumulate_dtype: as that of all_reduce, reduce_scatter and reduce.
      policy: the rule that chooses if nobody asks for an algorithm: ``"ranks"``, ``"cann"``, ``"cann-910"``,
        ``"cost"`` or one of your own; None is HCCLJAX_POLICY, or ``"ranks"``.

    Returns:
      The Decision; ``print`` it for a text on one screen. Its ``outlook`` has all candidates with predicted times. For
      a Group of communicators of several sizes it is that of the largest, and ``classes`` has one for each size:
      they run at the same time, each in its own communicators.

    Raises:
      ArgumentError: an unknown operator or algorithm, ranks that are not a positive int, an operator that cannot run in
        communicators of several sizes, or an accumulate_dtype for an operator that adds nothing up.
      DtypeError: accumulate_dtype is no dtype.
      SettingError: a malformed HCCL_ALGO.

    >>> hccljax.explain("all_reduce", 1 << 20, 8).algorithm
    'ring'
    """
    known = (*OPERATORS, *VARIABLE)
    if not isinstance(operator, str) or operator not in known:
        raise ArgumentError(f"operator={shown(operator)}: expected one of {', '.join(known)}")
    group = ranks_or_group if isinstance(ranks_or_group, Group) else None
    sizes = (
        (ranks_or_group,) if not isinstance(ranks_or_group, Group) else tuple(c.size for c in ranks_or_group.classes)
    )
    sizes, nbytes = tuple(whole("ranks", p, 1) for p in sizes), whole("nbytes", nbytes, 0, MOST_BYTES)
    if len(sizes) > 1 and operator not in SHAPE_KEEPING:
        raise ArgumentError(
            f"{operator} over communicators of unequal size ({', '.join(map(str, sizes))} ranks): expected one of "
            f"{', '.join(SHAPE_KEEPING)}, or communicators of one size"
        )
    tiers = as_topology(topology)
    if tiers is None and group is not None:
        tiers = group.topology
    wide = None if accumulate_dtype is None else _dtype_of_sums(operator, accumulate_dtype)
    settings = Settings.from_environment()
    decisions = []
    for p in sizes:
        leaves_out = len(sizes) > 1 or (group is not None and not group.covers)
        one = choose(
            operator,
            nbytes,
            p,
            algorithm,
            tiers,
            settings=settings,
            accumulate_dtype=wide,
            leaves_out=leaves_out,
            policy=policy,
        )
        warn_of_fallback(one)
        decisions.append(Explanation.of(one, tiers, settings))
    return decisions[0] if len(sizes) == 1 else replace(decisions[0], classes=tuple(decisions))


def _dtype_of_sums(operator: str, dtype: Any) -> str:
    if operator not in REDUCING:
        raise ArgumentError(
            f"accumulate_dtype={shown(dtype)}: {operator} adds nothing up; expected one of {', '.join(REDUCING)}"
        )
    return as_dtype(dtype).name
