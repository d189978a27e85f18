"""Policies: the rules that choose an algorithm where nobody asks for one, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import hccljax.selection.cann as cann
from hccljax.errors import ArgumentError, nearest, shown
from hccljax.selection.ranks import assumed
from hccljax.selection.settings import Settings
from hccljax.topology import Topology

RANKS = "ranks"
"""The default, by the number of ranks."""


@dataclass(frozen=True)
class Question:
    """What a policy is asked.

    Attributes:
      operator: such as ``"all_reduce"``; a V form asks as the operator that it runs.
      p: ranks of the group.
      nbytes: bytes of one rank's message, all p blocks of it.
      topology: its tiers; None if none were given.
      settings: what the environment asks for.
    """

    operator: str
    p: int
    nbytes: int
    topology: Topology | None
    settings: Settings

    @property
    def tiers(self) -> Topology:
        """The topology, or the tiers that are assumed for so many ranks."""
        return assumed(self.p) if self.topology is None else self.topology

    @property
    def servers(self) -> int:
        """How many servers there are."""
        return math.prod(self.tiers.sizes[1:]) if self.tiers.servers is None else len(self.tiers.servers)


Policy = Callable[[Question], tuple[str | None, str]]
"""A question → (a registered name or an HCCL_ALGO text such as "level0:mesh;level1:NHR", why); None for ``ranks``."""

_POLICIES: dict[str, Policy] = {}


def policies() -> tuple[str, ...]:
    """The names of all policies, for ``policy=`` and HCCLJAX_POLICY."""
    return (RANKS, *_POLICIES)


def register_policy(name: str, policy: Policy) -> Policy:
    """Makes a policy known under a name; returns it.

    Args:
      name: what ``policy=`` and HCCLJAX_POLICY call it.
      policy: (question) → (a registered algorithm or an HCCL_ALGO text, why); None instead of a name leaves it to
        ``ranks``. The question has ``operator``, ``p``, ``nbytes``, ``topology`` and ``settings``.

    Raises:
      ArgumentError: the name is taken.
    """
    if not isinstance(name, str) or not name or not callable(policy):
        raise ArgumentError(f"register_policy({shown(name)}, {shown(policy)}): expected a name and a function")
    if name == RANKS or _POLICIES.setdefault(name, policy) is not policy:
        raise ArgumentError(f"a policy named {name!r} is registered already: choose another name")
    return policy


def policy_named(name: str) -> Policy | None:
    """The policy of that name; None for ``ranks``."""
    if name == RANKS:
        return None
    if not isinstance(name, str) or name not in _POLICIES:
        raise ArgumentError(f"policy={shown(name)}: expected one of {', '.join(policies())}{nearest(name, policies())}")
    return _POLICIES[name]


def answer(name: str, policy: Policy, question: Question) -> tuple[str | None, str]:
    """What the policy of that name answers, once it has the form that an answer has.

    Raises:
      ArgumentError: it has not.
    """
    found = policy(question)
    pair = isinstance(found, tuple) and len(found) == 2
    if not pair or not isinstance(found[0], (str, type(None))) or found[0] == "" or not isinstance(found[1], str):
        raise ArgumentError(
            f"policy {name!r} answered {shown(found)}; expected (an algorithm's name or an HCCL_ALGO text, why), or "
            f"(None, why) to leave it to {RANKS!r}"
        )
    return found


def _as_hccl(product: str, question: Question) -> tuple[str | None, str]:
    """What HCCL's own selector takes: mesh (A2) or ring (910) in the servers, and its choice between them."""
    inside = "mesh" if product == "A2" else "ring"
    if question.tiers.servers is not None:
        return "AHC", "servers of unequal size take AHC"
    servers = question.servers
    if servers == 1:
        name = "pairwise" if question.operator == "all_to_all" and product == "910" else inside
        return name, f"one server of {product} runs {name}"
    deterministic = question.settings.deterministic != "false"
    name, reason = cann.level1(
        question.operator,
        servers,
        question.p // servers,
        min(question.nbytes, question.settings.buffer),
        deterministic,
        product,
    )
    return (name if name == "pipeline" else f"level0:{inside};level1:{name}"), reason


register_policy("cann", partial(_as_hccl, "A2"))
register_policy("cann-910", partial(_as_hccl, "910"))
