"""trace: from a per-device function to its Schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from hccljax.algorithm.base import registered_so_far
from hccljax.environment import fingerprint
from hccljax.errors import ArgumentError, shown
from hccljax.primitives.compat import newly_manual, traced_apart
from hccljax.schedule.coalescing import coalesced
from hccljax.schedule.computing import ComputingRecorder
from hccljax.schedule.dependence import resolved
from hccljax.schedule.ranks import Ranks
from hccljax.schedule.recorder import Recorder
from hccljax.schedule.schedule import Schedule
from hccljax.schedule.walk import Walker


def trace(fn: Callable[..., Any], *args: Any, axis_sizes: Mapping[str, int], compute: bool = False) -> Schedule:
    """Reads from its jaxpr what a per-device function communicates; nothing runs and no device is needed.

    Collectives of hccljax and of ``jax.lax`` are found wherever they stand: inside ``jit``, ``scan``, ``fori_loop``
    with static bounds, ``cond`` with branches that communicate alike, ``custom_jvp``, ``custom_vjp``, ``checkpoint``
    and ``shard_map``, in gradients too: also the ``psum`` that differentiation inserts in a checked ``shard_map``.
    Communications whose results nobody uses are left out, as XLA drops them.

    Args:
      fn: a function as it stands inside ``jax.shard_map``, or one that calls ``jax.shard_map`` itself (over a
        ``jax.sharding.AbstractMesh``, say). With ``axis_sizes`` it is traced as an unchecked ``shard_map`` runs it
        (``check_vma=False``): differentiation inserts a ``psum`` in a checked ``shard_map`` inside fn only. What
        ``jax.vmap`` maps inside fn stays on one device and does not count.
      args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct``, with one device's shapes, or the whole
        arrays' if fn calls ``jax.shard_map`` itself.
      axis_sizes: sizes of the mapped axes; ``{}`` if fn maps all of them by ``shard_map``. Ranks are numbered by
        flattening them in this order, the last one changing fastest, those of a shard_map inside after them; a
        communication over some of them happens at once for every index of the others.
      compute: also record what each rank computes between its communications, as events of kind ``"compute"`` with
        ``flops`` and ``nbytes``, for ``simulate`` with ``rates``. What a collective of hccljax computes inside is not
        among them: it belongs to the communication (``gamma`` of ``simulate``).

    Returns:
      A Schedule.

    Raises:
      ArgumentError: what is communicated is not known while tracing: by a while loop of unknown length, or by a
        ``cond`` whose branches do not communicate alike. The message leads with the line of your code.

    >>> x = jax.ShapeDtypeStruct((1 << 20,), "float32")
    >>> ring = lambda x: hccljax.all_reduce(x, "rank", algorithm="ring")
    >>> schedule = hccljax.trace(ring, x, axis_sizes={"rank": 16_384})
    >>> len(schedule), schedule.steps, schedule.max_bytes_sent
    (2, 32766, 8388096)
    >>> [(event.label, event.trips) for event in schedule]
    [('ring_reduce_scatter', 16383), ('ring_all_gather', 16383)]
    """
    return trace_with(fn, args, axis_sizes, compute)


def trace_with(
    fn: Callable[..., Any],
    args: Sequence[Any],
    axis_sizes: Mapping[str, int],
    compute: bool = False,
    instead: Callable[[Mapping[str, int]], Callable[[JaxprEqn], Callable[..., Any] | None]] | None = None,
) -> Schedule:
    """``trace``, with collectives of ``jax.lax`` replaced: instead gives what a Walker takes, for all axis sizes."""
    if not callable(fn):
        raise ArgumentError(f"trace got {shown(fn)}: expected a per-device function, its arguments after it")
    sizes = checked_sizes(axis_sizes)
    with traced_apart(f"{fingerprint()};{registered_so_far()}"):  # what decides which algorithm runs
        traced = jax.make_jaxpr(fn, axis_env=list(sizes.items()))(*args).jaxpr
        sizes = _with_inner_axes(traced, sizes)
        recorder = (ComputingRecorder if compute else Recorder)(Ranks(sizes))
        walker: Walker[Any] = Walker(recorder, sizes, instead=None if instead is None else instead(sizes))
        walker.walk(traced, [recorder.nothing] * len(traced.invars), [True] * len(traced.outvars))
    events, loops = coalesced(recorder.events, recorder.loops) if compute else (recorder.events, recorder.loops)
    return Schedule(*resolved(events, loops), recorder.ranks)


def checked_sizes(axis_sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of mapped axes as a dict of ints, once they are known to be that."""
    if not isinstance(axis_sizes, Mapping) or not all(
        isinstance(axis, str) and isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size > 0
        for axis, size in axis_sizes.items()
    ):
        raise ArgumentError(
            f"axis_sizes={shown(axis_sizes)}: expected axis names and their sizes, such as {{'rank': 8}}"
        )
    return {axis: int(size) for axis, size in axis_sizes.items()}


def _with_inner_axes(jaxpr: Jaxpr, sizes: dict[str, int]) -> dict[str, int]:
    """The axis sizes with the axes of every shard_map inside added."""
    sizes = dict(sizes)
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            shape, manual = equation.params["mesh"].shape, newly_manual(equation.params)
            for axis in (axis for axis in shape if axis in manual):
                if sizes.setdefault(axis, shape[axis]) != shape[axis]:
                    raise ArgumentError(
                        f"axis {axis!r} has size {shape[axis]} in a shard_map inside, else {sizes[axis]}; "
                        f"expected one size for each axis: leave out of axis_sizes what shard_map maps"
                    )
        for inner in jaxprs_in_params(equation.params):
            sizes = _with_inner_axes(inner, sizes)
    return sizes
