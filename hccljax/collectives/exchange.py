"""all_to_all_v and all_to_all_vc: every pair of ranks exchanges a number of rows of its own.

all_to_all_v takes counts that are known only at run time, as a layer of experts routes its tokens; all_to_all_vc takes
them all while JAX traces, and then sends no more than they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hccljax.algorithm import Algorithm
from hccljax.algorithm.blocks import look_up
from hccljax.algorithm.pairwise import all_to_all_vc as exchange_by_pairs
from hccljax.algorithm.pairwise import pairwise
from hccljax.collectives.classes import one_size
from hccljax.collectives.counts import (
    checked_capacity,
    checked_matrix,
    rows_joined,
    rows_kept,
    rows_taken,
    run_time_counts,
)
from hccljax.collectives.leaf import as_array, map_leaves, moving
from hccljax.collectives.movement import exchanged
from hccljax.collectives.prepare import Request, request
from hccljax.collectives.sharded import sharded_alike
from hccljax.errors import ArgumentError, shown
from hccljax.group import AxisName, Group
from hccljax.primitives.call import Direction, linear_call
from hccljax.primitives.replication import vary
from hccljax.shapes import Arrays
from hccljax.topology import Topology

Matrix = tuple[tuple[int, ...], ...]


def all_to_all_v(
    x: Arrays,
    axis_name: AxisName | Group,
    send_counts: Any,
    *,
    capacity: int | None = None,
    send_offsets: Any = None,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> tuple[Any, jax.Array, jax.Array]:
    """Sends the first send_counts[j] rows of a block to each rank j; the counts may be traced.

    It does what ``jax.lax.ragged_all_to_all`` does for a layer of experts, and runs on CPU too. The wire carries p
    blocks of capacity rows whatever the counts are, and one int32 a rank if recv_counts is used. A jitted program
    cannot raise: rows that do not fit are not sent, and are counted in ``dropped``.

    Args:
      x: array(s) of any dtype, PRNG keys included: blocks [p, capacity, …], block j for rank j; or, with send_offsets,
        rows [n, …].
      axis_name: a mapped axis name, a tuple of them (numbered in the order given), or a Group.
      send_counts: rows for each rank, int [p], each rank's own. Negative counts are 0.
      capacity: rows that a block has room for, a static int; needed with send_offsets, else x says it.
      send_offsets: where the rows for each rank start in x [n, …], int [p]; for rows sorted by their rank,
        ``jnp.cumsum(send_counts) - send_counts``.
      algorithm: as for ``all_gather``.
      topology: as for ``all_gather``.

    Returns:
      (blocks, recv_counts, dropped). blocks: array(s) [p, capacity, …]; block i holds what rank i sent, zeros behind.
      recv_counts: int32 [p], the rows in each block. dropped: int32 [p], rows of this rank that were not sent to each
      rank, because they are more than capacity or not in x; the first ones of a block are sent.

    Raises:
      ArgumentError: counts or offsets that are not p ints, static ones that are negative or above capacity, an x of
        another shape, or an argument that is unknown (EI0003).
      DtypeError: counts or offsets that are not integers.
      AxisError: the axis is not mapped here.

    Source: HCCL's AlltoAllV.

    >>> rows, counts = jnp.array([[1, 2, 3], [4, 5, 6]]), jnp.array([[1, 2], [3, 0]])
    >>> def send(x, n):
    ...     return hccljax.all_to_all_v(x, "rank", n, capacity=3, send_offsets=jnp.cumsum(n) - n)
    >>> blocks, received, dropped = jax.vmap(send, axis_name="rank")(rows, counts)
    >>> blocks
    Array([[[1, 0, 0],
            [4, 5, 6]],
    <BLANKLINE>
           [[2, 3, 0],
            [0, 0, 0]]], dtype=int32)
    >>> received
    Array([[1, 3],
           [2, 0]], dtype=int32)
    """
    this = one_size(request(axis_name, algorithm, topology, "_v"), "all_to_all_v")
    p = this.group.size
    wanted = run_time_counts(send_counts, p, "send_counts")
    starts = None if send_offsets is None else run_time_counts(send_offsets, p, "send_offsets")
    x = jax.tree.map(as_array, x)
    room = _room(x, p, capacity, starts is not None)
    _check_known(send_counts, room)
    wanted = jnp.maximum(wanted, 0)
    sent = jnp.minimum(wanted, room)
    if starts is not None:
        n = jax.tree.leaves(x)[0].shape[0]
        behind = jnp.where(starts < 0, 0, jnp.maximum(n - starts, 0))
        sent = jnp.minimum(sent, behind)

    def send(x: jax.Array) -> jax.Array:
        blocks = rows_kept(x, sent) if starts is None else rows_taken(x, starts, sent, room)
        return exchanged(blocks, this, 0, 0, False)

    blocks = map_leaves(moving(send), x)
    return blocks, exchanged(sent, this, 0, 0, False), wanted - sent


def _room(x: Any, p: int, capacity: Any, flat: bool) -> int:
    """Rows of a block; every leaf of x is known to have the right shape afterwards."""
    room = None if capacity is None else checked_capacity(capacity)
    heads = {leaf.shape[: 1 if flat else 2] for leaf in jax.tree.leaves(x)}
    if not heads:
        raise ArgumentError(f"x={shown(x)} holds no array: expected at least one")
    head = next(iter(heads))
    if flat:
        if room is None:
            raise ArgumentError("capacity=None with send_offsets: expected a static int, the rows of a block")
        if len(heads) > 1 or not head:
            raise ArgumentError(
                f"all_to_all_v with send_offsets: x starts with dimensions {sorted(heads)}; expected arrays [n, …], "
                f"with one n for all of them"
            )
        return room
    if len(heads) > 1 or len(head) < 2 or head[0] != p or room not in (None, head[1]):
        raise ArgumentError(
            f"all_to_all_v: x starts with dimensions {sorted(heads)}; expected blocks "
            f"[{p}, {'capacity' if room is None else room}, …], alike in all arrays (pass send_offsets for rows [n, …] "
            f"that are not cut into blocks)"
        )
    return head[1]


def _check_known(send_counts: Any, room: int) -> None:
    """Counts that are no JAX array are known now; those that do not fit are a mistake."""
    if not isinstance(send_counts, jax.Array) and max(known := np.asarray(send_counts)) > room:
        raise ArgumentError(
            f"send_counts={shown(send_counts)}: send_counts[{known.argmax()}] is {known.max()}, but a block has room "
            f"for {room} rows; expected at most {room} (pass a larger capacity)"
        )


@dataclass(frozen=True)
class _Pairs:
    """Pairwise exchange of the rows that a matrix says, as a hashable function."""

    group: Group
    matrix: Matrix

    def __call__(self, x: jax.Array) -> jax.Array:
        return exchange_by_pairs(vary(x, self.group.axes), self.group, np.array(self.matrix))

    def transposed(self) -> _Pairs:
        """The exchange that sends everything back."""
        return replace(self, matrix=tuple(zip(*self.matrix, strict=True)))


def all_to_all_vc(
    x: Arrays,
    axis_name: AxisName | Group,
    matrix: Sequence[Sequence[int]],
    *,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
) -> Any:
    """Sends matrix[i][j] rows from rank i to rank j, all counts being known while JAX traces.

    By ``pairwise``, which runs unless another algorithm is asked for, step k = 1 … p - 1 carries the longest of its
    messages, max_i matrix[i][(i + k) mod p] rows, on every rank, and a step with nothing to send is left out. Other
    algorithms carry what an all_to_all of p blocks does that are all as long as the largest entry of the matrix.

    Args:
      x: array(s) [n, …] of any dtype, PRNG keys included, with n no smaller than the largest row sum: rank i's rows for
        rank 0, then those for rank 1, …, without gaps. One program runs on all ranks, so n is the same on all.
      axis_name: a mapped axis name, a tuple of them (numbered in the order given), or a Group, whose communicators all
        use the same matrix.
      matrix: p rows of p static ints, the same on all ranks (as HCCL demands).
      algorithm: as for ``all_gather``.
      topology: as for ``all_gather``.

    Returns:
      Array(s) [m, …], m being the largest column sum: the rows from rank 0, then those from rank 1, …, without gaps;
      zeros behind them.

    Raises:
      ArgumentError: matrix is not p × p static ints of 0 or more, x has no room for a row sum, or an argument is
        unknown (EI0003).
      AxisError: the axis is not mapped here.

    Source: HCCL's AlltoAllVC.

    >>> rows = jnp.array([[1, 2, 3], [4, 0, 0]])
    >>> jax.vmap(lambda x: hccljax.all_to_all_vc(x, "rank", [[1, 2], [1, 0]]), axis_name="rank")(rows)
    Array([[1, 4],
           [2, 3]], dtype=int32)
    """
    this = one_size(request(axis_name, algorithm, topology, "_vc"), "all_to_all_vc")
    checked = checked_matrix(matrix, this.group.size)
    room = max(map(sum, checked))

    def leaf(x: jax.Array) -> jax.Array:
        if x.ndim == 0 or x.shape[0] < room:
            raise ArgumentError(
                f"all_to_all_vc: x has shape {x.shape}, but a rank of this matrix sends {room} rows; expected an array "
                f"[n, …] with n at least {room} on every rank (pad it)"
            )
        return moving(lambda x: _exchanged(lax.slice_in_dim(x, 0, room), this, checked))(x)

    return map_leaves(leaf, x)


def _exchanged(x: jax.Array, this: Request, matrix: Matrix) -> jax.Array:
    run = this.run("all_to_all", x)
    if run.algorithm is pairwise:
        there = _Pairs(run.group, matrix)
        forward, back = Direction(there, run.group.axes), Direction(there.transposed(), run.group.axes)

        def call(x: jax.Array) -> jax.Array:
            return linear_call(x, forward, back, "all_to_all_vc")

        return sharded_alike(call, vary(x, run.group.axes), "all_to_all_vc")
    counts, rank = np.array(matrix, np.int32), this.group.rank
    sends, starts = (look_up(table, rank) for table in (counts, np.cumsum(counts, 1, np.int32) - counts))
    blocks = exchanged(rows_taken(x, starts, sends, int(counts.max())), this, 0, 0, False)
    return rows_joined(blocks, look_up(counts.T, rank), int(counts.sum(0).max()))
