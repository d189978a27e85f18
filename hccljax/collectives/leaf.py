"""What every collective does to its operand before a kernel sees it: pytrees, scalars, PRNG keys, axes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hccljax.collectives.sharded import reshaped, spec_of
from hccljax.errors import ArgumentError, DtypeError, UnsupportedError, shown
from hccljax.group import Group


def map_leaves(function: Callable[[jax.Array], jax.Array], x: Any) -> Any:
    """function on every leaf of a pytree, each as an array."""
    return jax.tree.map(lambda leaf: function(as_array(leaf)), x)


def as_array(leaf: Any) -> jax.Array:
    """A leaf as an array: Python scalars and NumPy arrays too, with JAX's own dtype rules."""
    if isinstance(leaf, jax.Array):
        return leaf
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise DtypeError(
            f"leaf {shown(leaf)} of type {type(leaf).__name__}: expected an array or a number ({error})"
        ) from None


def moving(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """function for operators that only move data: PRNG keys travel as their key data."""

    def moved(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return function(x)
        return jax.random.wrap_key_data(function(jax.random.key_data(x)), impl=jax.random.key_impl(x))

    return moved


def message_bytes(x: jax.Array) -> int:
    """Bytes of x on one rank."""
    try:
        return int(x.size) * x.dtype.itemsize
    except jax.core.InconclusiveDimensionOperation:
        raise UnsupportedError(
            f"an array of the symbolic shape {x.shape}: algorithms cut arrays into blocks and choose by their size; "
            f"expected a shape of ints: use jax.lax's own collective where shapes are symbolic"
        ) from None


def canonical_axis(axis: int, ndim: int, name: str) -> int:
    """axis as a number in range(ndim); negative ones count from the end."""
    try:
        number = operator.index(axis)
    except TypeError:
        raise ArgumentError(f"{name}={shown(axis)}: expected an int") from None
    if not -ndim <= number < ndim:
        fitting = f"expected {-ndim} to {ndim - 1}" if ndim else "expected an array of one dimension or more"
        raise ArgumentError(f"{name}={shown(number)} is out of range for an array of {ndim} dimensions; {fitting}")
    return number % ndim


def checked_root(root: int, group: Group) -> int:
    """root as a rank of the group."""
    try:
        number = operator.index(root)
    except TypeError:
        raise ArgumentError(f"root={shown(root)}: expected a static int, 0 to {group.smallest - 1}") from None
    if not 0 <= number < group.smallest:
        where = "this communicator" if len(group.classes) == 1 else "every communicator of this group"
        raise ArgumentError(f"root={shown(number)} is not a rank of {where}; expected 0 to {group.smallest - 1}")
    return number


def to_blocks(x: jax.Array, axis: int, p: int, tiled: bool, what: str) -> jax.Array:
    """x with dimension axis cut into p blocks → [p, …]; untiled, that dimension has size p and disappears."""
    size = x.shape[axis]
    if tiled and size % p:
        raise ArgumentError(
            f"{what}: dimension {axis} has size {size}, which {p} ranks do not divide; expected a multiple of {p} "
            f"(pad the array)"
        )
    if not tiled and size != p:
        raise ArgumentError(
            f"{what}: dimension {axis} has size {size}; expected {p}, one entry for each rank "
            f"(pass tiled=True to cut it into {p} pieces)"
        )
    if tiled:
        spec = spec_of(x)
        shape = (*x.shape[:axis], p, size // p, *x.shape[axis + 1 :])
        x = reshaped(x, shape, (*spec[:axis], None, *spec[axis:]))
    return jnp.moveaxis(x, axis, 0)


def from_blocks(blocks: jax.Array, axis: int, tiled: bool) -> jax.Array:
    """[p, …] → the blocks stacked as dimension axis, or (tiled) joined along it."""
    out = jnp.moveaxis(blocks, 0, axis)
    if not tiled:
        return out
    spec = spec_of(out)
    shape = (*out.shape[:axis], out.shape[axis] * out.shape[axis + 1], *out.shape[axis + 2 :])
    return reshaped(out, shape, (*spec[:axis], *spec[axis + 1 :]))
