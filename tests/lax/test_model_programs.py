"""Programs that split a model over the ranks, written once for a module lax: hccljax.lax runs them as jax.lax does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax

AXIS, RANKS = "i", 4
RING = [(r, (r + 1) % RANKS) for r in range(RANKS)]


@pytest.fixture
def agree(on_ranks, mode, close):
    """agree(program, *rows): the program gives the same with both modules; returns what it gives."""

    def check(program, *rows, twin_mode=None):
        ours = on_ranks(lambda *args: program(hccljax.lax, *args), mode, *rows)
        theirs = on_ranks(lambda *args: program(jax.lax, *args), twin_mode or mode, *rows)
        close(ours, theirs)
        return ours

    return check


def with_gradients(function):
    """program: (function's result, gradients of a loss of it with respect to all arguments)."""

    def program(lax, *args):
        weight = 1 + lax.axis_index(AXIS)
        loss = lambda *args: jnp.sum(jnp.sin(function(lax, *args)) * weight)  # noqa: E731
        return function(lax, *args), jax.grad(loss, range(len(args)))(*args)

    return program


def test_two_matrices_split_by_columns_and_by_rows(agree, normal):
    """x [2, 8] in shards of 2 columns is gathered; w1 is split by columns, w2 by rows, and psum adds the parts."""

    def mlp(lax, x, w1, w2):
        whole = lax.all_gather(x, AXIS, axis=1, tiled=True)
        return lax.psum(jnp.tanh(whole @ w1) @ w2, AXIS)

    x, w1, w2 = normal(RANKS, 2, 2), normal(RANKS, 8, 3), normal(RANKS, 3, 5)
    out, _ = agree(with_gradients(mlp), x, w1, w2)
    whole = np.tanh(np.concatenate(list(x), 1) @ np.concatenate(list(w1), 1)) @ np.concatenate(list(w2), 0)
    np.testing.assert_allclose(out, np.stack([whole] * RANKS), rtol=1e-4, atol=1e-5)


def test_a_sequence_split_over_ranks_and_scattered_sums(agree, normal):
    """Sequence parallelism: gather the sequence before the matrices, scatter the sums behind them."""

    def block(lax, x, w1, w2):
        whole = lax.all_gather(x, AXIS, tiled=True)
        return lax.psum_scatter(jnp.tanh(whole @ w1) @ w2, AXIS, scatter_dimension=0, tiled=True)

    x, w1, w2 = normal(RANKS, 2, 3), normal(RANKS, 3, 2), normal(RANKS, 2, 3)
    out, _ = agree(with_gradients(block), x, w1, w2)
    sequence = np.concatenate(list(x))
    whole = np.tanh(sequence @ np.concatenate(list(w1), 1)) @ np.concatenate(list(w2), 0)
    np.testing.assert_allclose(np.concatenate(list(out)), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loop", ["fori_loop", "scan"])
def test_attention_with_keys_and_values_going_round_a_ring(agree, normal, loop):
    def attention(lax, q, k, v):
        def step(carry):
            k, v, top, total, out = carry
            scores = q @ k.T
            new_top = jnp.maximum(top, scores.max(1))
            scale, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top[:, None])
            total, out = total * scale + weights.sum(1), out * scale[:, None] + weights @ v
            return lax.ppermute(k, AXIS, RING), lax.ppermute(v, AXIS, RING), new_top, total, out

        start = (k, v, q[:, 0] * 0 - 1e9, q[:, 0] * 0, q @ v[0][:, None] * 0 + 0 * v)
        if loop == "scan":
            carry, _ = lax.scan(lambda carry, _: (step(carry), None), start, length=RANKS)
        else:
            carry = lax.fori_loop(0, RANKS, lambda _, carry: step(carry), start)
        return carry[4] / carry[3][:, None]

    q, k, v = (normal(RANKS, 3, 3) for _ in range(3))
    out, _ = agree(with_gradients(attention), q, k, v)
    queries, keys, values = (np.concatenate(list(x)) for x in (q, k, v))
    weights = np.exp(queries @ keys.T)
    whole = weights @ values / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(np.concatenate(list(out)), whole, rtol=1e-4, atol=1e-5)


def test_tokens_sent_to_experts_and_back(agree, normal):
    """tokens [4, 2, 3]: two for the expert on each rank."""

    def experts(lax, tokens, w):
        mine = lax.all_to_all(tokens, AXIS, 0, 0, tiled=True)
        return lax.all_to_all(jnp.tanh(mine @ w), AXIS, 0, 0, tiled=True)

    tokens, w = normal(RANKS, RANKS, 2, 3), normal(RANKS, 3, 3)
    out, _ = agree(with_gradients(experts), tokens, w)
    np.testing.assert_allclose(out, np.tanh(np.einsum("retd,edh->reth", tokens, w)), rtol=1e-4, atol=1e-5)


def test_heads_and_sequence_change_places(agree, normal):
    """[2, 4, 3]: two positions, four heads → eight positions, one head, and back."""

    def attention(lax, x):
        heads = lax.all_to_all(x, AXIS, 1, 0, tiled=True)
        return lax.all_to_all(jnp.cumsum(heads, 0), AXIS, 0, 1, tiled=True)

    x = normal(RANKS, 2, 4, 3)
    out, _ = agree(with_gradients(attention), x)
    np.testing.assert_allclose(np.concatenate(list(out)), np.cumsum(np.concatenate(list(x)), 0), rtol=1e-4, atol=1e-5)


def test_the_softmax_of_logits_split_over_ranks(agree, normal):
    def cross_entropy(lax, logits, label):
        top = lax.pmax(lax.stop_gradient(logits.max(-1)), AXIS)
        log_total = jnp.log(lax.psum(jnp.exp(logits - top[:, None]).sum(-1), AXIS)) + top
        return log_total - lax.psum((logits * label).sum(-1), AXIS)

    logits, label = 5 * normal(RANKS, 3, 2), np.zeros((RANKS, 3, 2), np.float32)
    label[[1, 3, 0], [0, 1, 2], [1, 0, 0]] = 1
    out, _ = agree(with_gradients(cross_entropy), logits, label)
    whole, one_hot = np.concatenate(list(logits), 1), np.concatenate(list(label), 1)
    expected = np.log(np.exp(whole).sum(1)) - (whole * one_hot).sum(1)
    np.testing.assert_allclose(out, np.stack([expected] * RANKS), rtol=1e-4, atol=1e-5)


def test_a_stencil_with_halos_from_both_neighbours(agree, mode, normal):
    """The ends have one neighbour: a partial permutation, which jax.lax (0.10.2) does not take under vmap."""

    def stencil(lax, x, taps):
        def step(x, _):
            left = lax.ppermute(x[-1:], AXIS, [(r, r + 1) for r in range(RANKS - 1)])
            right = lax.ppermute(x[:1], AXIS, [(r + 1, r) for r in range(RANKS - 1)])
            padded = jnp.concatenate([left, x, right])
            return taps[0] * padded[:-2] + taps[1] * padded[1:-1] + taps[2] * padded[2:], None

        return lax.scan(step, x, length=2)[0]

    x, taps = normal(RANKS, 3), np.broadcast_to(normal(3), (RANKS, 3)).copy()
    program = with_gradients(stencil)
    out, _ = agree(program, x, taps, twin_mode="unchecked" if mode == "vmap" else None)
    whole = np.concatenate(list(x))
    for _ in range(2):
        whole = np.convolve(whole, taps[0][::-1], "same")
    np.testing.assert_allclose(np.concatenate(list(out)), whole, rtol=1e-4, atol=1e-5)


def test_a_pipeline_of_stages(agree, mode, normal):
    """Microbatches go from stage to stage; stage 0 feeds them in, the last one hands them out."""
    microbatches, ticks = 3, 3 + RANKS - 1

    def pipeline(lax, x, w):
        stage = lax.axis_index(AXIS)

        def tick(held, t):
            fed = x[jnp.minimum(t, microbatches - 1)]
            out = jnp.tanh(jnp.where(stage == 0, fed, held) @ w)
            return lax.ppermute(out, AXIS, RING), out

        _, outs = lax.scan(tick, x[0] * 0, jnp.arange(ticks))
        return lax.psum(jnp.where(stage == RANKS - 1, outs[-microbatches:], 0), AXIS)

    x, w = np.broadcast_to(normal(microbatches, 3), (RANKS, microbatches, 3)).copy(), normal(RANKS, 3, 3)
    out, _ = agree(with_gradients(pipeline), x, w)
    whole = x[0]
    for stage in range(RANKS):
        whole = np.tanh(whole @ w[stage])
    np.testing.assert_allclose(out, np.stack([whole] * RANKS), rtol=1e-4, atol=1e-5)


def test_jacobians_and_the_hessian_through_psum(agree, normal):
    def program(lax, x):
        function = lambda x: jnp.sin(lax.psum(x**3, AXIS)) * (1 + lax.axis_index(AXIS))  # noqa: E731
        total = lambda x: jnp.sum(function(x) ** 2)  # noqa: E731
        return jax.jacfwd(function)(x), jax.jacrev(function)(x), jax.hessian(total)(x)

    agree(program, normal(RANKS, 2) / 2)


@pytest.mark.parametrize("jacobian", ["jacfwd", "jacrev"])
def test_jacobians_of_a_vmap_with_a_psum_in_it(close, normal, jacobian):
    def found(lax):
        rows = jax.vmap(lambda x: jnp.sin(lax.psum(x**3, AXIS)) * (1 + lax.axis_index(AXIS)), axis_name=AXIS)
        return jax.jit(getattr(jax, jacobian)(rows))(x)

    x = normal(RANKS, 2)
    close(found(hccljax.lax), found(jax.lax))
