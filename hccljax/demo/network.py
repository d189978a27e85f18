"""The network: 64 pixels, 128 hidden units, 10 digits, in plain JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

SIZES = (64, 128, 10)

Params = Any
"""One dict {"weights": [m, n], "bias": [n]} for each layer."""


def initial(seed: int) -> Params:
    """He's initial parameters; the same seed gives the same ones."""
    keys = jax.random.split(jax.random.key(seed), len(SIZES) - 1)
    return [
        {"weights": jax.random.normal(key, (m, n)) * (2 / m) ** 0.5, "bias": jnp.zeros(n)}
        for key, m, n in zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    ]


def logits(params: Params, images: jax.Array) -> jax.Array:
    """images [b, 64] → [b, 10]."""
    *hidden, last = params
    x = images
    for layer in hidden:
        x = jax.nn.relu(x @ layer["weights"] + layer["bias"])
    return x @ last["weights"] + last["bias"]


def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy of a batch."""
    scores = jax.nn.log_softmax(logits(params, images))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


@jax.jit
def accuracy(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The share of images whose digit gets the highest score."""
    return (logits(params, images).argmax(axis=1) == labels).mean()
