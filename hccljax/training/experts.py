"""Expert parallelism: tokens go to the ranks that hold their experts, and come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hccljax.algorithm import Algorithm
from hccljax.collectives import all_to_all_v
from hccljax.collectives.classes import one_size
from hccljax.collectives.prepare import request
from hccljax.errors import ArgumentError
from hccljax.group import AxisName, Group
from hccljax.numbers import whole
from hccljax.primitives.replication import vary
from hccljax.topology import Topology


def experts(
    expert_fn: Callable[[jax.Array, jax.Array], jax.Array],
    tokens: jax.Array,
    index: jax.Array,
    weights: jax.Array,
    axis_name: AxisName | Group,
    *,
    num_experts: int,
    capacity: int | None = None,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The weighted outputs of the experts that each token is routed to, where each rank holds num_experts / p of them.

    Rank r holds the experts r · num_experts / p onwards. Tokens are sorted by expert, sent by ``all_to_all_v``, taken
    by the experts, and sent back. Differentiable in tokens, weights, and what expert_fn closes over: gradients of an
    expert's parameters are sums over the losses of all ranks.

    Args:
      expert_fn: (rows [p × capacity, d], counts [num_experts / p]) → [p × capacity, …]: the rows of this rank's first
        expert, then of the next one, then zeros; ``jax.lax.ragged_dot(rows, w, counts)`` multiplies each by its w.
      tokens: [n, d], this rank's.
      index: int [n, k], the experts of each token.
      weights: [n, k], of their outputs.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      num_experts: of all ranks together, a multiple of p.
      capacity: the most rows that one rank sends to another; None is n · k, with room for all.
      algorithm: as for ``hccljax.all_to_all_v``.
      topology: as for ``hccljax.all_to_all_v``.

    Returns:
      (out [n, …], dropped): dropped is an int32 scalar, how many of this rank's n · k rows were not sent since they
      are above capacity or their index is no expert; they add nothing to out.

    Raises:
      ArgumentError: p does not divide num_experts, shapes do not fit, or another argument is unknown.
      AxisError: the axis is not mapped here.

    Source: GShard (Lepikhin et al. 2020); rows without padding as in MegaBlocks (Gale et al. 2022).
    """
    group = one_size(request(axis_name, algorithm, topology), "experts").group
    p, (n, k) = group.size, _checked(tokens, index, weights)
    held = _held(num_experts, p)
    room = max(n * k, 1) if capacity is None else whole("capacity", capacity, 1)
    by: Any = {"algorithm": algorithm, "topology": topology}
    tokens, index, weights = (vary(jnp.asarray(x), group.axes) for x in (tokens, index, weights))

    flat = index.reshape(-1).astype(jnp.int32)
    flat = jnp.where((flat >= 0) & (flat < num_experts), flat, num_experts)  # no expert: behind all others
    order = jnp.argsort(flat, stable=True)
    expert = flat[order]
    counts = jnp.bincount(expert // held, length=p + 1)[:p].astype(jnp.int32)
    starts = jnp.cumsum(counts) - counts
    sent = (tokens[order // k], expert % held)
    (rows, theirs), received, _ = all_to_all_v(sent, group, counts, capacity=room, send_offsets=starts, **by)

    out = _by_expert(expert_fn, rows.reshape(p * room, *rows.shape[2:]), theirs, received, held)
    back, _, _ = all_to_all_v(out.reshape(p, room, *out.shape[1:]), group, received, **by)

    rank = jnp.minimum(expert // held, p - 1)
    slot = jnp.arange(n * k, dtype=jnp.int32) - starts[rank]
    came = (expert < num_experts) & (slot < room)
    mine = back[rank, jnp.minimum(slot, room - 1)]
    mine = jnp.where(came.reshape(-1, *[1] * (mine.ndim - 1)), mine, jnp.zeros_like(mine))
    unsorted = mine[jnp.argsort(order)].reshape(n, k, *mine.shape[1:])
    total = (weights.reshape(n, k, *[1] * (mine.ndim - 1)).astype(unsorted.dtype) * unsorted).sum(1)
    return total, jnp.int32(n * k) - came.sum(dtype=jnp.int32)


def _by_expert(
    expert_fn: Callable[[jax.Array, jax.Array], jax.Array],
    rows: jax.Array,
    expert: jax.Array,
    received: jax.Array,
    held: int,
) -> jax.Array:
    """expert_fn of rows [p × room, …] that it sees sorted by expert [p, room], in the order in which they came."""
    here = jnp.arange(expert.shape[1], dtype=jnp.int32)[None] < received[:, None]
    key = jnp.where(here, expert, held).reshape(-1)
    order = jnp.argsort(key, stable=True)
    counts = jnp.bincount(key, length=held + 1)[:held].astype(jnp.int32)
    out = expert_fn(rows[order], counts)
    if jnp.shape(out)[:1] != rows.shape[:1]:
        raise ArgumentError(
            f"expert_fn makes an array of shape {list(jnp.shape(out))} of rows {list(rows.shape)}: expected one row "
            f"for each row"
        )
    return out[jnp.argsort(order)]


def _held(num_experts: int, p: int) -> int:
    """Experts on each rank."""
    number = whole("num_experts", num_experts, 1)
    if number % p:
        raise ArgumentError(f"num_experts={number} on {p} ranks: expected a multiple of {p}")
    return number // p


def _checked(tokens: jax.Array, index: jax.Array, weights: jax.Array) -> tuple[int, int]:
    """(n, k) of arrays that fit each other."""
    shapes = [jnp.shape(x) for x in (tokens, index, weights)]
    if len(shapes[0]) < 2 or len(shapes[1]) != 2 or shapes[1] != shapes[2] or shapes[0][0] != shapes[1][0]:
        raise ArgumentError(
            f"tokens, index and weights of shapes {', '.join(str(list(shape)) for shape in shapes)}: expected "
            f"[n, d], [n, k] and [n, k]"
        )
    if not jnp.issubdtype(jnp.result_type(index), jnp.integer):
        raise ArgumentError(f"index of dtype {jnp.result_type(index)}: expected integers, the numbers of experts")
    return shapes[1][0], shapes[1][1]
