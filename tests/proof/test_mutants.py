"""Every fault put into an algorithm is found: in each of its communications, and in how it combines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax import Group, VerificationError
from hccljax.algorithm import registered, run
from hccljax.algorithm.base import OPERATORS, REDUCING
from hccljax.algorithm.blocks import block_at, repeat, wrap
from hccljax.reduction import reduction

NAMES = ("ring", "tree", "H-D_R", "mesh")
KERNELS = [(name, operator) for name in NAMES for operator in OPERATORS if registered(name).has(operator)]
REDUCTIONS = [(name, operator) for name, operator in KERNELS if operator in REDUCING]

each_kernel = pytest.mark.parametrize(("name", "operator"), KERNELS)
each_reduction = pytest.mark.parametrize(("name", "operator"), REDUCTIONS)


def communications(proofs, name, operator, p):
    """How many communications the kernel's text has."""
    intact, calls = proofs.faulty(registered(name), operator, None, at=-1)
    hccljax.verify(intact, operator, p)
    return calls[0]


def is_wrong(algorithm, operator, p, op="sum"):
    with pytest.raises(VerificationError) as caught:
        hccljax.verify(algorithm, operator, p, op=op)
    assert "rank " in str(caught.value)
    assert ", block " in str(caught.value)
    return str(caught.value)


@each_kernel
@pytest.mark.parametrize("fault", ["dropped", "to_the_next", "swapped_blocks", "one_lost"])
def test_a_fault_in_any_communication_is_found(proofs, name, operator, fault):
    for p in (5, 8):
        count = communications(proofs, name, operator, p)
        assert count > 0
        for at in range(count):
            mutant, _ = proofs.faulty(registered(name), operator, proofs.faults[fault], at)
            is_wrong(mutant, operator, p)


@each_reduction
def test_a_message_lost_under_max_is_found_as_a_zero(proofs, name, operator):
    mutant, _ = proofs.faulty(registered(name), operator, proofs.faults["one_lost"], 0)
    assert "zero" in is_wrong(mutant, operator, 5, op="max")


@each_reduction
def test_a_contribution_added_twice_is_found(proofs, name, operator):
    mutant = proofs.with_op(registered(name), operator, lambda op: lambda a, b: op.combine(op.combine(a, b), b))
    assert "is counted twice" in is_wrong(mutant, operator, 4)
    hccljax.verify(mutant, operator, 4, op="max")  # the maximum does not mind


@each_reduction
def test_add_under_max_is_found(proofs, name, operator):
    mutant = proofs.with_op(registered(name), operator, lambda op: lax.add)
    hccljax.verify(mutant, operator, 4)
    assert "combined by 'add', expected 'max'" in is_wrong(mutant, operator, 4, op="max")


@each_reduction
def test_a_contribution_left_out_is_found(proofs, name, operator):
    mutant = proofs.with_op(registered(name), operator, lambda op: lambda a, b: a)
    assert "missing" in is_wrong(mutant, operator, 4)
    is_wrong(mutant, operator, 4, op="max")


def tree_without_selection(x, group, op):
    """A tree in which also those combine who have received nothing."""
    p = group.size
    for d in (1 << s for s in range((p - 1).bit_length())):
        x = op(x, group.permute(x, [(r, r - d) for r in range(d, p, 2 * d)]))
    return x


def test_zeros_where_nothing_was_received_harm_a_maximum_only(proofs):
    tree = proofs.record(reduce=tree_without_selection)
    hccljax.verify(tree, "reduce", 5)
    message = is_wrong(tree, "reduce", 6, op="max")  # rank 4 has no partner at the second level
    assert "a zero that stands where nothing was received is combined with it" in message


def short_ring(blocks, group, op):
    """The ring, one step short."""
    p, rank = group.size, group.rank

    def step(s, moving):
        return op(group.shift(moving, 1), block_at(blocks, wrap(rank - 2 - s, p)))

    return repeat(p - 2, step, block_at(blocks, wrap(rank - 1, p)))


def ring_from_its_own_block(blocks, group, op):
    """The widespread ring that starts with block r, and leaves the result on the neighbour's rank."""
    p, rank = group.size, group.rank

    def step(s, moving):
        return op(group.shift(moving, 1), block_at(blocks, wrap(rank - 1 - s, p)))

    return repeat(p - 1, step, block_at(blocks, rank))


def test_the_message_names_rank_block_and_contributor(proofs):
    short = is_wrong(proofs.record(reduce_scatter=short_ring), "reduce_scatter", 4)
    assert "on 4 ranks" in short
    shifted = is_wrong(proofs.record(reduce_scatter=ring_from_its_own_block), "reduce_scatter", 4)
    assert "rank 0, block 0: the contribution of rank 0 belongs to block 1" in shifted
    lost, _ = proofs.faulty(registered("mesh"), "reduce_scatter", proofs.faults["one_lost"], 0)
    assert "rank 0, block 0: the contribution of rank 1 is missing (and 7 more" in is_wrong(lost, "reduce_scatter", 4)
    swapped = proofs.record(all_gather=lambda block, group: lax.rev(group.mesh_gather(block), (0,)))
    assert "rank 0, block 0: the contribution of rank 2 belongs to block 2" in is_wrong(swapped, "all_gather", 3)


def test_padding_in_the_result_is_no_contribution(proofs):
    zeros = proofs.record(all_gather=lambda block, group: jnp.zeros((group.size, *block.shape), block.dtype))
    assert "a constant zero is in its place" in is_wrong(zeros, "all_gather", 3)
    unset = proofs.record(broadcast=lambda x, group: lax.empty(x.shape, x.dtype))
    assert "memory that was never written" in is_wrong(unset, "broadcast", 3)


def test_data_that_is_only_to_be_moved_may_not_be_combined(proofs):
    added = proofs.record(broadcast=lambda x, group: x + group.shift(x, 1))
    assert "expected data that is only moved" in is_wrong(added, "broadcast", 3)


@each_kernel
def test_the_verdict_is_that_of_the_compiled_kernel(proofs, name, operator):
    """Intact and faulty: verify refuses exactly the kernels that give wrong numbers."""
    p, op = 4, reduction("sum")
    rows = np.random.default_rng(0).integers(1, 1 << 20, (p, p, 7), np.int32)
    blocked = operator in ("reduce_scatter", "scatter", "all_to_all")
    x = rows if blocked else rows[:, 0]
    right = {
        "all_reduce": lambda: np.broadcast_to(x.sum(0), x.shape), "reduce": lambda: x.sum(0),
        "reduce_scatter": lambda: x.sum(0), "broadcast": lambda: np.broadcast_to(x[0], x.shape),
        "scatter": lambda: x[0], "all_to_all": lambda: np.swapaxes(x, 0, 1), "gather": lambda: x,
        "all_gather": lambda: np.broadcast_to(x, (p, *x.shape)),
    }[operator]()  # fmt: skip
    for fault in (None, proofs.faults["to_the_next"], proofs.faults["one_lost"]):
        mutant, _ = proofs.faulty(registered(name), operator, fault, -1 if fault is None else 0)
        kernel = jax.vmap(lambda row, mutant=mutant: run(mutant, operator, row, Group("r"), op), axis_name="r")
        out = np.asarray(kernel(x))
        out = out[0] if operator in ("reduce", "gather") else out
        try:
            hccljax.verify(mutant, operator, p)
            proved = True
        except VerificationError:
            proved = False
        assert proved == np.array_equal(out, right) == (fault is None), fault
