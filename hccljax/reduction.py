"""Reduction operators: what they are called, how two values combine, and which dtypes they have a meaning for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any

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
      name: ``"sum"``, ``"prod"``, ``"max"``, ``"min"``, or ``"mean"``: a sum whose owner divides before it rounds, for
        algorithms that accumulate (any other mean is a sum, divided at the end).
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
        if out.dtype in (jnp.bfloat16, jnp.float16) and self.name not in ("max", "min"):
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
MEAN = Reduction("mean", lax.add)
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


def accumulated_in(dtype: Any, x: jax.Array, op: str) -> str | None:
    """accumulate_dtype by name, once it is known to hold every value of x's dtype; None if op adds nothing up."""
    if dtype is None:
        return None
    wide = as_dtype(dtype)
    if not _holds(wide, x.dtype):
        raise DtypeError(
            f"accumulate_dtype={wide} does not hold every {x.dtype}; expected {x.dtype} or a wider dtype of its kind"
        )
    return None if op in ("max", "min") else wide.name


def _holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """True if every value of narrow is one of wide, which is of the same kind: integers, floats or complex numbers."""
    if jnp.issubdtype(wide, jnp.integer) and jnp.issubdtype(narrow, jnp.integer):
        outer, inner = jnp.iinfo(wide), jnp.iinfo(narrow)
        return bool(outer.min <= inner.min and inner.max <= outer.max)
    if not all(jnp.issubdtype(dtype, jnp.inexact) for dtype in (wide, narrow)):
        return False
    if jnp.issubdtype(wide, jnp.complexfloating) != jnp.issubdtype(narrow, jnp.complexfloating):
        return False
    (many, high, low), (few, top, bottom) = (
        (kind.nmant, kind.maxexp, kind.minexp) for kind in map(jnp.finfo, (wide, narrow))
    )
    return bool(many >= few and high >= top and low <= bottom)


def as_dtype(dtype: Any) -> np.dtype:
    """accumulate_dtype as a dtype that JAX has at this moment."""
    error = DtypeError(f"accumulate_dtype={shown(dtype)}: expected a dtype of numbers, such as jnp.float32")
    try:
        wide = jnp.dtype(dtype)
        usual = jax.dtypes.canonicalize_dtype(wide)
    except (TypeError, ValueError):
        raise error from None
    if not jnp.issubdtype(wide, jnp.number) or wide == np.longdouble or wide == np.clongdouble:
        raise error
    if wide != usual:
        raise DtypeError(f"accumulate_dtype={wide}: expected a dtype of up to 32 bits; use jax_enable_x64 for {wide}")
    return wide
