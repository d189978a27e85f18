"""Collective: what the library has to know of each primitive that communicates, in one record."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.core import JaxprEqn

from hccljax.schedule.liveness import short_name


@dataclass(frozen=True)
class Collective:
    """A primitive that communicates.

    Attributes:
      kind: of its events; what communicates alike has one kind, whatever replication type JAX gives the result.
      sends_once: True if a rank sends one message at most; else every rank talks to every other at once.
      cut: True if the operand is cut into one block a rank; else it is sent whole.
      reduction: how the receivers combine what they get: ``"sum"``, ``"max"`` or ``"min"``; "" if they do not.
      opaque: True for a collective of ``jax.lax``, which XLA does in its own way.
    """

    kind: str
    sends_once: bool = False
    cut: bool = False
    reduction: str = ""
    opaque: bool = False


_SUM = Collective("psum", reduction="sum", opaque=True)
_GATHER = Collective("all_gather", opaque=True)
_SCATTER = Collective("reduce_scatter", cut=True, reduction="sum", opaque=True)

COLLECTIVES = {
    "hccl_permute": Collective("permute", sends_once=True),
    "ppermute": Collective("permute", sends_once=True),
    "hccl_mesh_exchange": Collective("mesh_exchange", cut=True),
    "hccl_mesh_gather": Collective("mesh_gather"),
    "psum": _SUM,
    "psum_invariant": _SUM,
    "unreduced_psum": _SUM,
    "pmax": Collective("pmax", reduction="max", opaque=True),
    "pmin": Collective("pmin", reduction="min", opaque=True),
    "all_gather": _GATHER,
    "all_gather_invariant": _GATHER,
    "all_gather_reduced": _GATHER,
    "reduce_scatter": _SCATTER,
    "unreduced_reduce_scatter": _SCATTER,
    "all_to_all": Collective("all_to_all", cut=True, opaque=True),
}
"""By JAX's names of the primitives (jax 0.10.2): a new name is added here, and nowhere else."""

KINDS = {collective.kind: collective for collective in COLLECTIVES.values()}
"""One record of each kind of events: all of a kind reduce alike, and are opaque or not."""


def collective_of(equation: JaxprEqn) -> Collective | None:
    """The record of an equation's primitive; None if it does not communicate."""
    return COLLECTIVES.get(short_name(equation))
