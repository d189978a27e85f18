"""A training step of LLaMA-13B for one rank, with its collectives, to be traced and never run.

Sources: Touvron et al., "LLaMA: Open and efficient foundation language models" (2023) for the shapes; Shoeybi et al.,
"Megatron-LM" (2019) for the tensor parallelism: in each half of a layer one matrix is cut by columns and the next by
rows, one all_reduce of the activations behind it on the way forward and one before it on the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LAYERS, WIDTH, HEADS, INNER, VOCABULARY, LENGTH = 40, 5120, 40, 13824, 32000, 2048
DTYPE = jnp.bfloat16


@dataclass(frozen=True)
class Parallel:
    """How the ranks share the work.

    Attributes:
      data, model: ranks that hold different data, and different parts of the model; ranks of one server hold one copy.
      grouped: True if each collective has a communicator of its own ranks; False if all ranks take part in every one,
        each group's part in a place of its own in a longer message, zeros elsewhere.
      batch: sequences of one copy of the model in each step.
    """

    data: int = 4
    model: int = 8
    grouped: bool = True
    batch: int = 8

    @property
    def axis_sizes(self) -> dict[str, int]:
        return {"data": self.data, "model": self.model}

    def all_reduce(self, x: jax.Array, axis: str) -> jax.Array:
        """The sum over one axis, over a communicator of its own or over everybody's."""
        if self.grouped:
            return lax.psum(x, axis)
        other = "model" if axis == "data" else "data"
        place, places = lax.axis_index(other), self.axis_sizes[other]
        mine = lax.dynamic_update_index_in_dim(jnp.zeros((places, *x.shape), x.dtype), x, place, 0)
        total = lax.psum(mine, ("data", "model"))
        return lax.dynamic_index_in_dim(total, place, 0, keepdims=False)


def _conjugate(forward: Callable[[Any], Any], backward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A linear function and the function for its cotangents."""

    @jax.custom_vjp
    def function(x: Any) -> Any:
        return forward(x)

    function.defvjp(lambda x: (forward(x), None), lambda _, cotangent: (backward(cotangent),))
    return function


def _identity(x: Any) -> Any:
    return x


def parameters(parallel: Parallel) -> dict[str, Any]:
    """Shapes of one rank's parameters: its part of each matrix, all layers stacked."""

    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, DTYPE)

    part = parallel.model
    layers = {
        "attention_norm": of(LAYERS, WIDTH),
        "qkv": of(LAYERS, WIDTH, 3 * WIDTH // part),
        "out": of(LAYERS, WIDTH // part, WIDTH),
        "mlp_norm": of(LAYERS, WIDTH),
        "gate_up": of(LAYERS, WIDTH, 2 * INNER // part),
        "down": of(LAYERS, INNER // part, WIDTH),
    }
    return {
        "embedding": of(VOCABULARY // part, WIDTH),
        "layers": layers,
        "norm": of(WIDTH),
        "head": of(WIDTH, VOCABULARY // part),
    }


def batch(parallel: Parallel) -> jax.ShapeDtypeStruct:
    """Tokens of one copy of the model, and the one that follows."""
    return jax.ShapeDtypeStruct((parallel.batch, LENGTH + 1), jnp.int32)


def train_step(parallel: Parallel, weights: dict[str, Any], tokens: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """(weights after one step of plain gradient descent, loss); gradients of a layer are reduced as they come."""
    loss, gradients = jax.value_and_grad(partial(_loss, parallel))(weights, tokens)
    return jax.tree.map(lambda w, g: w - jnp.asarray(1e-4, w.dtype) * g, weights, gradients), loss


def _loss(parallel: Parallel, weights: dict[str, Any], tokens: jax.Array) -> jax.Array:
    synchronised = _conjugate(_identity, partial(jax.tree.map, partial(parallel.all_reduce, axis="data")))
    reduced = _conjugate(partial(parallel.all_reduce, axis="model"), _identity)
    outer = {name: synchronised(weights[name]) for name in ("embedding", "norm", "head")}
    x = reduced(_embedded(parallel, outer["embedding"], tokens[:, :-1]))

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def layer(x: jax.Array, layer_weights: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        return _layer(parallel, synchronised(layer_weights), x), None

    x, _ = lax.scan(layer, x, weights["layers"])
    spread = _conjugate(_identity, partial(parallel.all_reduce, axis="model"))
    logits = spread(_normalised(x, outer["norm"])) @ outer["head"]
    # The vocabulary is cut: the sum of the exponentials is small, its all_reduce too.
    logits = logits.astype(jnp.float32)
    normaliser = jnp.log(reduced(jnp.exp(logits).sum(-1)))
    return (normaliser - _picked(parallel, logits, tokens[:, 1:], reduced)).mean()


def _embedded(parallel: Parallel, table: jax.Array, tokens: jax.Array) -> jax.Array:
    rows, first = table.shape[0], lax.axis_index("model") * table.shape[0]
    mine = (tokens >= first) & (tokens < first + rows)
    return jnp.where(mine[..., None], table[jnp.clip(tokens - first, 0, rows - 1)], 0)


def _picked(parallel: Parallel, logits: jax.Array, targets: jax.Array, reduced: Callable[[Any], Any]) -> jax.Array:
    columns, first = logits.shape[-1], lax.axis_index("model") * logits.shape[-1]
    mine = (targets >= first) & (targets < first + columns)
    picked = jnp.take_along_axis(logits, jnp.clip(targets - first, 0, columns - 1)[..., None], -1)[..., 0]
    return reduced(jnp.where(mine, picked, 0))


def _layer(parallel: Parallel, weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    spread = _conjugate(_identity, partial(parallel.all_reduce, axis="model"))
    reduced = _conjugate(partial(parallel.all_reduce, axis="model"), _identity)
    x = x + reduced(_attention(parallel, weights, spread(_normalised(x, weights["attention_norm"]))))
    gate, up = jnp.split(spread(_normalised(x, weights["mlp_norm"])) @ weights["gate_up"], 2, -1)
    return x + reduced((jax.nn.silu(gate) * up) @ weights["down"])


def _attention(parallel: Parallel, weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    heads, size = HEADS // parallel.model, WIDTH // HEADS
    q, k, v = (part.reshape(*x.shape[:2], heads, size) for part in jnp.split(x @ weights["qkv"], 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / size**0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights_of = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1).astype(x.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights_of, v).reshape(*x.shape[:2], -1) @ weights["out"]


def _normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    return (x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-5).astype(x.dtype)) * scale
