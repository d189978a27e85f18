"""choose → group with tiers: the first half of every public collective."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import jax

from hccljax.algorithm import Algorithm
from hccljax.collectives.leaf import message_bytes
from hccljax.collectives.typed import Run
from hccljax.errors import InvariantOperandWarning
from hccljax.group import AxisName, Group, as_group
from hccljax.primitives.compat import checked_axes, varying
from hccljax.reduction import MEAN, reduction
from hccljax.selection.choice import OfCommunicator, choose
from hccljax.selection.notice import announce, outside
from hccljax.selection.settings import Settings
from hccljax.topology import Topology, as_topology


@dataclass(frozen=True)
class Request:
    """The arguments that all collectives share, checked once for all leaves.

    form is the end of the operator's name, ``"_v"`` or ``"_vc"``, if its blocks differ in size: the kernels are those
    of the operator without it, the Decision names it.
    """

    group: Group
    algorithm: str | Algorithm | OfCommunicator | None
    topology: Topology | None
    form: str = ""

    def run(
        self,
        operator: str,
        x: jax.Array,
        op: str | None = None,
        root: int = 0,
        factor: int = 1,
        accumulate_dtype: str | None = None,
    ) -> Run:
        """The kernel call for one leaf; its message is ``factor`` times x."""
        tiers = self.topology or self.group.topology
        nbytes, p = message_bytes(x) * factor, self.group.size
        settings = Settings.from_environment()
        decision = choose(
            operator + self.form,
            nbytes,
            p,
            self.algorithm,
            tiers,
            settings=settings,
            accumulate_dtype=accumulate_dtype,
            leaves_out=not self.group.covers,
        )
        announce(decision, settings)
        group = self.group if decision.tiers is None else self.group.with_levels(decision.tiers)
        # An algorithm that accumulates divides a mean before it rounds it.
        divides = op == "mean" and accumulate_dtype is not None and p > 1
        by = MEAN if divides else None if op is None else reduction(op)
        return Run(operator, decision.record, group, by, root, asked=decision.asked)


def request(
    axis_name: AxisName | Group,
    algorithm: str | Algorithm | OfCommunicator | None,
    topology: str | Topology | None,
    form: str = "",
) -> Request:
    """The checked request."""
    group = as_group(axis_name)
    group.resolved  # noqa: B018  (raises for an unmapped axis or a partition of another size)
    return Request(group, algorithm, as_topology(topology), form)


def warn_if_invariant(x: jax.Array, group: Group, op: str) -> None:
    """Warns where a replicated value is reduced: it is counted once for every rank, or has been summed before."""
    checked = checked_axes(group.axes)
    if op in ("max", "min") or not checked or set(checked) & varying(x):
        return
    ranks = " or ".join(str(one.size) for one in group.classes)
    if op == "mean":
        what = "the mean is that operand itself, as in jax.lax. If it is a gradient, jax.grad has summed it already, "
        what += f"and it is {ranks} times the mean"
    else:
        what = f"the result counts it {ranks} times, as jax.lax does. If it is a gradient, jax.grad has inserted "
        what += "the sum already"
    warnings.warn(
        f"all_reduce(op={op!r}) of an operand that is already the same on every rank of {group.axis_name!r}: "
        f"{what}: pass the parameters through "
        f"hccljax.as_varying(params, {group.axis_name!r}) before jax.grad",
        InvariantOperandWarning,
        stacklevel=outside(),
    )
