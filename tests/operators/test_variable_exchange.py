"""all_to_all_v, whose counts are known only at run time: against NumPy, and as the exchange of a layer of experts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccljax
from hccljax.schedule import count


def expected(blocks, counts):
    """blocks [p, p, capacity, …], counts [p, p] → (blocks, recv_counts, dropped) of all ranks."""
    p, capacity = blocks.shape[0], blocks.shape[2]
    sent = np.clip(counts, 0, capacity)
    out = np.zeros_like(blocks)
    for i in range(p):
        for j in range(p):
            out[j, i, : sent[i, j]] = blocks[i, j, : sent[i, j]]
    return out, sent.T.astype(np.int32), (np.maximum(counts, 0) - sent).astype(np.int32)


def expected_rows(x, counts, offsets, capacity):
    """The same for rows x [p, n, …] that start at offsets [p, p]."""
    p, n = x.shape[:2]
    sent = np.clip(np.minimum(counts, np.where(offsets < 0, 0, n - offsets)), 0, capacity)
    blocks = np.zeros((p, p, capacity, *x.shape[2:]), x.dtype)
    for i in range(p):
        for j in range(p):
            blocks[i, j, : sent[i, j]] = x[i, offsets[i, j] :][: sent[i, j]]
    out, received, _ = expected(blocks, sent)
    return out, received, (np.maximum(counts, 0) - sent).astype(np.int32)


def check(ranks, out, wanted):
    for name, one, other in zip(("blocks", "recv_counts", "dropped"), out, wanted, strict=True):
        ranks.same(one, other, name)


def blocks_of(rng, p, capacity, dtype="int32"):
    x = rng.integers(1, 99, (p, p, capacity, 2))
    return (x % 2 == 1 if dtype == "bool" else x * (1 + 1j) if dtype == "complex64" else x).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("p", [*range(1, 10), 16])
def test_virtual_ranks_equal_numpy(p, ranks):
    rng = np.random.default_rng(p)
    capacity = (4, 0, 1)[p % 3]
    x = {"blocks": blocks_of(rng, p, capacity), "counts": rng.integers(-1, 7, (p, p)).astype(np.int32)}
    out = ranks.virtual(lambda x: hccljax.all_to_all_v(x["blocks"], ranks.axis, x["counts"]), x)
    check(ranks, out, expected(x["blocks"], x["counts"]))


@pytest.mark.parametrize("p", [4, 8])
def test_devices_equal_numpy(p, ranks):
    rng = np.random.default_rng(p)
    x = rng.integers(1, 99, (p, 11, 3)).astype(np.int32)
    counts = rng.integers(0, 5, (p, p)).astype(np.int32)
    offsets = np.cumsum(counts, 1, dtype=np.int32) - counts

    def fn(rows):
        x, counts, offsets = rows
        return hccljax.all_to_all_v(x, ranks.axis, counts, capacity=3, send_offsets=offsets)

    check(ranks, ranks.devices(fn, (x, counts, offsets), p), expected_rows(x, counts, offsets, 3))


@pytest.mark.parametrize(("n", "capacity", "width"), [(0, 2, 2), (3, 0, 2), (3, 2, 0)])
def test_empty_arrays(n, capacity, width, ranks):
    x, counts = np.ones((2, n, width), np.float32), np.array([[1, 2], [0, 3]], np.int32)

    def fn(rows):
        x, counts = rows
        return hccljax.all_to_all_v(x, ranks.axis, counts, capacity=capacity, send_offsets=jnp.zeros(2, int))

    check(ranks, ranks.virtual(fn, (x, counts)), expected_rows(x, counts, np.zeros((2, 2), int), capacity))


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "complex64", "uint8"])
def test_dtypes(dtype, ranks):
    rng = np.random.default_rng(0)
    x, counts = blocks_of(rng, 3, 4, dtype), rng.integers(0, 6, (3, 3)).astype(np.uint8)
    out = ranks.virtual(lambda x: hccljax.all_to_all_v(x[0], ranks.axis, x[1]), (x, counts))
    check(ranks, out, expected(x, counts.astype(np.int32)))


@pytest.mark.parametrize("algorithm", ["mesh", "native", "level0:pairwise;level1:mesh"])
def test_algorithms_pytrees_and_keys(algorithm, ranks):
    rng = np.random.default_rng(1)
    keys = jax.random.split(jax.random.key(0), (4, 4, 3))
    tree, counts = {"a": blocks_of(rng, 4, 3), "keys": keys}, rng.integers(0, 5, (4, 4)).astype(np.int32)

    def fn(operands):
        x, counts = operands
        out, *rest = hccljax.all_to_all_v(x, ranks.axis, counts, capacity=3, algorithm=algorithm, topology="2x2")
        return {"a": out["a"], "keys": jax.random.key_data(out["keys"])}, *rest

    out, received, dropped = ranks.virtual(fn, (tree, counts))
    check(ranks, (out["a"], received, dropped), expected(tree["a"], counts))
    ranks.same(out["keys"], expected(np.asarray(jax.random.key_data(keys)), counts)[0])


def test_every_communicator_of_a_group_exchanges_its_own(ranks):
    groups, rng = [[4, 0, 3], [1, 5, 2]], np.random.default_rng(2)
    x, counts = rng.integers(1, 99, (6, 3, 4)).astype(np.int32), rng.integers(0, 6, (6, 3)).astype(np.int32)
    group = hccljax.Group(ranks.axis, groups)
    out = ranks.virtual(lambda x: hccljax.all_to_all_v(x[0], group, x[1]), (x, counts))
    for members in groups:
        check(ranks, [value[members] for value in out], expected(x[members], counts[members]))


# Rows of any kind of routing, counts and offsets traced: two programs for all examples.
@settings(max_examples=60, deadline=None)
@given(p=st.sampled_from([2, 5]), data=st.data())
def test_random_rows_equal_numpy(ranks, programs, p, data):
    ints = st.lists(st.integers(-2, 12), min_size=p * p, max_size=p * p).map(lambda v: np.reshape(v, (p, p)))
    counts = data.draw(ints, label="counts").astype(np.int32)
    offsets = data.draw(ints, label="offsets").astype(np.int32)
    x = np.arange(1, 1 + p * 9, dtype=np.float32).reshape(p, 9)
    check(ranks, map(np.asarray, programs[p](x, counts, offsets)), expected_rows(x, counts, offsets, 4))


@pytest.fixture(scope="module")
def programs(ranks):
    def fn(x, counts, offsets):
        return hccljax.all_to_all_v(x, ranks.axis, counts, capacity=4, send_offsets=offsets)

    return {p: jax.jit(jax.vmap(fn, axis_name=ranks.axis)) for p in (2, 5)}


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_gradients_of_random_counts_equal_finite_differences(gradient, data):
    p = 3
    counts = data.draw(st.lists(st.integers(-1, 5), min_size=p * p, max_size=p * p))
    counts = np.reshape(counts, (p, p)).astype(np.int32)
    rng = np.random.default_rng(abs(int(counts.sum())))
    x, weights = (rng.integers(-9, 9, (p, p, 3)).astype(np.float64) for _ in range(2))

    def loss(x):
        return (expected(x, counts)[0] * weights).sum()

    # The exchange is linear and the numbers are integers: a difference of 1 gives the derivative exactly.
    units = np.eye(x.size).reshape(x.size, *x.shape)
    wanted = np.reshape([loss(x + unit) - loss(x) for unit in units], x.shape)
    np.testing.assert_array_equal(gradient(x.astype(np.float32), counts, weights.astype(np.float32)), wanted)


@pytest.fixture(scope="module")
def gradient(ranks):
    def loss(x, counts, weights):
        def fn(x, counts):
            return hccljax.all_to_all_v(x, ranks.axis, counts)[0]

        return jnp.sum(jax.vmap(fn, axis_name=ranks.axis)(x, counts) * weights)

    return jax.jit(jax.grad(loss))


def test_padding_does_not_leak(ranks):
    x = np.full((2, 2, 3), np.nan, np.float32)
    x[:, :, 0] = 1

    def loss(x):
        fn = lambda x: hccljax.all_to_all_v(x, ranks.axis, jnp.array([1, 0]))[0]  # noqa: E731
        return jnp.sum(jax.vmap(fn, axis_name=ranks.axis)(x) ** 2)

    value, grads = jax.jit(jax.value_and_grad(loss))(x)
    assert value == 2
    np.testing.assert_array_equal(grads, [[[2, 0, 0], [0, 0, 0]]] * 2)


@pytest.mark.parametrize("p", [2, 5])
def test_the_wire_carries_the_capacity_and_one_count_a_rank_if_somebody_looks(p):
    def blocks(x, counts):
        return hccljax.all_to_all_v(x, "rank", counts, algorithm="mesh")[0]

    def both(x, counts):
        return hccljax.all_to_all_v(x, "rank", counts, algorithm="mesh")[:2]

    x, counts = jax.ShapeDtypeStruct((p, 6, 2), "float16"), jax.ShapeDtypeStruct((p,), "int32")
    one, two = (count(fn, x, counts, axis_sizes={"rank": p}) for fn in (blocks, both))
    assert one.bytes_sent == (p - 1) * 6 * 2 * 2 == hccljax.explain("all_to_all_v", p * 6 * 2 * 2, p).bytes_sent
    assert two.bytes_sent - one.bytes_sent == (p - 1) * 4
    assert (one.exchanges, two.exchanges, two.steps) == (1, 2, 1)


# A layer of experts -------------------------------------------------------------------------------------------------

P, EXPERTS, TOKENS, WIDTH = 4, 8, 12, 5


def experts_of(params, tokens, expert):
    """What one expert makes of its tokens."""
    return jnp.tanh(tokens @ params["in"][expert]) @ params["out"][expert]


def dense_layer(params, tokens, kept):
    """Top-1 routing of tokens [n, width] on one device: every expert on every token, and the right one chosen."""
    scores = jax.nn.softmax(tokens @ params["router"])
    expert = jnp.argmax(scores, 1)
    every = jnp.stack([experts_of(params, tokens, e) for e in range(EXPERTS)], 1)
    chosen = jnp.take_along_axis(every, expert[:, None, None], 1)[:, 0]
    return jnp.where(kept[:, None], chosen * jnp.max(scores, 1, keepdims=True), 0)


def layer(params, tokens, capacity, axis):
    """The same for this rank's tokens, with EXPERTS / P experts on every rank → (tokens out, dropped tokens)."""
    mine = EXPERTS // P
    scores = jax.nn.softmax(tokens @ params["router"])
    expert = jnp.argmax(scores, 1)
    order = jnp.argsort(expert)  # sorted by expert, hence by rank
    counts = jnp.bincount(expert // mine, length=P)
    offsets = jnp.cumsum(counts) - counts
    rows = {"tokens": tokens[order], "expert": expert[order] % mine}
    blocks, _, dropped = hccljax.all_to_all_v(rows, axis, counts, capacity=capacity, send_offsets=offsets)
    # Padding goes through expert 0 and is not sent back.
    here = jnp.stack([experts_of(params, blocks["tokens"], e) for e in range(mine)])
    done = jnp.take_along_axis(here, blocks["expert"][None, :, :, None], 0)[0]
    received = hccljax.all_to_all_v(done, axis, _received(counts, capacity, axis))[0]
    place = jnp.arange(TOKENS) - offsets[expert[order] // mine]
    out = received.at[expert[order] // mine, place].get(mode="fill", fill_value=0)
    out = jnp.zeros_like(tokens).at[order].set(out)
    return out * jnp.max(scores, 1, keepdims=True), jnp.sum(dropped)


def _received(counts, capacity, axis):
    """How many tokens every rank has sent here."""
    return hccljax.all_to_all(jnp.minimum(counts, capacity), axis, 0, 0)


@pytest.mark.parametrize(("capacity", "devices"), [(TOKENS, True), (3, False)])
def test_a_layer_of_experts_equals_the_dense_one(capacity, devices, ranks):
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "router": jax.random.normal(keys[0], (WIDTH, EXPERTS)),
        "in": jax.random.normal(keys[1], (EXPERTS, WIDTH, 7)),
        "out": jax.random.normal(keys[2], (EXPERTS, 7, WIDTH)),
    }
    tokens = jax.random.normal(keys[3], (P, TOKENS, WIDTH))
    experts = np.argmax(np.asarray(tokens @ params["router"]), -1)
    kept, lost = kept_tokens(experts, capacity)

    def fn(operands):
        params, tokens = operands

        def loss(tokens, experts, router):
            out, dropped = layer({**experts, "router": router}, tokens, capacity, ranks.axis)
            return jnp.sum(out**2), (out, dropped)

        experts = {name: params[name] for name in ("in", "out")}
        grads, (out, dropped) = jax.grad(loss, (0, 1, 2), has_aux=True)(tokens, experts, params["router"])
        return out, dropped, grads[0]

    own = [{name: value[2 * r : 2 * r + 2] for name, value in params.items() if name != "router"} for r in range(P)]
    own = jax.tree.map(lambda *rows: jnp.stack(rows), *own)
    own["router"] = jnp.broadcast_to(params["router"], (P, *params["router"].shape))
    run = (lambda f, x: ranks.devices(f, x, P)) if devices else ranks.virtual
    out, dropped, grads = run(fn, (own, tokens))

    def dense(tokens):
        out = dense_layer(params, tokens.reshape(P * TOKENS, WIDTH), kept.reshape(-1)).reshape(tokens.shape)
        return jnp.sum(out**2), out

    wanted_grads, wanted = jax.jit(jax.grad(dense, has_aux=True))(tokens)
    np.testing.assert_array_equal(dropped, lost)
    assert (lost.sum() > 0) == (capacity < TOKENS)
    np.testing.assert_allclose(out, wanted, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(grads, wanted_grads, rtol=1e-4, atol=1e-4)


def kept_tokens(experts, capacity):
    """experts [P, TOKENS] → (which tokens fit into the block for their rank [P, TOKENS], how many do not [P])."""
    kept = np.zeros(experts.shape, bool)
    for r, row in enumerate(experts):
        order = np.argsort(row, kind="stable")
        for rank in range(P):
            kept[r, [i for i in order if row[i] // (EXPERTS // P) == rank][:capacity]] = True
    return kept, (~kept).sum(1)
