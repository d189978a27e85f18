"""NHR pipeline: the mesh inside servers at the same time as NHR between them, whatever is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import jax
import numpy as np
import pytest

import hccljax
from hccljax.algorithm import registered, run
from hccljax.algorithm.base import COMPOSED
from hccljax.algorithm.pieces import LONGEST_BYTES, MOST_HALVINGS, MOST_PIECES, PIECE_BYTES, pieces
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule import count
from hccljax.timing.bounds import lower_bound
from hccljax.timing.kernel import kernel_seconds
from hccljax.topology import as_topology

OPERATORS = ("all_gather", "reduce_scatter", "all_reduce", "scatter", "gather", "broadcast", "reduce")
RECORD, SUM = registered("NHR_pipeline"), reduction("sum")
TIERS = [
    (1,),
    (2,),
    (7,),
    (4, 2),
    (2, 4),
    (3, 5),
    (5, 3),
    (1, 6),
    (6, 1),
    (8, 4),
    (2, 2, 4),
    (3, 1, 2),
    (2, 13),
    (4, 11),
]


def operand(operator, p, block):
    if operator in COMPOSED:
        return (p * block,)
    return (block,) if operator in ("all_gather", "gather") else (p, block)


@pytest.mark.parametrize("sizes", TIERS, ids=str)
@pytest.mark.parametrize("block", [64, 1 << 20, 9 << 20])
def test_formulas_over_any_tiers(sizes, block):
    algorithm, p = RECORD.over(sizes), int(np.prod(sizes))
    for operator in OPERATORS:
        group, x = Group("r", levels=sizes), jax.ShapeDtypeStruct(operand(operator, p, block), np.float32)
        counts = count(lambda row: run(algorithm, operator, row, group, SUM), x, axis_sizes={"r": p})  # noqa: B023
        assert counts.steps == algorithm.cost(operator, p, 4 * p * block).steps, operator
        assert counts.bytes_sent == algorithm.cost(operator, p, 4 * p * block).bytes_sent, operator


@pytest.mark.parametrize("length", [0, 1, 7, 1000, 1 << 18, (1 << 22) + 3])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_pieces_cover_their_rows(rows, length):
    for growing in (True, False):
        found = pieces(rows, length, 4, growing)
        assert [cut.start for cut in found[1:]] == [cut.stop for cut in found[:-1]]
        assert (found[0].start, found[-1].stop) == (0, length)
        widths = [4 * rows * (cut.stop - cut.start) for cut in found]
        assert max(widths) <= max(LONGEST_BYTES, 4 * rows * length >> MOST_HALVINGS) + 4 * rows
        if 4 * rows * length <= LONGEST_BYTES:
            assert len(found) <= (MOST_PIECES if growing else 1)
        if len(found) > 1:
            assert widths[0] >= PIECE_BYTES - 4 * rows
            assert all(later <= 3 * sooner + 12 * rows for sooner, later in pairwise(widths))


def test_a_piece_waits_for_the_one_before():
    """The order in which they leave is part of the algorithm."""
    algorithm, group = RECORD.over((2, 2)), Group("r", levels=(2, 2))
    x = jax.ShapeDtypeStruct((4, 4 * PIECE_BYTES), np.uint8)
    schedule = hccljax.trace(lambda row: run(algorithm, "reduce_scatter", row, group, SUM), x, axis_sizes={"r": 4})
    between = [event for event in schedule.events if event.label.startswith("nhr_pipeline")]
    assert len(between) == len(pieces(1, 4 * PIECE_BYTES, 1, True)) == 2
    number = {id(event): index for index, event in enumerate(schedule.events)}
    assert number[id(between[0])] in between[1].needs


@pytest.mark.parametrize("sizes", [(4, 2), (3, 5), (5, 3), (2, 6), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("op", ["sum", "max", "prod"])
def test_long_messages_on_virtual_ranks(sizes, op):
    """A first step of several pieces, with a length that does not cut evenly."""
    p = int(np.prod(sizes))
    x = np.random.default_rng(3).integers(1, 3, (p, 40 * PIECE_BYTES // 8 + 7)).astype(np.int32)
    comm = hccljax.Communicator(p, executor="virtual", topology="x".join(map(str, reversed(sizes))))
    out = comm.all_reduce(x, op=op, algorithm="NHR_pipeline")
    expected = {"sum": x.sum(0), "max": x.max(0), "prod": np.prod(x, 0, dtype=np.int32)}[op]
    np.testing.assert_array_equal(np.asarray(out)[p - 1], expected)
    np.testing.assert_array_equal(np.asarray(out)[0], expected)


@pytest.mark.parametrize("spec", ["4x8", "32x8"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_near_the_bound_on_a2(spec, operator):
    """Within 5 % of bandwidth bound and latency at 1 GiB, 15 % at 64 MiB; a hierarchy of mesh and NHR is not.

    broadcast and reduce are two such phases, which no bound counts.
    """
    topology = as_topology(f"atlas-800t-a2:{spec}")
    for nbytes, limit in ((1 << 30, 1.05), (64 << 20, 1.15)):
        bound = lower_bound(operator, nbytes, topology)
        seconds = kernel_seconds(
            RECORD.over(topology.sizes), operator, topology.ranks, [nbytes], topology, topology.sizes
        )[0]
        assert (
            bound.seconds
            < seconds
            < (2 if operator in ("broadcast", "reduce") else 1) * limit * (bound.bandwidth + bound.latency)
        )


def test_unequal_servers_take_another_way():
    with pytest.warns(hccljax.FallbackWarning, match=r"needs servers of one size; 'AHC' runs instead"):
        assert hccljax.explain("all_reduce", 64, 8, "5+3", "NHR_pipeline").algorithm == "AHC"
