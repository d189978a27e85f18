"""Programs of distributed training, written once for a module lax: hccljax.lax runs them as jax.lax does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax

AXIS, RANKS = "i", 4


def both_modules(on_ranks, mode, program, *rows):
    return on_ranks(lambda *args: (program(hccljax.lax, *args), program(jax.lax, *args)), mode, *rows)


@pytest.fixture
def agree(on_ranks, mode, close):
    """agree(program, *rows): the program gives the same with both modules; returns what it gives."""

    def check(program, *rows):
        ours, theirs = both_modules(on_ranks, mode, program, *rows)
        close(ours, theirs)
        return ours

    return check


def replicated(tree):
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (RANKS, *leaf.shape)).copy(), tree)


def test_data_parallel_training_of_an_mlp(agree, normal):
    params = {"w1": normal(5, 8), "b1": normal(8), "w2": normal(8, 3)}

    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["w1"] + params["b1"])
        return jnp.mean((hidden @ params["w2"] - y) ** 2)

    def program(lax, params, x, y):
        def step(params, _):
            value, grads = jax.value_and_grad(loss)(params, x, y)
            grads = lax.pmean(grads, AXIS)
            return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), lax.pmean(value, AXIS)

        return lax.scan(step, params, length=3)

    x, y = normal(RANKS, 6, 5), normal(RANKS, 6, 3)
    trained, losses = agree(program, replicated(params), x, y)
    for leaf in jax.tree.leaves(trained):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[0], leaf.shape))

    whole = params
    for expected in losses[0]:
        value, grads = jax.value_and_grad(loss)(whole, x.reshape(-1, 5), y.reshape(-1, 3))
        np.testing.assert_allclose(expected, value, rtol=1e-5)
        whole = jax.tree.map(lambda w, g: w - 0.1 * g, whole, grads)


def normalized(lax, x, scale, shift):
    mean = lax.pmean(x.mean(0), AXIS)
    variance = lax.pmean(((x - mean) ** 2).mean(0), AXIS)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def test_batch_norm_with_statistics_of_all_ranks(agree, normal):
    def program(lax, x, scale, shift, target):
        def loss(x, scale, shift):
            return jnp.mean((normalized(lax, x, scale, shift) - target) ** 2)

        return normalized(lax, x, scale, shift), jax.grad(loss, (0, 1, 2))(x, scale, shift)

    x = normal(RANKS, 6, 3)
    out, _ = agree(program, x, *replicated((normal(3), normal(3))), normal(RANKS, 6, 3))
    assert out.shape == x.shape


def test_batch_norm_in_the_layers_of_a_scan(agree, normal):
    def program(lax, x, layers):
        def forward(layers):
            def layer(h, weights):
                h = normalized(lax, h @ weights["w"], weights["scale"], 0.0)
                return jnp.maximum(h, 0), h.mean()

            return lax.scan(layer, x, layers)

        out, means = forward(layers)
        return out, means, jax.grad(lambda layers: jnp.sum(forward(layers)[0] ** 2))(layers)

    layers = {"w": normal(3, 4, 4), "scale": normal(3, 4)}
    agree(program, normal(RANKS, 5, 4), replicated(layers))


def test_a_sharded_optimizer_scatters_gradients_and_gathers_parameters(agree, normal):
    def program(lax, w, momentum, x, y):
        """w [8, 2] is replicated; momentum [2, 2] is this rank's share."""

        def step(carry, _):
            w, momentum = carry
            grads = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
            mine = lax.psum_scatter(grads, AXIS, scatter_dimension=0, tiled=True) / lax.psum(1, AXIS)
            momentum = 0.9 * momentum + mine
            own = lax.dynamic_slice_in_dim(w, lax.axis_index(AXIS) * 2, 2)
            w = lax.all_gather(own - 0.1 * momentum, AXIS, tiled=True)
            return (w, momentum), jnp.sum(mine**2)

        return lax.scan(step, (w, momentum), length=3)

    w = replicated(normal(8, 2))
    agree(program, w, np.zeros((RANKS, 2, 2), np.float32), normal(RANKS, 5, 8), normal(RANKS, 5, 2))


def test_gradients_clipped_by_the_norm_of_all_shards(agree, normal):
    def program(lax, shards, x):
        def loss(shards):
            hidden = jnp.tanh(x * shards["a"])
            return lax.psum(jnp.sum(hidden * shards["b"]), AXIS) ** 2

        grads = jax.grad(loss)(shards)
        norm = jnp.sqrt(lax.psum(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)), AXIS))
        return norm, jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)

    norm, clipped = agree(program, {"a": normal(RANKS, 6), "b": normal(RANKS, 6)}, normal(RANKS, 6))
    total = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(clipped)))
    np.testing.assert_allclose(total, min(1.0, norm[0]), rtol=1e-5)


def test_one_rank_initializes_and_all_start_alike(on_ranks, mode, normal):
    """pbroadcast has no twin on CPU."""

    def program(x):
        params = {"w": x * (1 + hccljax.lax.axis_index(AXIS)), "b": x[0]}
        start = hccljax.lax.pbroadcast(params, AXIS, 3)
        return hccljax.lax.pmean(start, AXIS)

    x = normal(RANKS, 4)
    found = on_ranks(program, mode, x)
    np.testing.assert_allclose(found["w"], np.stack([4 * x[3]] * RANKS), rtol=1e-6)
    np.testing.assert_allclose(found["b"], [x[3, 0]] * RANKS, rtol=1e-6)
