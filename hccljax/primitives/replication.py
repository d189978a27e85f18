"""Replication types: the cast that promises "the same on every rank", and the one that takes a promise back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from hccljax.primitives import compat


def invariant(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """x typed as replicated over the checked ones of axes; the caller guarantees that it is.

    JAX has no public cast from varying to invariant. Values are not touched.
    """
    axes = tuple(axis for axis in axes if axis in compat.varying(x))
    return invariant_p.bind(x, axes=axes) if axes else x


def vary(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """x typed as varying over the checked ones of axes: what communication takes as its operand."""
    axes = tuple(axis for axis in compat.checked_axes(axes) if axis not in compat.varying(x))
    return lax.pcast(x, axes, to="varying") if axes else x


def axis_index(axis: str) -> jax.Array:
    """``lax.axis_index`` with the type that the axis has: int32 scalar."""
    index = lax.axis_index(axis)
    return invariant(index, tuple(compat.falsely_varying(index)))


def _abstract(aval: Any, *, axes: tuple[str, ...]) -> Any:
    return compat.without_varying(aval, axes)


def _identity(x: jax.Array, *, axes: tuple[str, ...]) -> jax.Array:
    return x


def _batch(name: Any, size: int, args: Any, dims: Any, *, axes: tuple[str, ...]) -> Any:
    return invariant_p.bind(args[0], axes=axes), dims[0]


invariant_p = compat.define("hccl_invariant", abstract_eval=_abstract, implementation=_identity, batch=_batch)
