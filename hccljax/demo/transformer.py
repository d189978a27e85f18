"""A small transformer that reads a digit row by row: on one device, and spread over data, stages and model ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import hccljax
from hccljax.training import column_parallel, one_f_one_b, row_parallel

Params = dict[str, Any]
ROWS, PIXELS, CLASSES = 8, 8, 10


@dataclass(frozen=True)
class Shape:
    """Sizes of the model.

    Attributes:
      width: features of a token, one row of pixels.
      heads: of attention, divided among the model ranks.
      stages: blocks, one on each stage of the pipeline.
    """

    width: int = 16
    heads: int = 4
    stages: int = 2


def initial(shape: Shape, seed: int) -> Params:
    """Parameters of the whole model; the leaves of ``"block"`` have a leading dimension, one entry for each stage."""
    draw, d = np.random.default_rng(seed), shape.width

    def normal(*size: int, fan: int) -> np.ndarray:
        return (draw.normal(size=size) / np.sqrt(fan)).astype(np.float32)

    s, h = shape.stages, shape.heads
    block = {
        "norm": np.ones((s, 2, d), np.float32),
        "qkv": normal(s, d, h, 3 * d // h, fan=d),
        "out": normal(s, h, d // h, d, fan=d),
        "up": normal(s, d, 4 * d, fan=d),
        "down": normal(s, 4 * d, d, fan=4 * d),
    }
    ends = {"embed": normal(PIXELS, d, fan=PIXELS), "position": normal(ROWS, d, fan=d)}
    return {"block": block, **ends, "head": normal(d, CLASSES, fan=d)}


SPECS: Params = {
    "block": {
        "norm": P("stage"),
        "qkv": P("stage", None, "model"),
        "out": P("stage", "model"),
        "up": P("stage", None, "model"),
        "down": P("stage", "model"),
    },
    "embed": P(),
    "position": P(),
    "head": P(),
}
"""How the parameters lie on a mesh with the axes data, stage and model."""


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x [..., d] with a mean square of one, scaled."""
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(qkv: jax.Array) -> jax.Array:
    """[batch, rows, heads, 3 × size] → [batch, rows, heads, size]."""
    q, k, v = jnp.split(qkv, 3, -1)
    weights = jax.nn.softmax(jnp.einsum("brhs,bchs->bhrc", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype))
    return jnp.einsum("bhrc,bchs->brhs", weights, v)


def embed(params: Params, images: jax.Array) -> jax.Array:
    """[batch, 64] → [batch, rows, width]."""
    return images.reshape(-1, ROWS, PIXELS) @ params["embed"] + params["position"]


def loss(params: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross entropy of the digits; scalar."""
    return -jnp.take_along_axis(scores(params, x), labels[:, None], -1).mean()


def scores(params: Params, x: jax.Array) -> jax.Array:
    """[batch, rows, width] → [batch, classes], log probabilities."""
    return jax.nn.log_softmax(x.mean(1) @ params["head"])


def on_one_device(params: Params, images: jax.Array) -> jax.Array:
    """All blocks of the model: images [batch, 64] → [batch, rows, width]."""
    x = embed(params, images)
    for stage in range(params["block"]["norm"].shape[0]):
        b = jax.tree.map(lambda leaf: leaf[stage], params["block"])  # noqa: B023
        seen = attention(jnp.einsum("brd,dhs->brhs", normed(x, b["norm"][0]), b["qkv"]))
        x = x + jnp.einsum("brhs,hsd->brd", seen, b["out"])
        x = x + jax.nn.gelu(normed(x, b["norm"][1]) @ b["up"]) @ b["down"]
    return x


def block(params: Params, x: jax.Array, algorithm: str) -> jax.Array:
    """One stage with this rank's heads and features: [batch, rows, width] → the same."""
    b = jax.tree.map(lambda leaf: leaf[0], params["block"])
    width, heads = b["qkv"].shape[:2]
    qkv = column_parallel(normed(x, b["norm"][0]), b["qkv"].reshape(width, -1), "model", algorithm=algorithm)
    seen = attention(qkv.reshape(*x.shape[:2], heads, -1))
    out = b["out"].reshape(-1, width)
    x = x + row_parallel(seen.reshape(*x.shape[:2], -1), out, "model", algorithm=algorithm)
    hidden = column_parallel(normed(x, b["norm"][1]), b["up"], "model", algorithm=algorithm)
    return x + row_parallel(jax.nn.gelu(hidden), b["down"], "model", algorithm=algorithm)


def spread_value_and_grad(
    params: Params, images: jax.Array, labels: jax.Array, *, microbatches: int, algorithm: str
) -> tuple[jax.Array, Params]:
    """(loss, gradients) of this rank's part of the parameters, on a mesh with the axes data, stage and model.

    Args:
      params: this rank's, as SPECS says.
      images: [batch, 64] of this data rank.
      labels: [batch].
      microbatches: m, which the batch is cut into.
      algorithm: of all collectives.
    """
    params = hccljax.as_varying(params, "data")  # the gradients are summed once, below, and not in every tick
    inputs, targets = (x.reshape(microbatches, -1, *x.shape[1:]) for x in (images, labels))
    value, grads = one_f_one_b(
        lambda params, x: block(params, x, algorithm), loss, params, inputs, targets, "stage", embed_fn=embed
    )
    # Every stage has the embedding and the head, and a gradient of zero where it does not use them.
    ends = {name: hccljax.all_reduce(grads[name], "stage", algorithm=algorithm) for name in grads if name != "block"}
    grads = hccljax.sync_gradients(grads | ends, "data", algorithm=algorithm)
    return hccljax.all_reduce(value, "data", "mean", algorithm=algorithm), grads
