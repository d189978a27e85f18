"""Two mistakes that are widespread in written-down algorithms: each is made here on purpose, and found by the check."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from hccljax.algorithm import Algorithm, registered, run
from hccljax.algorithm.blocks import block_at, choose, repeat, wrap
from hccljax.group import Group
from hccljax.reduction import reduction

SUM = reduction("sum")
GROUP = Group("r")


def on_ranks(algorithm, operator, x):
    """The operator of an algorithm on x [p, …] → [p, …]."""
    return np.asarray(jax.vmap(lambda row: run(algorithm, operator, row, GROUP, SUM), axis_name="r")(x))


def record(name, **kernels):
    return Algorithm(name, "a mistake", steps=lambda *_: 0, bytes_sent=lambda *_: 0, **kernels)


def different_bits(p, blocks=1):
    """[p, blocks] whose column sums show exactly which ranks contributed, and to which block."""
    return (1 << np.arange(p))[:, None] * np.ones(blocks, np.int32) + (np.arange(blocks) << p).astype(np.int32)


def ring_from_its_own_block(blocks, group, op):
    """The widespread ring: rank r starts with block r."""
    p, rank = group.size, group.rank

    def step(s, moving):
        return op(group.shift(moving, 1), block_at(blocks, wrap(rank - 1 - s, p)))

    return repeat(p - 1, step, block_at(blocks, rank))


def reduce_scatter_is_right(algorithm, p):
    x = different_bits(p, p)
    return np.array_equal(on_ranks(algorithm, "reduce_scatter", x), x.sum(0))


@pytest.mark.parametrize("p", [2, 3, 4, 7, 8])
def test_a_ring_that_starts_with_its_own_block_leaves_the_result_on_the_wrong_rank(p):
    mistaken = record("mistaken ring", reduce_scatter=ring_from_its_own_block)
    assert not reduce_scatter_is_right(mistaken, p)
    x = different_bits(p, p)
    # The sums are right; rank r has block r + 1.
    np.testing.assert_array_equal(on_ranks(mistaken, "reduce_scatter", x), np.roll(x.sum(0), -1))
    assert reduce_scatter_is_right(registered("ring"), p)


def tree_of_depth(depth):
    """A binomial tree of a given depth, p → levels."""

    def reduce(x, group, op):
        p, rank = group.size, group.rank
        for d in (1 << s for s in range(depth(p))):
            received = group.permute(x, [(r, r - d) for r in range(d, p, 2 * d)])
            x = choose((rank & (2 * d - 1) == 0) & (rank + d < p), op(x, received), x)
        return x

    def broadcast(x, group):
        p, rank = group.size, group.rank
        for d in (1 << s for s in reversed(range(depth(p)))):
            received = group.permute(x, [(r - d, r) for r in range(d, p, 2 * d)])
            x = choose(rank & (2 * d - 1) == d, received, x)
        return x

    return record("tree", reduce=reduce, broadcast=broadcast)


def tree_is_right(algorithm, p):
    x = different_bits(p)
    reduced = on_ranks(algorithm, "reduce", x)[0]
    return np.array_equal(reduced, x.sum(0)) and (on_ranks(algorithm, "broadcast", x) == x[0]).all()


def floor_log2(p):
    return p.bit_length() - 1


@pytest.mark.parametrize("p", [3, 5, 6, 7, 9, 12])
def test_a_tree_as_deep_as_log2_rounded_down_loses_ranks(p):
    mistaken = tree_of_depth(floor_log2)
    assert not tree_is_right(mistaken, p)
    x = different_bits(p)
    lost = x.sum() - on_ranks(mistaken, "reduce", x)[0].item()
    assert lost == sum(x[1 << floor_log2(p) :, 0])  # everybody from the largest power of two on
    assert tree_is_right(registered("tree"), p)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_at_powers_of_two_the_mistake_does_not_show(p):
    assert tree_is_right(tree_of_depth(floor_log2), p)
    assert tree_is_right(registered("tree"), p)
