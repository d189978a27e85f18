"""Gradients of a data-parallel loss, reduced by hccljax and by nobody else.

In a checked ``shard_map`` (the default) parameters come in replicated, and ``jax.grad`` of something replicated with
respect to varying data already inserts XLA's own psum: a further all_reduce would multiply the gradient by the number
of ranks, and the chosen algorithm would never run. Parameters that are first typed as varying get the gradient of their
own rank, which is then reduced once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from operator import index
from typing import Any

import jax

from hccljax.algorithm import Algorithm
from hccljax.collectives import all_reduce
from hccljax.collectives.leaf import as_array
from hccljax.errors import ArgumentError, shown
from hccljax.group import AxisName, Group, as_group
from hccljax.primitives.replication import vary
from hccljax.topology import Topology
from hccljax.training.sync import checked_op, sync_gradients


def as_varying(x: Any, axis_name: AxisName | Group) -> Any:
    """x typed as varying over the axis, so that ``jax.grad`` with respect to it inserts no sum of its own.

    Values are not touched and nothing is sent. Where replication types are not checked (``check_vma=False``, vmap) and
    for what varies already, it does nothing.

    Args:
      x: array(s), such as the parameters of a model.
      axis_name: a mapped axis name, a tuple of them, or a Group.

    Returns:
      The same array(s).

    Raises:
      AxisError: the axis is not mapped here.

    Source: ``jax.lax.pcast(x, axis_name, to="varying")``, made safe to call anywhere.
    """
    group = as_group(axis_name)
    group.resolved  # noqa: B018  (raises for an unmapped axis)
    return jax.tree.map(lambda leaf: vary(as_array(leaf), group.axes), x)


def value_and_grad(
    fun: Callable[..., Any],
    axis_name: AxisName | Group,
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    op: str = "mean",
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
    bucket_bytes: int | str | None = None,
) -> Callable[..., Any]:
    """``jax.value_and_grad`` of a data-parallel loss: value and gradients reduced over the ranks, once.

    Call the result inside ``jax.shard_map`` (checked or not) or ``jax.vmap(axis_name=…)``. Gradients take the chosen
    algorithm in all of them, and come out replicated. Only the axes named here are taken care of: in a checked
    ``shard_map`` over further axes along which the data differ, JAX itself sums the gradients of replicated parameters
    over those; name all of them, or pass the parameters through ``as_varying`` first.

    Args:
      fun: (params, *local data) → the scalar loss of this rank's data, or (loss, aux) with has_aux.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      argnums: which arguments to differentiate with respect to.
      has_aux: fun returns (loss, aux); aux is passed through as it is on this rank.
      op: ``"mean"`` or ``"sum"`` over the ranks.
      algorithm: as for ``hccljax.all_reduce``.
      topology: as for ``hccljax.all_reduce``.
      accumulate_dtype: as for ``hccljax.all_reduce``; applies to the gradients.
      bucket_bytes: a number or ``"auto"``, as for ``hccljax.sync_gradients``, which then reduces the gradients; None
        reduces every leaf on its own.

    Returns:
      A function of fun's arguments that returns (value, gradients), or ((value, aux), gradients).

    Raises:
      ArgumentError: op is neither ``"mean"`` nor ``"sum"``.

    Source: hccljax.
    """
    checked_op(op)
    positions = _positions(argnums)

    @wraps(fun)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        own = list(args)
        for position in positions:
            if not -len(own) <= position < len(own):
                raise ArgumentError(
                    f"argnums={shown(argnums)}: expected positions among the {len(own)} arguments given"
                )
            own[position] = as_varying(own[position], axis_name)
        differentiate = jax.value_and_grad(fun, argnums, has_aux=has_aux)
        value, grads = differentiate(*own, **kwargs)
        loss, aux = value if has_aux else (value, None)
        loss = all_reduce(as_varying(loss, axis_name), axis_name, op, algorithm=algorithm, topology=topology)
        same: Any = {"algorithm": algorithm, "topology": topology, "accumulate_dtype": accumulate_dtype}
        if bucket_bytes is None:
            # On CPU devices long leaves gain nothing by being packed: 25 MB buckets of a ResNet-50 take up to 1.6 times
            # as long as its leaves.
            grads = all_reduce(grads, axis_name, op, **same)
        else:
            grads = sync_gradients(grads, axis_name, op, bucket_bytes=bucket_bytes, **same)
        return ((loss, aux) if has_aux else loss), grads

    return reduced


def _positions(argnums: int | Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(index, argnums)) if isinstance(argnums, Iterable) else (index(argnums),)
    except TypeError:
        raise ArgumentError(f"argnums={shown(argnums)}: expected an int or several of them") from None
