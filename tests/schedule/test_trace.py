"""Schedules against ones worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax import Group
from hccljax.layout import Pairs, Shift, Xor
from hccljax.schedule import Counts, Schedule, count


def shift(x, k=1, p=4):
    return lax.ppermute(x, "r", [(r, (r + k) % p) for r in range(p)])


def by(algorithm, operator="all_reduce", group="r", **options):
    return lambda x: getattr(hccljax, operator)(x, group, algorithm=algorithm, **options)


def sent(schedule):
    """What a reader wants to know of each event: label, pattern, bytes of a message, trips."""
    return [(event.label, event.pattern, event.nbytes, event.trips) for event in schedule]


def waits(schedule):
    return [(event.needs, event.carried) for event in schedule]


class TestAlgorithms:
    def test_ring(self, traced):
        schedule = traced(by("ring"), jax.ShapeDtypeStruct((40,), jnp.float32), r=5)
        assert sent(schedule) == [("ring_reduce_scatter", Shift(1), 32, 4), ("ring_all_gather", Shift(1), 32, 4)]
        assert waits(schedule) == [((), (0,)), ((0,), (1,))]
        assert [event.stream for event in schedule] == [0, 0]
        assert [(loop.trips, loop.parent, loop.events) for loop in schedule.loops] == [
            (4, None, range(1)),
            (4, None, range(1, 2)),
        ]
        assert schedule.bytes_sent.tolist() == [8 * 32] * 5
        assert schedule[0].messages.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]]

    def test_tree_on_five_ranks(self, traced):
        schedule = traced(by("tree"), r=5)
        up = [Pairs(((1, 0), (3, 2))), Pairs(((2, 0),)), Pairs(((4, 0),))]
        assert [event.pattern for event in schedule] == [*up, *(pattern.inverse() for pattern in reversed(up))]
        assert {event.nbytes for event in schedule} == {24}
        # A rank's total holds what it received in every step so far.
        assert [event.needs for event in schedule][:3] == [(), (0,), (0, 1)]
        assert [event.stream for event in schedule] == [0] * 6
        assert schedule.bytes_sent.tolist() == [3 * 24, 24, 2 * 24, 24, 24]
        assert (schedule.steps, schedule.rounds, schedule.permutes) == (6, 6, 6)

    def test_halving_doubling(self, traced):
        schedule = traced(by("H-D_R"), jax.ShapeDtypeStruct((8,), jnp.float32), r=8)
        assert [(event.pattern, event.shape) for event in schedule] == [
            (Xor(4), (4, 1)), (Xor(2), (2, 1)), (Xor(1), (1, 1)), (Xor(1), (1, 1)), (Xor(2), (2, 1)), (Xor(4), (4, 1)),
        ]  # fmt: skip
        assert schedule[0].messages.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7], [4, 0], [5, 1], [6, 2], [7, 3]]
        assert schedule.steps == 6

    def test_halving_doubling_of_three_ranks_joins_and_gives_back(self, traced):
        schedule = traced(by("H-D_R"), r=3)
        assert [(event.label, event.messages.tolist()) for event in schedule] == [
            ("halving_join_reduce", [[1, 0]]),
            ("halving_reduce_scatter", [[0, 2], [2, 0]]),
            ("doubling_all_gather", [[0, 2], [2, 0]]),
            ("doubling_give_back", [[0, 1]]),
        ]

    def test_mesh(self, traced):
        schedule = traced(by("mesh"), jax.ShapeDtypeStruct((8,), jnp.float32))
        assert [(event.kind, event.pattern, event.nbytes) for event in schedule] == [
            ("mesh_exchange", None, 8),
            ("mesh_gather", None, 8),
        ]
        assert sorted(schedule[0].messages.tolist()) == [[s, d] for s in range(4) for d in range(4) if s != d]
        assert (schedule.steps, schedule.exchanges, schedule.permutes, schedule.rounds) == (2, 2, 0, 6)

    def test_messages_of_a_mesh_root_are_streams_of_their_own(self, traced):
        schedule = traced(by("mesh", "scatter"), jax.ShapeDtypeStruct((4, 3), jnp.float32))
        assert [(event.messages.tolist(), event.stream) for event in schedule] == [
            ([[0, 1]], 0), ([[0, 2]], 1), ([[0, 3]], 2),
        ]  # fmt: skip
        assert (schedule.steps, schedule.rounds) == (1, 3)

    def test_hierarchy_of_two_servers(self, traced):
        schedule = traced(by("level0:ring;level1:tree", topology="2x3"), jax.ShapeDtypeStruct((12,), jnp.float32), r=6)
        inside = [[0, 1], [1, 2], [2, 0], [3, 4], [4, 5], [5, 3]]
        assert [(event.messages.tolist(), event.trips, event.nbytes) for event in schedule] == [
            (inside, 2, 16),
            ([[3, 0], [4, 1], [5, 2]], 1, 16),
            ([[0, 3], [1, 4], [2, 5]], 1, 16),
            (inside, 2, 16),
        ]
        assert schedule[0].layout.groups == ((0, 1, 2), (3, 4, 5))
        assert schedule[1].layout.groups == ((0, 3), (1, 4), (2, 5))
        assert [event.stream for event in schedule] == [0] * 4

    def test_native(self, traced):
        (event,) = traced(by("native"))
        assert (event.kind, event.nbytes, event.members.tolist()) == ("psum", 24, [[0, 1, 2, 3]])

    @pytest.mark.parametrize("algorithm", ["ring", "tree", "H-D_R", "mesh", "native"])
    def test_one_rank_sends_nothing(self, traced, algorithm):
        schedule = traced(by(algorithm), r=1)
        assert schedule.permutes == schedule.rounds == schedule.max_bytes_sent == 0
        assert all(len(event.messages) == 0 for event in schedule)

    def test_groups_talk_at_the_same_time(self, traced):
        (event,) = traced(lambda x: Group("r", [[2, 0], [1, 3]]).shift(x, 1, "mine"))
        assert (event.label, event.pattern, event.messages.tolist()) == (
            "mine",
            Shift(1),
            [[2, 0], [0, 2], [1, 3], [3, 1]],
        )


class TestEvents:
    def test_a_bare_permute(self, traced):
        (event,) = traced(lambda x: lax.ppermute(x, "r", [(0, 1), (2, 2), (3, 0)]), jnp.zeros((2, 3), jnp.bfloat16))
        assert (event.kind, event.primitive, event.label) == ("permute", "ppermute", "")
        assert (event.shape, event.dtype, event.nbytes) == ((2, 3), jnp.bfloat16, 12)
        assert event.pattern == Pairs(((0, 1), (2, 2), (3, 0)))
        assert event.messages.tolist() == [[0, 1], [3, 0]]
        assert event.stays.tolist() == [2]
        assert event.sends.tolist() == [1, 0, 0, 1]

    def test_a_bare_ring_is_a_shift(self, traced):
        assert [event.pattern for event in traced(lambda x: shift(shift(x, -1), 2))] == [Shift(3), Shift(2)]

    @pytest.mark.parametrize("pairs", [[(0, 9)], [(0, 1), (2, 1)]])
    def test_pairs_that_are_none(self, traced, pairs):
        with pytest.raises(hccljax.ArgumentError, match="pair"):
            traced(lambda x: lax.ppermute(x, "r", pairs))

    @pytest.mark.parametrize(
        ("fn", "kind", "nbytes"),
        [
            (lambda x: lax.psum(x, "r"), "psum", 96),
            (lambda x: lax.pmax(x, "r"), "pmax", 96),
            (lambda x: lax.all_gather(x, "r"), "all_gather", 96),
            (lambda x: lax.psum_scatter(x, "r"), "reduce_scatter", 24),
            (lambda x: lax.all_to_all(x, "r", 0, 0), "all_to_all", 24),
        ],
    )
    def test_kinds_of_jax_lax(self, traced, fn, kind, nbytes):
        (event,) = traced(fn, jax.ShapeDtypeStruct((4, 6), jnp.float32))
        assert (event.kind, event.nbytes, event.layout.p, event.is_permute) == (kind, nbytes, 4, False)

    @pytest.mark.parametrize(("dtype", "nbytes"), [("bool", 1), ("bfloat16", 2), ("complex64", 8), ("int8", 1)])
    @pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
    def test_shapes_and_dtypes(self, traced, shape, dtype, nbytes):
        (event,) = traced(shift, jax.ShapeDtypeStruct(shape, dtype))
        assert (event.shape, str(event.dtype), event.nbytes) == (shape, dtype, nbytes * int(np.prod(shape)))

    def test_axes_and_ranks_over_two_axes(self, traced):
        def fn(x):
            return Group(("i", "o")).shift(x, 1), lax.ppermute(x, "o", [(0, 2)]), lax.psum(x, ("o", "i"))

        both, outer, everything = traced(fn, jnp.zeros(1), o=3, i=2)
        assert (both.axes, outer.axes, everything.axes) == (("i", "o"), ("o",), ("o", "i"))
        # Rank (o, i) is 2 o + i; over ("i", "o") the order is (0,0) (1,0) (2,0) (0,1) (1,1) (2,1): 0 2 4 1 3 5.
        assert both.messages.tolist() == [[0, 2], [2, 4], [4, 1], [1, 3], [3, 5], [5, 0]]
        assert outer.messages.tolist() == [[0, 4], [1, 5]]
        assert everything.members.tolist() == [[0, 1, 2, 3, 4, 5]]

    def test_arguments_are_pytrees(self, traced):
        tree = {"a": jnp.zeros(2), "b": [jax.ShapeDtypeStruct((3,), jnp.int8), (1.0,)]}
        assert [event.nbytes for event in traced(lambda t: jax.tree.map(shift, t), tree)] == [8, 3, 4]


class TestDependences:
    def test_a_chain_is_one_stream(self, traced):
        schedule = traced(lambda x: shift(shift(shift(x)) + 1))
        assert waits(schedule) == [((), ()), ((0,), ()), ((1,), ())]
        assert [event.stream for event in schedule] == [0, 0, 0]

    def test_two_gradients_are_two_streams(self, traced):
        schedule = traced(lambda a, b: (by("ring")(a), by("ring")(b)), jnp.zeros(8), jnp.zeros(8))
        assert [event.stream for event in schedule] == [0, 0, 1, 1]
        assert [[event.index for event in stream] for stream in schedule.streams] == [[0, 1], [2, 3]]
        assert schedule.steps == 6

    def test_what_comes_after_both_goes_on_with_the_first(self, traced):
        schedule = traced(lambda a, b: lax.psum(shift(a) + shift(b), "r"), jnp.zeros(8), jnp.zeros(8))
        assert [(event.stream, event.needs) for event in schedule] == [(0, ()), (1, ()), (0, (0, 1))]

    def test_a_fork_opens_a_stream(self, traced):
        schedule = traced(lambda x: (lambda y: (shift(y), shift(y, 2)))(shift(x)))
        assert [event.stream for event in schedule] == [0, 0, 1]

    def test_both_directions_of_a_double_ring(self, traced):
        def body(i, halves):
            return shift(halves[0]), shift(halves[1], -1)

        schedule = traced(lambda x: lax.fori_loop(0, 3, body, (x, x)))
        assert [(event.stream, event.carried) for event in schedule] == [(0, (0,)), (1, (1,))]
        assert schedule.steps == 3

    def test_values_that_change_places_in_a_loop(self, traced):
        schedule = traced(lambda x: lax.fori_loop(0, 4, lambda i, ab: (shift(ab[1]), shift(ab[0], 2)), (x, x)))
        assert waits(schedule) == [((), (1,)), ((), (0,))]

    def test_a_value_that_rests_for_a_trip(self, traced):
        schedule = traced(lambda x: lax.fori_loop(0, 4, lambda i, ab: (shift(ab[1]), ab[0]), (x, x)))
        assert waits(schedule) == [((), (0,))]
        assert schedule.steps == 2

    def test_the_first_trip_waits_for_what_came_before_the_loop(self, traced):
        schedule = traced(lambda x: lax.fori_loop(0, 4, lambda i, y: shift(shift(y), 2), shift(x)))
        assert waits(schedule) == [((), ()), ((0,), (2,)), ((1,), ())]

    def test_stacked_outputs_wait_for_every_trip(self, traced):
        schedule = traced(lambda x: shift(lax.scan(lambda c, row: (c, shift(row)), 0, x)[1]), jnp.zeros((5, 2)))
        assert waits(schedule) == [((), ()), ((0,), ())]
        assert schedule.steps == 2

    def test_a_loop_in_a_loop(self, traced):
        def outer(i, y):
            return lax.fori_loop(0, 3, lambda j, z: shift(z), shift(y, 2))

        schedule = traced(lambda x: lax.fori_loop(0, 5, outer, x))
        assert [(event.trips, event.loop) for event in schedule] == [(5, 0), (15, 1)]
        assert [(loop.trips, loop.parent, loop.events) for loop in schedule.loops] == [
            (5, None, range(2)),
            (3, 0, range(1, 2)),
        ]
        assert waits(schedule) == [((), (1,)), ((0,), (1,))]
        assert schedule.steps == schedule.permutes == 20

    def test_a_loop_of_one_trip_is_no_loop(self, traced):
        schedule = traced(lambda x: lax.fori_loop(0, 1, lambda i, y: shift(y), x))
        assert (len(schedule.loops), schedule[0].loop, schedule[0].trips) == (0, None, 1)

    def test_a_counter_is_no_dependence(self, traced):
        def body(i, carry):
            y, seen = carry
            return shift(y) * i, seen + 1

        schedule = traced(lambda x: lax.fori_loop(0, 4, body, (x, 0)))
        assert len(schedule.loops[0].carries) == 1


class TestSchedule:
    def test_its_figures_are_those_of_count(self, traced):
        x = jax.ShapeDtypeStruct((6,), jnp.float32)
        schedule = traced(lambda x: lax.psum(by("tree")(x), "r"))
        expected = Counts(5, 4, 1, 7, schedule.max_bytes_sent)
        assert count(lambda x: lax.psum(by("tree")(x), "r"), x, axis_sizes={"r": 4}) == expected
        assert Counts(
            schedule.steps, schedule.permutes, schedule.exchanges, schedule.rounds, schedule.max_bytes_sent
        ) == expected  # fmt: skip

    def test_nothing(self, traced):
        schedule = traced(lambda x: x + 1)
        assert (len(schedule), schedule.steps, schedule.rounds, schedule.bytes_sent.tolist()) == (0, 0, 0, [0] * 4)
        assert repr(schedule) == (
            "Schedule of 4 ranks (r=4): 0 steps, 0 permutes, 0 exchanges, 0 rounds; a rank sends up to 0 bytes"
        )

    def test_no_axes(self):
        schedule = hccljax.trace(jnp.sin, jnp.zeros(3), axis_sizes={})
        assert schedule.bytes_sent.tolist() == [0]
        assert repr(schedule).startswith("Schedule of 1 rank: 0 steps")

    def test_repr_is_a_few_lines(self, traced):
        text = repr(traced(by("ring"), jax.ShapeDtypeStruct((1 << 18,), jnp.float32), r=32))
        lines = text.splitlines()
        assert lines[0] == (
            "Schedule of 32 ranks (r=32): 62 steps, 62 permutes, 0 exchanges, 62 rounds; "
            "a rank sends up to 2,031,616 bytes"
        )
        assert lines[1].startswith("  0: 31 × permute ring_reduce_scatter Shift(k=1), 32,768 bytes a message, ")
        assert len(lines) == 3
        many = repr(traced(lambda x: [shift(x, k) for k in range(12)]))
        assert many.splitlines()[-1] == "  … 4 events more: see table()"

    def test_the_table_has_a_line_for_each_event(self, traced):
        schedule = traced(by("ring"))
        lines = schedule.table().splitlines()
        assert lines[0].split() == ["kind", "label", "pattern", "trips", "bytes", "stream", "needs", "source"]
        assert [line.split()[:3] for line in lines[1:]] == [
            ["0", "permute", "ring_reduce_scatter"],
            ["1", "permute", "ring_all_gather"],
        ]
        assert "0; 1 of an earlier trip" in lines[2]
        assert schedule.table(limit=1).splitlines()[-1] == "… 1 more"

    def test_rows_are_for_data_frames(self, traced):
        schedule = traced(by("mesh"))
        assert [(row["kind"], row["bytes"], row["needs"], row["ranks"]) for row in schedule.rows()] == [
            ("mesh_exchange", 8, (), "4 ranks"),
            ("mesh_gather", 8, (0,), "4 ranks"),
        ]

    def test_it_is_a_sequence_of_events(self, traced):
        schedule = traced(by("tree"))
        assert isinstance(schedule, Schedule)
        assert list(schedule) == [schedule[k] for k in range(len(schedule))] == list(schedule.events)

    def test_figures_cannot_be_written_over(self, traced):
        with pytest.raises(ValueError, match="read-only"):
            traced(by("ring")).bytes_sent[0] = 0
