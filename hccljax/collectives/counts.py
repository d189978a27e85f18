"""Counts of the variable-size operators: checked where they are static, and the rows they stand for."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from hccljax.collectives.sharded import reshaped, spec_of
from hccljax.errors import ArgumentError, DtypeError, shown


def checked_counts(counts: Any, p: int, what: str = "counts") -> tuple[int, ...]:
    """counts as p static ints, none of them negative."""
    if isinstance(counts, jax.core.Tracer):
        raise ArgumentError(
            f"{what} is a traced array of shape {counts.shape}: expected {p} static ints, since shapes depend on them "
            f"(all_to_all_v takes counts that are known only at run time)"
        )
    try:
        given = [_as_count(count) for count in counts]
    except TypeError:
        raise ArgumentError(
            f"{what}={shown(counts)}: expected a sequence of {p} static ints, one for each rank"
        ) from None
    if len(given) != p:
        raise ArgumentError(f"{what}={shown(counts)} has {len(given)} entries; expected {p}, one for each rank")
    if min(given) < 0:
        raise ArgumentError(
            f"{what}={shown(counts)}: {what}[{given.index(min(given))}] is {min(given)}; expected 0 or more"
        )
    return tuple(given)


def checked_matrix(matrix: Any, p: int) -> tuple[tuple[int, ...], ...]:
    """matrix as p rows of p static ints, none of them negative."""
    if isinstance(matrix, jax.core.Tracer):
        raise ArgumentError(
            f"matrix is a traced array of shape {matrix.shape}: expected {p} rows of {p} static ints, since shapes "
            f"depend on them (all_to_all_v takes counts that are known only at run time)"
        )
    try:
        rows = list(matrix)
    except TypeError:
        raise ArgumentError(f"matrix={shown(matrix)}: expected {p} rows of {p} static ints") from None
    if len(rows) != p:
        raise ArgumentError(f"matrix has {len(rows)} rows; expected {p}, one for each sending rank")
    return tuple(checked_counts(row, p, f"matrix[{i}]") for i, row in enumerate(rows))


def checked_capacity(capacity: Any) -> int:
    """capacity as a static int."""
    try:
        room = _as_count(capacity)
    except TypeError:
        room = -1
    if room < 0:
        raise ArgumentError(f"capacity={shown(capacity)}: expected a static int, 0 or more")
    return room


def _as_count(count: Any) -> int:
    if isinstance(count, (bool, np.bool_)):
        raise TypeError(count)
    return operator.index(count)


def run_time_counts(counts: Any, p: int, what: str) -> jax.Array:
    """counts as an int32 array [p]; they may be traced. Those known already are checked."""
    try:
        array = jnp.asarray(counts)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what}={shown(counts)}: expected an array of {p} ints") from None
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise DtypeError(f"{what} has dtype {array.dtype}; expected integers")
    if array.shape != (p,):
        raise ArgumentError(f"{what} has shape {array.shape}; expected ({p},), one count for each rank")
    if not isinstance(counts, jax.Array) and min(known := np.asarray(counts)) < 0:
        raise ArgumentError(f"{what}={shown(counts)}: {what}[{known.argmin()}] is negative; expected 0 or more")
    return lax.convert_element_type(array, jnp.int32)


def rows_taken(x: jax.Array, starts: jax.Array, counts: jax.Array, length: int) -> jax.Array:
    """x [n, …] → [p, length, …]: counts[j] rows from starts[j] on, zeros behind them."""
    row, counts = _rows(counts, length)
    index = lax.select(
        row < counts, lax.broadcast_in_dim(starts, row.shape, (0,)) + row, lax.full_like(row, x.shape[0])
    )
    return _filled(x, index)


def rows_kept(blocks: jax.Array, counts: jax.Array) -> jax.Array:
    """blocks [p, length, …] with zeros behind the first counts[j] rows of block j."""
    row, counts = _rows(counts, blocks.shape[1])
    spec = spec_of(blocks)
    sharding = PartitionSpec(*spec) if any(spec) else None
    kept = lax.broadcast_in_dim(row < counts, blocks.shape, (0, 1), out_sharding=sharding)
    return lax.select(kept, blocks, lax.full_like(blocks, 0))


def rows_joined(blocks: jax.Array, counts: jax.Array, length: int) -> jax.Array:
    """blocks [p, m, …] → [length, …]: the first counts[i] rows of every block i without gaps, zeros behind them."""
    (p, m), ends = blocks.shape[:2], jnp.cumsum(counts, dtype=counts.dtype)
    row = lax.iota(counts.dtype, length)
    # The number of blocks that end before a row; jnp.searchsorted fails in a checked shard_map (jax 0.10.2).
    block = jnp.sum(row[:, None] >= ends[None, :], 1, dtype=counts.dtype)
    before = (ends - counts).at[block].get(mode="clip")
    index = lax.select(block < p, block * m + row - before, lax.full_like(row, p * m))
    flat = reshaped(blocks, (p * m, *blocks.shape[2:]), spec_of(blocks)[1:])
    return _filled(flat, index)


def _filled(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index], zeros where index is the number of rows of x."""
    if not x.shape[0]:  # JAX takes nothing from an empty array, not even what is to be filled
        x = lax.pad(x, lax.full_like(x, 0, shape=()), [(0, 1, 0), *[(0, 0, 0)] * (x.ndim - 1)])
    return x.at[index].get(mode="fill", fill_value=0)


def _rows(counts: jax.Array, length: int) -> tuple[jax.Array, jax.Array]:
    """(the number of each row in its block, the count of its block), both int32 [p, length]."""
    row = lax.broadcasted_iota(counts.dtype, (counts.size, length), 1)
    return row, lax.broadcast_in_dim(counts, row.shape, (0,))
