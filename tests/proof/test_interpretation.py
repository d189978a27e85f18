"""What a user's kernel may be written with: the interpreter follows it, or says what it cannot follow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax import ArgumentError, Group, UnsupportedError, VerificationError
from hccljax.algorithm import registered, run
from hccljax.reduction import reduction

P = 4
OP = reduction("sum")


def received_in_a_while_loop(x, group, op):
    """A ring of whole messages whose trip count is a value."""

    def body(state):
        s, moving, total = state
        moving = group.shift(moving, 1)
        return s + 1, moving, op(total, moving)

    return lax.while_loop(lambda state: state[0] < group.size - 1, body, (jnp.int32(0), x, x))[2]


def gathered_by_scan(block, group):
    """The rows come out as the stacked results of a scan, then take their places."""

    def step(moving, _):
        return group.shift(moving, 1), moving

    _, rows = lax.scan(step, block, None, length=group.size)
    return rows[(group.rank - jnp.arange(group.size)) % group.size]


def gathered_by_reversed_scan(block, group):
    def step(moving, k):
        return group.shift(moving, -1), moving

    _, rows = lax.scan(step, block, jnp.arange(group.size), reverse=True)
    return jnp.roll(rows[::-1], group.rank, 0)


def placed_by_scatter(block, group):
    out = jnp.zeros((group.size, *block.shape), block.dtype)
    moving = block
    for k in range(group.size):
        out = out.at[(group.rank - k) % group.size].set(moving)
        moving = group.shift(moving, 1)
    return out


def added_by_scatter(block, group):
    """Every row is added to zeros once."""
    out = jnp.zeros((group.size, *block.shape), block.dtype)
    for k in range(group.size):
        out = out.at[(group.rank - k) % group.size].add(group.shift(block, k))
    return out


def summed_over_an_axis(x, group, op):
    return group.mesh_gather(x).sum(0)


def by_xla(x, group, op):
    return lax.psum(x, group.axis_name)


def by_the_public_function(x, group, op):
    return hccljax.all_reduce(x, group, algorithm="ring")


def by_all_to_all(blocks, group, op):
    p, length = group.size, blocks.shape[1]
    mine = lax.all_to_all(blocks.reshape(-1), group.axis_name, 0, 0, tiled=True)
    return sum(mine.reshape(p, length)[k] for k in range(p))


def by_psum_scatter(blocks, group, op):
    return lax.psum_scatter(blocks.reshape(-1), group.axis_name, tiled=True)


def gathered_tiled(block, group):
    return lax.all_gather(block, group.axis_name, axis=0, tiled=True).reshape(group.size, -1)


def by_ppermute(x, group):
    for s in range(1, group.size):
        received = lax.ppermute(x, group.axis_name, [(r, (r + 1) % group.size) for r in range(group.size)])
        x = jnp.where(group.rank == s, received, x)
    return x


def with_a_branch(x, group):
    """A branch that each rank takes for itself, and that does not communicate."""
    received = group.mesh_gather(x)
    return lax.cond(group.rank < 2, lambda: received[0], lambda: received.T[:, 0])


def with_a_wrong_branch(x, group):
    received = group.mesh_gather(x)
    return lax.switch(group.rank, [lambda: received[0]] * 3 + [lambda: received[1]])


def by_sorted_places(block, group):
    """Indices may be computed by anything: here by a sort, which JAX runs."""
    places = jnp.argsort((group.rank + jnp.arange(group.size)) % group.size)
    return group.mesh_gather(block)[(places + group.rank) % group.size]


FOLLOWED = [
    ("all_reduce", received_in_a_while_loop), ("all_gather", gathered_by_scan),
    ("all_gather", gathered_by_reversed_scan), ("all_gather", placed_by_scatter), ("all_gather", added_by_scatter),
    ("all_reduce", summed_over_an_axis), ("all_reduce", by_xla), ("all_reduce", by_the_public_function),
    ("reduce_scatter", by_all_to_all), ("reduce_scatter", by_psum_scatter), ("all_gather", gathered_tiled),
    ("broadcast", by_ppermute), ("broadcast", with_a_branch), ("all_gather", by_sorted_places),
    ("broadcast", with_a_wrong_branch),
]  # fmt: skip


WRONG = (with_a_wrong_branch,)


def shape_of(operator, p):
    return (p, 3) if operator in ("reduce_scatter", "all_to_all", "scatter") else (3 * p + 1,)


@pytest.mark.parametrize(("operator", "kernel"), FOLLOWED, ids=[kernel.__name__ for _, kernel in FOLLOWED])
def test_kernels_that_are_followed_agree_with_what_they_compute(proofs, operator, kernel):
    """The verdict is that of the numbers, also where it is no."""
    record = proofs.record(**{operator: kernel})
    x = np.random.default_rng(1).integers(1, 1 << 20, (P, *shape_of(operator, P)), np.int32).astype(np.float32)
    out = jax.vmap(lambda row: run(record, operator, row, Group("r"), OP), axis_name="r")(x)
    want = jax.vmap(lambda row: run(registered("mesh"), operator, row, Group("r"), OP), axis_name="r")(x)
    try:
        hccljax.verify(record, operator, P)
        proved = True
    except VerificationError:
        proved = False
    assert proved == np.array_equal(out, want) == (kernel not in WRONG)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (lambda x, group: jnp.sin(x), "computes 'sin' on the data"),
        (lambda x, group: x / 2, "computes 'div' on the data"),
        (lambda x, group: jnp.where(x > 0, x, x), "computes 'gt' on the data"),
        (lambda x, group: jnp.sort(x), "computes 'sort' on the data"),
        (lambda x, group: x.astype(jnp.int32).astype(x.dtype), "converts the data to int32"),
        (lambda x, group: x.at[jnp.array([0, 0])].set(x[:2]), "at the same place twice"),
        (
            lambda x, group: lax.cond(group.rank == 0, lambda: group.shift(x, 1), lambda: group.shift(x, 2)),
            "ranks 0 and 1 go different ways",
        ),
    ],
)
def test_what_cannot_be_followed_is_named(proofs, error_of, helps, kernel, said):
    record = proofs.record(broadcast=kernel)
    message = error_of(lambda: hccljax.verify(record, "broadcast", P), UnsupportedError)
    assert said in message
    assert helps(message)


def test_two_messages_for_one_rank_are_refused(proofs, error_of, helps):
    record = proofs.record(broadcast=lambda x, group: lax.ppermute(x, group.axis_name, [(0, 1), (2, 1)]))
    message = error_of(lambda: hccljax.verify(record, "broadcast", P), ArgumentError)
    assert "have the same destination 1" in message
    assert helps(message)


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: hccljax.verify("ring", "allreduce", 4), ArgumentError, "operator='allreduce'"),
        (lambda: hccljax.verify("rnig", "all_reduce", 4), ArgumentError, "'rnig'"),
        (lambda: hccljax.verify("ring", "all_reduce", 0), ArgumentError, "p=0"),
        (lambda: hccljax.verify("ring", "all_reduce", 2.5), ArgumentError, "p=2.5"),
        (lambda: hccljax.verify("ring", "broadcast", 4, root=4), ArgumentError, "root=4"),
        (lambda: hccljax.verify("ring", "all_reduce", 4, op="xor"), ArgumentError, "op='xor'"),
        (lambda: hccljax.verify("ring", "all_gather", 4, op="max"), ArgumentError, "reduces nothing"),
        (lambda: hccljax.verify("ring", "all_reduce", 4, nbytes=-1), ArgumentError, "nbytes=-1"),
        (lambda: hccljax.verify("ring", "all_reduce", 4, topology="2x4"), ArgumentError, "2x4"),
        (lambda: hccljax.verify("tree", "all_to_all", 4), UnsupportedError, "nothing to prove"),
        (lambda: hccljax.verify("native", "all_reduce", 4, op="prod"), UnsupportedError, "'prod'"),
    ],
)
def test_bad_arguments(error_of, helps, call, kind, said):
    message = error_of(call, kind)
    assert said in message
    assert helps(message)


# Sizes


def late(threshold, wrong):
    """A mesh that is wrong above so many bytes."""

    def kernel(x, group, op):
        right = run(registered("mesh"), "all_reduce", x, group, op)
        return wrong(right, x) if x.size * x.dtype.itemsize > threshold else right

    return kernel


def test_a_fault_in_a_further_regime_is_found_if_the_record_declares_it(proofs):
    record = proofs.record(all_reduce=late(1 << 18, lambda right, x: x))
    small = hccljax.verify(record, "all_reduce", 8)
    assert len(small.nbytes) == 1
    declared = hccljax.Algorithm("own", "a test", record.steps, record.bytes_sent, all_reduce=record.all_reduce,
                                 regimes=(1 << 18,))  # fmt: skip
    for proving in (lambda: hccljax.verify(declared, "all_reduce", 8),
                    lambda: hccljax.verify(record, "all_reduce", 8, nbytes=1 << 20)):  # fmt: skip
        with pytest.raises(VerificationError, match="rank 0, block 0: the contributions of ranks 1, 2, 3"):
            proving()


@pytest.mark.parametrize("nbytes", [1 << 16, (1 << 16) + 4])
def test_a_large_message_is_proved_to_the_element(proofs, nbytes):
    """One element misplaced in 16,384 is found, whether or not the message can be held in grains."""
    swapped = lambda right, x: right.at[jnp.array([5, 6])].set(right[jnp.array([6, 5])])  # noqa: E731
    with pytest.raises(VerificationError, match="block 0: the contribution of rank 0 belongs to block 0, element 6"):
        hccljax.verify(proofs.record(all_reduce=late(0, swapped)), "all_reduce", P, nbytes=nbytes)
    assert hccljax.verify("mesh", "all_reduce", P, nbytes=nbytes).nbytes == (nbytes,)


@pytest.mark.parametrize("nbytes", [0, 4, 20])
def test_messages_shorter_than_the_ranks(nbytes):
    for name in ("ring", "tree", "H-D_R", "mesh"):
        assert hccljax.verify(name, "all_reduce", 6, nbytes=nbytes).nbytes == (nbytes,)


def test_many_ranks_are_proved_by_labels(proofs):
    proof = hccljax.verify("tree", "all_reduce", 200)
    assert not proof.exact
    assert "by random 64-bit labels" in str(proof)
    assert hccljax.verify("tree", "all_reduce", 200, op="max").exact
    mutant, _ = proofs.faulty(registered("tree"), "all_reduce", proofs.faults["one_lost"], 3)
    with pytest.raises(VerificationError, match="missing"):
        hccljax.verify(mutant, "all_reduce", 200)
    doubled = proofs.with_op(registered("tree"), "reduce", lambda op: lambda a, b: op.combine(op.combine(a, b), b))
    with pytest.raises(VerificationError, match="is counted twice"):
        hccljax.verify(doubled, "reduce", 200)
