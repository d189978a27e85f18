"""Reduction operators: what they are called, how two values combine, and which dtypes they have a meaning for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce as fold

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hccljax.errors import ArgumentError, DtypeError, shown

_UNROLLED = 64  # XLA fuses an unrolled chain into one pass; beyond this, compile time grows faster than it saves


@dataclass(frozen=True)
class Reduction:
    """One reduction operator, combining two arrays of the same shape and dtype.

    Attributes:
      name: ``"sum"``, ``"prod"``, ``"max"`` or ``"min"`` (a mean is a sum, divided once at the end).
      combine: the elementwise operation.
    """

    name: str
    combine: Callable[[jax.Array, jax.Array], jax.Array]

    def __call__(self, left: jax.Array, right: jax.Array) -> jax.Array:
        """Combines two contributions, rounding 16-bit floats after every addition.

        XLA may keep excess precision between two additions of bfloat16 or float16 that it fuses; then the result
        would depend on where the communication happens to be. One explicit rounding makes executors agree.
        """
        out = self.combine(left, right)
        if out.dtype in (jnp.bfloat16, jnp.float16) and self.name in ("sum", "prod"):
            info = jnp.finfo(out.dtype)
            return lax.reduce_precision(out, exponent_bits=info.nexp, mantissa_bits=info.nmant)
        return out

    def in_order(self, blocks: jax.Array) -> jax.Array:
        """blocks [p, …] → […]: the contributions combined in rank order, first two first."""
        if blocks.shape[0] <= _UNROLLED:
            return fold(self, [blocks[i] for i in range(blocks.shape[0])])

        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            return self(total, lax.dynamic_index_in_dim(blocks, i, 0, keepdims=False))

        return lax.fori_loop(np.int32(1), np.int32(blocks.shape[0]), add, blocks[0])


_REDUCTIONS = {
    name: Reduction(name, combine)
    for name, combine in (("sum", lax.add), ("prod", lax.mul), ("max", lax.max), ("min", lax.min))
}
OPS = ("sum", "prod", "max", "min", "mean")


def reduction(op: str) -> Reduction:
    """The Reduction that op runs ("mean" runs a sum)."""
    if not isinstance(op, str) or op not in OPS:
        raise ArgumentError(f"op={shown(op)}: expected one of {', '.join(map(repr, OPS))}")
    return _REDUCTIONS["sum" if op == "mean" else op]


def reducible(x: jax.Array, op: str) -> jax.Array:
    """x as the operator takes it: bool becomes int32 under sum, prod and mean, as in ``jax.lax.psum``.

    Raises:
      DtypeError: op has no meaning for x's dtype (max and min of complex numbers, any of PRNG keys).
    """
    reduction(op)
    if jnp.issubdtype(x.dtype, jax.dtypes.extended) or x.dtype == jax.dtypes.float0:
        raise DtypeError(f"op={op!r} has no meaning for dtype {x.dtype}; expected a number or bool")
    if op in ("max", "min") and jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise DtypeError(
            f"op={op!r} has no meaning for {x.dtype}: complex numbers have no order; reduce the real or absolute part"
        )
    if x.dtype == jnp.bool_ and op in ("sum", "prod", "mean"):
        return lax.convert_element_type(x, jnp.int32)
    return x
