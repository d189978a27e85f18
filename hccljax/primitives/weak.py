"""Weak types, which JAX gives to Python numbers: a cast that gives one back, for which there is no public one."""

from __future__ import annotations

from typing import Any

import jax

from hccljax.primitives import compat


def weakly(x: jax.Array) -> jax.Array:
    """x with a weak type, its dtype as it is: it will not widen what it meets. Values are not touched."""
    return x if jax.typeof(x).weak_type else weak_p.bind(x)


def _batch(name: Any, size: int, args: Any, dims: Any) -> Any:
    return weak_p.bind(args[0]), dims[0]


weak_p = compat.define(
    "hccl_weak", abstract_eval=lambda aval: aval.update(weak_type=True), implementation=lambda x: x, batch=_batch
)
compat.set_transpose(weak_p, lambda cotangent, x: [cotangent])
