"""predict: how long a training step takes on a cluster, and how much of that is communication."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from hccljax.algorithm import Algorithm
from hccljax.environment import environment
from hccljax.errors import ArgumentError, shown
from hccljax.prediction.replacing import Replacing
from hccljax.schedule import Schedule
from hccljax.schedule.ranks import Ranks
from hccljax.schedule.tracing import checked_sizes, trace_with
from hccljax.timing import Rates, Simulation, simulate
from hccljax.timing.settling import settled
from hccljax.timing.simulation import duration
from hccljax.topology import Topology, with_figures


@dataclass(frozen=True)
class Prediction:
    """How long a step takes; ``print`` it for a table.

    Attributes:
      simulation: the step with the settings it was asked for.
      schedule: what it computes and communicates.
      samples: of one step, all ranks together; None if not given.
      communicators: seconds by axes: all rounds of messages over them, one after another, each as long as its slowest.
      alternatives: the same step under other values of HCCL_ALGO, by value.
    """

    simulation: Simulation
    schedule: Schedule = field(repr=False)
    samples: float | None
    communicators: Mapping[str, float]
    alternatives: Mapping[str, Simulation] = field(repr=False)

    @property
    def seconds(self) -> float:
        """Of one step."""
        return self.simulation.seconds

    @property
    def communication_share(self) -> float:
        """The communication that is not hidden behind computation, as a part of the step: 0 to 1."""
        return self.simulation.communication_share

    @property
    def throughput(self) -> float | None:
        """Samples per second, all ranks together; None if samples were not given."""
        return None if self.samples is None else self.samples / self.seconds

    def __str__(self) -> str:
        lines = [str(self.simulation)]
        lines += [f"  over {axes}: messages of {duration(t)}" for axes, t in self.communicators.items()]
        if self.throughput is not None:
            lines.append(f"  {self.throughput:,.1f} samples/s")
        if self.alternatives:
            width = max(len(name) for name in self.alternatives)
            lines.append(f"  {'HCCL_ALGO':<{max(width, 9)}}  {'step':>10}  {'communication':>13}  {'against':>8}")
            for name, other in self.alternatives.items():
                lines.append(
                    f"  {name or 'automatic':<{max(width, 9)}}  {duration(other.seconds):>10}  "
                    f"{other.communication_share:>13.1%}  {self.seconds / other.seconds:>7.2f}×"
                )
        return "\n".join(lines)


def predict(
    step: Callable[..., Any],
    *args: Any,
    axis_sizes: Mapping[str, int] | jax.sharding.Mesh | jax.sharding.AbstractMesh,
    topology: str | Topology,
    rates: Rates | None = None,
    settings: Mapping[str, str] | None = None,
    algorithm: str | Algorithm | None = None,
    compare: Sequence[str] = (),
    placement: Sequence[int] | None = None,
    samples: float | None = None,
) -> Prediction:
    """How long a step takes on a topology; nothing runs, and no device or memory is needed.

    The step is traced as it is: forward, backward and optimiser, with the ``psum`` that differentiation inserts. A
    collective of ``jax.lax`` is costed as the algorithm that hccljax would choose for it on the ranks that it joins.

    Args:
      step: a per-device function, as ``hccljax.trace`` takes it. Collectives of hccljax inside it run as they are
        written: they know the tiers that their own ``topology=`` says, and no others.
      args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``, with one device's shapes, or the whole
        arrays' if step maps itself.
      axis_sizes: sizes of the mapped axes, or a mesh that has them; ranks are numbered by flattening them, the last one
        fastest. ``{}`` if step maps all of its axes by ``shard_map``.
      topology: such as ``"atlas-800t-a2:4x8"``; one without figures is given those of atlas-800t-a2.
      rates: how fast a rank computes; without, computations take no time, and all of the step is communication.
      settings: HCCL variables for this prediction, over those of the environment: ``{"HCCL_ALGO": "ring"}``.
      algorithm: for the collectives of ``jax.lax``, as ``algorithm=`` of hccljax's: a name, or ``"fastest"``.
      compare: values of HCCL_ALGO to predict the same step with; ``""`` is the automatic choice.
      placement: the place of each rank in the topology; rank r is at place r if it is not given.
      samples: of one step, all ranks together, for the throughput.

    Returns:
      A Prediction. What it rests on stands in ``prediction.simulation.assumptions``.

    Raises:
      ArgumentError: what is communicated is not known while tracing, or the topology has fewer ranks than the axes.
      SettingError: a setting has a value that it cannot have.

    >>> step = lambda w, x: jax.lax.psum(jax.grad(lambda w: ((x @ w) ** 2).sum())(w), "data")
    >>> found = hccljax.predict(
    ...     step, jnp.zeros((512, 512)), jnp.zeros((64, 512)), axis_sizes={"data": 8}, topology="atlas-800t-a2:8"
    ... )
    >>> found.communication_share
    1.0
    """
    _check(samples, compare, settings, placement)
    tiers = with_figures(topology)
    if isinstance(axis_sizes, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        axis_sizes = dict(axis_sizes.shape)
    sizes = checked_sizes(axis_sizes)

    def simulated(variables: Mapping[str, str], wanted: str | Algorithm | None) -> tuple[Schedule, Simulation]:
        replacing = Replacing(tiers, placement, wanted)

        def instead(sizes: Mapping[str, int]) -> Any:  # with the axes that the step maps itself
            ranks = Ranks(sizes)
            if ranks.n > tiers.ranks:
                raise ArgumentError(f"axes {ranks} make {ranks.n} ranks, but {tiers} has {tiers.ranks}")
            settled(Schedule((), ranks=ranks), tiers, placement, rates=rates)
            return replacing(sizes)

        with environment(variables):
            schedule = trace_with(step, args, sizes, True, instead)
        found = simulate(schedule, tiers, placement=placement, rates=rates)
        return schedule, replace(found, assumptions=(*found.assumptions, *replacing.assumptions))

    schedule, simulation = simulated(settings or {}, algorithm)
    others = {text: simulated({**(settings or {}), "HCCL_ALGO": text}, None)[1] for text in compare}
    return Prediction(simulation, schedule, samples, simulation.busy_by_axes(), others)


def _check(samples: object, compare: object, settings: object, placement: object) -> None:
    """Raises for what can be known before the step is traced."""
    number = isinstance(samples, numbers.Real) and not isinstance(samples, bool)
    if samples is not None and not (number and 0 < samples < math.inf):  # type: ignore[operator]
        raise ArgumentError(f"samples={shown(samples)}: expected a finite number above 0, or None")
    texts = isinstance(compare, Sequence) and not isinstance(compare, str)
    if not texts or not all(isinstance(value, str) for value in compare):  # type: ignore[attr-defined]
        raise ArgumentError(f"compare={shown(compare)}: expected a sequence of values, such as ['ring', 'tree']")
    if settings is not None and not isinstance(settings, Mapping):
        raise ArgumentError(
            f"settings={shown(settings)}: expected HCCL variables and their values, such as {{'HCCL_ALGO': 'ring'}}"
        )
    try:
        np.asarray(placement)
    except ValueError:
        raise ArgumentError(f"placement={shown(placement)}: expected one place for each rank") from None
