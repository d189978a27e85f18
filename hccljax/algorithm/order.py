"""The order in which an algorithm combines contributions: its kernel runs with a reduction that takes notes."""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from hccljax.algorithm.base import Algorithm, run
from hccljax.errors import UnsupportedError
from hccljax.group import Group
from hccljax.reduction import Reduction

Order: TypeAlias = "int | tuple[Order, Order]"
"""A rank, whose contribution stands alone, or (left operand, right operand) of one combination."""

_AXIS = "rank"


class _Notes:
    """Numbers for contributions and combinations: 0 to p - 1 are the ranks, the others stand for pairs of numbers."""

    def __init__(self, p: int):
        self.orders: list[Order] = list(range(p))
        self.known: dict[tuple[int, int], int] = {}

    def combine(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The number of every combination left ∘ right, elementwise."""
        both = np.asarray(left, np.int64) << 32 | np.asarray(right, np.int64)
        pairs, places = np.unique(both, return_inverse=True)
        numbers = [self._number(int(pair) >> 32, int(pair) & 0xFFFFFFFF) for pair in pairs]
        return np.array(numbers, np.int32)[places].reshape(both.shape)

    def _number(self, left: int, right: int) -> int:
        if (left, right) not in self.known:
            self.known[left, right] = len(self.orders)
            self.orders.append((self.orders[left], self.orders[right]))
        return self.known[left, right]


def reduction_order(algorithm: Algorithm, p: int, nbytes: int | None = None) -> tuple[Order, ...]:
    """The order in which an all_reduce (else a reduce_scatter or reduce) among p ranks combines contributions.

    Args:
      algorithm: any but ``native``, whose order only XLA knows.
      p: ranks in the group.
      nbytes: bytes of one rank's message, for algorithms that treat long ones otherwise; None is 4p.

    Returns:
      For each of p equal parts of the message the order of its first element: ``((0, 1), 2)`` is (x0 + x1) + x2.

    Raises:
      UnsupportedError: the algorithm is ``native``, or reduces nothing.
    """
    able = [name for name in ("all_reduce", "reduce_scatter", "reduce") if algorithm.supports(name)]
    if algorithm.name == "native" or not able:
        raise UnsupportedError(
            f"algorithm {algorithm.name!r} has no reduction_order, because "
            f"{'only XLA knows it' if able else 'it reduces nothing'}; expected one that reduces by kernels of its own"
        )
    notes, operator = _Notes(p), able[0]
    part = max(1, (nbytes or 4 * p) // (4 * p))

    def combine(left: jax.Array, right: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(left.shape, jnp.int32)
        return jax.pure_callback(notes.combine, shape, left, right, vmap_method="broadcast_all")

    def one_rank(x: jax.Array) -> jax.Array:
        return run(algorithm, operator, x, Group(_AXIS), Reduction("observed", combine))

    contributions = np.repeat(np.arange(p, dtype=np.int32), p * part).reshape(p, p, part)
    message = jnp.asarray(contributions if operator == "reduce_scatter" else contributions.reshape(p, -1))
    out = np.asarray(jax.vmap(one_rank, axis_name=_AXIS)(message))
    numbers = out.reshape(p, -1)[:, 0] if operator == "reduce_scatter" else out[0].reshape(p, part)[:, 0]
    return tuple(notes.orders[number] for number in numbers)
