"""The network: 64 pixels, 128 hidden units, 10 digits, in plain JAX."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SIZES = (64, 128, 10)

Params = Any
"""A list with one dict {"weights": [m, n], "bias": [n]} for each layer."""


def initial(seed: int) -> Params:
    """He's initial parameters, float32; the same seed gives the same ones."""
    draw = np.random.default_rng(seed)
    return [
        {
            "weights": (draw.standard_normal((m, n)) * (2 / m) ** 0.5).astype(np.float32),
            "bias": np.zeros(n, np.float32),
        }
        for m, n in pairwise(SIZES)
    ]


def logits(params: Params, images: jax.Array) -> jax.Array:
    """images [b, 64] → [b, 10]."""
    *hidden, last = params
    x = images
    for layer in hidden:
        x = jax.nn.relu(x @ layer["weights"] + layer["bias"])
    return x @ last["weights"] + last["bias"]


def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy of a batch: images [b, 64], labels [b]."""
    scores = jax.nn.log_softmax(logits(params, images))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


@jax.jit
def accuracy(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The share of images whose digit gets the highest score."""
    return (logits(params, images).argmax(axis=1) == labels).mean()
