"""A number that changes when any bit of an array does, or two elements change places."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_SEEDS = (0x9E3779B9, 0x85EBCA6B)
"""Two sums that are independent of each other: 64 bits, as JAX has no uint64 unless it is enabled."""


def checksum(x: jax.Array) -> jax.Array:
    """x of any shape and dtype → uint32 [2], from its bits: -0.0 is not 0.0, and a NaN equals one of the same bits.

    Each element is mixed with its position before it is added, so that elements that have changed places show. Two
    arrays that differ have the same checksum once in 2^64, if nobody has made them to.

    Source: the finaliser of MurmurHash3 (Appleby 2011), over bits and positions.
    """
    words = _words(x)
    place = lax.iota(np.uint32, words.shape[0])
    sums = [lax.reduce(_mixed(words ^ _mixed(place + np.uint32(seed))), np.uint32(0), lax.add, (0,)) for seed in _SEEDS]
    return jnp.stack(sums)


def _words(x: jax.Array) -> jax.Array:
    """The bits of x as uint32 [words]."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([lax.real(x), lax.imag(x)])
    x = lax.reshape(x, (x.size,))
    if x.dtype == jnp.bool_:
        return lax.convert_element_type(x, np.uint32)
    bits = jnp.iinfo(x.dtype).bits if jnp.issubdtype(x.dtype, jnp.integer) else jnp.finfo(x.dtype).bits
    if bits >= 32:
        return lax.bitcast_convert_type(x, np.uint32).reshape(-1)
    return lax.convert_element_type(lax.bitcast_convert_type(x, f"uint{bits}"), np.uint32)


def _mixed(h: jax.Array) -> jax.Array:
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))
