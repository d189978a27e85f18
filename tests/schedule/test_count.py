"""Counts against figures worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from hccljax.algorithm.base import registered, run
from hccljax.algorithm.ring import ring
from hccljax.errors import ArgumentError
from hccljax.group import Group
from hccljax.primitives.call import Direction, linear_call, reduce_call
from hccljax.reduction import reduction
from hccljax.schedule import Counts, count

X = jax.ShapeDtypeStruct((6,), jnp.float32)  # 24 bytes


def shift(x, p=4, k=1, axis="r"):
    return lax.ppermute(x, axis, [(r, (r + k) % p) for r in range(p)])


def counts(fn, *args, **axis_sizes):
    return count(fn, *(args or (X,)), axis_sizes=axis_sizes or {"r": 4})


def ring_of(operator, group=None):
    return lambda x: run(ring, operator, x, group or Group("r"), reduction("sum"))


def with_jvp(fn):
    wrapped = jax.custom_jvp(fn)
    wrapped.defjvp(lambda primals, tangents: (fn(*primals), fn(*tangents)))
    return wrapped


def with_vjp(fn):
    wrapped = jax.custom_vjp(fn)
    wrapped.defvjp(lambda x: (fn(x), None), lambda _, cotangent: (cotangent,))
    return wrapped


class TestRing:
    @pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 64])
    def test_all_reduce_takes_two_phases_of_p_minus_1(self, p):
        x = jax.ShapeDtypeStruct((p * 8,), jnp.float32)
        expected = 2 * (p - 1)
        assert counts(ring_of("all_reduce"), x, r=p) == Counts(
            steps=expected, permutes=expected, exchanges=0, rounds=expected, bytes_sent=expected * 32
        )

    def test_padding_is_sent_too(self):
        assert counts(ring_of("all_reduce")).bytes_sent == 6 * 8  # 6 elements in 4 blocks of 2

    def test_scatter_along_a_chain_of_ranks(self):
        blocks = jax.ShapeDtypeStruct((4, 2), jnp.float32)
        # Rank 3 only receives; rank 0 sends in each of the 3 steps.
        assert counts(ring_of("scatter"), blocks) == Counts(3, 3, 0, 3, 24)

    def test_a_thousand_ranks(self):
        assert counts(ring_of("all_reduce"), r=1024).steps == 2046


class TestChains:
    def test_dependent_permutes_add_up(self):
        assert counts(lambda x: shift(shift(shift(x)) + 1)) == Counts(3, 3, 0, 3, 72)

    def test_independent_ones_through_the_same_ports_are_one_step_and_two_rounds(self):
        assert counts(lambda x: shift(x, k=1) + shift(x, k=2)) == Counts(1, 2, 0, 2, 48)

    def test_independent_ones_through_different_ports_are_one_round(self):
        def fn(x):
            return lax.ppermute(x, "r", [(0, 1)]), lax.ppermute(x, "r", [(2, 3)])

        assert counts(fn) == Counts(1, 2, 0, 1, 24)

    def test_a_rank_sends_and_receives_at_the_same_time(self):
        def fn(x):
            return lax.ppermute(x, "r", [(0, 1)]), lax.ppermute(x, "r", [(1, 2)])

        assert counts(fn).rounds == 1

    def test_a_rank_that_receives_nothing_does_not_wait(self):
        # The second starts at rank 2, which has no part in the first; the jaxpr has a chain all the same.
        def fn(x):
            return lax.ppermute(lax.ppermute(x, "r", [(0, 1)]), "r", [(2, 3)])

        assert counts(fn) == Counts(2, 2, 0, 1, 24)

    def test_a_rank_waits_for_what_it_combines(self):
        def fn(x):
            return lax.ppermute(x + lax.ppermute(x, "r", [(0, 1)]), "r", [(1, 2)])

        assert counts(fn).rounds == 2

    def test_two_children_one_after_the_other(self):
        def fn(x):
            return x + lax.ppermute(x, "r", [(1, 0)]) + lax.ppermute(x, "r", [(2, 0)])

        assert counts(fn) == Counts(1, 2, 0, 2, 24)

    def test_what_stays_costs_nothing(self):
        def fn(x):
            return lax.ppermute(x, "r", [(0, 0), (1, 2)])

        assert counts(fn) == Counts(1, 1, 0, 1, 24)
        assert counts(lambda x: lax.ppermute(x, "r", [(1, 1)])) == Counts(1, 1, 0, 0, 0)

    def test_nothing(self):
        assert counts(lambda x: x + lax.axis_index("r")) == Counts(0, 0, 0, 0, 0)


class TestDeadCode:
    def test_an_unused_permute_does_not_count(self):
        def fn(x):
            shift(shift(x))
            return shift(x)

        assert counts(fn) == Counts(1, 1, 0, 1, 24)

    def test_unused_outputs_of_a_jitted_function(self):
        assert counts(lambda x: jax.jit(lambda y: (shift(y), shift(y, k=2)))(x)[1]).permutes == 1

    def test_a_carry_that_nobody_reads(self):
        def body(carry, _):
            used, unused = carry
            return (shift(used), shift(unused, k=2)), None

        assert counts(lambda x: lax.scan(body, (x, x), None, length=3)[0][0]) == Counts(3, 3, 0, 3, 72)

    def test_a_carry_that_a_later_trip_reads(self):
        def body(carry, _):
            used, feeding = carry
            return (used + feeding, shift(feeding)), None

        assert counts(lambda x: lax.scan(body, (x, x), None, length=3)[0][0]).permutes == 3

    def test_unused_stacked_outputs(self):
        def body(carry, _):
            return carry + 1, shift(carry)

        assert counts(lambda x: lax.scan(body, x, None, length=3)[0]).permutes == 0

    def test_an_operand_that_no_branch_reads(self):
        def fn(x):
            return lax.cond(x[0] > 0, lambda a, b: a + 1, lambda a, b: a - 1, shift(x), shift(x, k=2))

        assert counts(fn).permutes == 1

    def test_what_is_printed_is_used(self):
        def fn(x):
            jax.debug.print("{}", shift(x))
            return x

        assert counts(fn).permutes == 1


class TestControlFlow:
    def test_scan_multiplies(self):
        def body(carry, _):
            return shift(shift(carry)), None

        assert counts(lambda x: lax.scan(body, x, None, length=5)[0]) == Counts(10, 10, 0, 10, 240)

    def test_independent_trips_are_one_step(self):
        xs = jax.ShapeDtypeStruct((5, 6), jnp.float32)
        assert counts(lambda x: lax.map(shift, x), xs) == Counts(1, 5, 0, 5, 120)

    def test_static_fori_loop(self):
        assert counts(lambda x: lax.fori_loop(0, 7, lambda i, y: shift(y), x)).steps == 7

    def test_no_trips(self):
        assert counts(lambda x: lax.fori_loop(0, 0, lambda i, y: shift(y), x)).permutes == 0

    def test_a_long_silent_loop_is_not_walked_to_its_end(self):
        assert counts(lambda x: shift(lax.fori_loop(0, 10**9, lambda i, y: y * 2, shift(x)))).steps == 2

    def test_nested_loops_multiply(self):
        def outer(i, y):
            return lax.fori_loop(0, 3, lambda j, z: shift(z), y)

        assert counts(lambda x: lax.fori_loop(0, 4, outer, x)).permutes == 12

    def test_a_while_loop_that_communicates_is_refused(self):
        with pytest.raises(ArgumentError, match=r"'while' contains the communication 'ppermute'"):
            counts(lambda x: lax.while_loop(lambda y: y[0] < 9, shift, x))

    def test_a_while_loop_that_is_silent_passes_its_operands_on(self):
        assert counts(lambda x: shift(lax.while_loop(lambda y: y[0] < 9, lambda y: y + 1, shift(x)))).steps == 2

    def test_branches_that_communicate_alike(self):
        def fn(x):
            return lax.cond(x[0] > 0, lambda y: shift(y + 1), lambda y: shift(y) - 1, shift(x))

        assert counts(fn) == Counts(2, 2, 0, 2, 48)

    @pytest.mark.parametrize("other", [lambda y: y, lambda y: shift(y, k=2), lambda y: shift(shift(y))])
    def test_branches_that_communicate_differently_are_refused(self, other):
        with pytest.raises(ArgumentError, match=r"'cond'.*do not communicate alike.*'ppermute'"):
            counts(lambda x: lax.cond(x[0] > 0, shift, other, x))

    def test_silent_branches_wait_for_the_predicate(self):
        assert counts(lambda x: shift(lax.cond(shift(x)[0] > 0, jnp.sin, jnp.cos, x))).steps == 2

    @pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, with_jvp, with_vjp])
    def test_calls_are_looked_into(self, wrap):
        assert counts(lambda x: wrap(lambda y: shift(shift(y)))(x)).steps == 2

    def test_values_of_a_call_keep_their_own_times(self):
        assert counts(lambda x: shift(jax.jit(lambda a, b: (a + 1, b + 1))(x, shift(x))[0])).steps == 1


class TestOneShot:
    def blocks(self, p=4):
        return jax.ShapeDtypeStruct((p, 6), jnp.float32)

    def test_all_to_all_sends_a_block_to_every_other_rank(self):
        assert counts(lambda x: lax.all_to_all(x, "r", 0, 0), self.blocks()) == Counts(1, 0, 1, 3, 72)

    def test_all_gather_sends_everything_to_every_other_rank(self):
        assert counts(lambda x: lax.all_gather(x, "r")) == Counts(1, 0, 1, 3, 72)

    def test_psum_scatter(self):
        assert counts(lambda x: lax.psum_scatter(x, "r"), self.blocks()) == Counts(1, 0, 1, 3, 72)

    @pytest.mark.parametrize("reduce", [lax.psum, lax.pmax, lax.pmin, lax.pmean])
    def test_one_step_of_the_whole_operand(self, reduce):
        assert counts(lambda x: reduce(x, "r")) == Counts(1, 0, 1, 3, 72)

    def test_a_psum_of_two_arrays_is_counted_once_or_once_each(self):
        result = counts(lambda x: lax.psum((x, x * 2), "r"))
        assert (result.steps, result.bytes_sent) == (1, 144)

    def test_groups_of_two(self):
        groups = [[0, 2], [1, 3]]
        assert counts(lambda x: lax.all_gather(x, "r", axis_index_groups=groups)) == Counts(1, 0, 1, 1, 24)

    def test_the_mesh_primitives(self):
        group = Group("r", [[0, 2], [3, 1]])
        assert counts(Group("r").mesh_exchange, self.blocks()) == Counts(1, 0, 1, 3, 72)
        assert counts(Group("r").mesh_gather) == Counts(1, 0, 1, 3, 72)
        assert counts(group.mesh_exchange, self.blocks(2)) == Counts(1, 0, 1, 1, 24)

    def test_a_chain_with_permutes(self):
        assert counts(lambda x: shift(lax.psum(shift(x), "r"))) == Counts(3, 2, 1, 5, 120)

    def test_axis_size_is_not_a_communication(self):
        assert counts(lambda x: x * lax.psum(1, "r")) == Counts(0, 0, 0, 0, 0)


class TestAxes:
    def test_a_permute_over_one_axis_of_two(self):
        assert counts(lambda x: shift(x, 2, axis="i"), o=3, i=2) == Counts(1, 1, 0, 1, 24)

    def test_different_axes_share_the_ports_of_a_rank(self):
        def fn(x):
            return shift(x, 3, axis="o"), shift(x, 2, axis="i")

        assert counts(fn, o=3, i=2) == Counts(1, 2, 0, 2, 48)

    def test_a_ring_over_both(self):
        result = counts(ring_of("all_reduce", Group(("o", "i"))), o=3, i=2)
        assert result == Counts(10, 10, 0, 10, 40)

    @pytest.mark.parametrize(
        ("axes", "pairs", "rounds"),
        [
            # On axes o = 3, i = 2, rank (o, i) is 2 o + i over ("o", "i") and o + 3 i over ("i", "o").
            (("o", "i"), [(0, 1)], 2),  # (0, 0) → (0, 1), as the permute before it: one port, two rounds
            (("i", "o"), [(0, 1)], 2),  # (0, 0) → (1, 0): rank 0 sends both
            (("i", "o"), [(1, 2)], 1),  # (1, 0) → (2, 0): other ranks
            (("o", "i"), [(1, 2)], 1),  # (0, 1) → (1, 0): rank (0, 1) sends while it receives
            (("i", "o"), [(1, 3)], 2),  # (1, 0) → (0, 1): the destination is taken
        ],
    )
    def test_tuples_are_numbered_in_the_order_given(self, axes, pairs, rounds):
        def fn(x):
            return Group(("o", "i")).permute(x, [(0, 1)]), Group(axes).permute(x, pairs)

        assert counts(fn, o=3, i=2).rounds == rounds

    def test_groups_of_a_permute_run_at_the_same_time(self):
        group = Group("r", [[0, 1], [3, 2]])
        assert counts(ring_of("all_reduce", group)) == Counts(2, 2, 0, 2, 24)

    def test_what_vmap_maps_inside_stays_on_the_device(self):
        xs = jax.ShapeDtypeStruct((2, 6), jnp.float32)
        assert counts(jax.vmap(ring_of("all_reduce"), axis_name="r"), xs, other=3).permutes == 0

    def test_a_batch_travels_together(self):
        xs = jax.ShapeDtypeStruct((5, 6), jnp.float32)
        assert counts(jax.vmap(shift), xs) == Counts(1, 1, 0, 1, 120)

    @pytest.mark.parametrize("check_vma", [True, False])
    def test_shard_map_inside_brings_its_own_axes(self, check_vma):
        mesh = AbstractMesh((2, 4), ("o", "i"), axis_types=(AxisType.Auto,) * 2)
        spec = PartitionSpec(("o", "i"))
        fn = jax.shard_map(
            ring_of("all_reduce", Group("i")), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
        )
        x = jax.ShapeDtypeStruct((64,), jnp.float32)
        assert count(jax.jit(fn), x, axis_sizes={}) == Counts(6, 6, 0, 6, 48)

    def test_checked_psum_counts(self):
        mesh = AbstractMesh((4,), ("i",), axis_types=(AxisType.Auto,))
        fn = jax.shard_map(
            lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec()
        )
        assert count(fn, jax.ShapeDtypeStruct((24,), jnp.float32), axis_sizes={}).exchanges == 1

    def test_two_sizes_of_one_axis_are_refused(self):
        mesh = AbstractMesh((4,), ("i",), axis_types=(AxisType.Auto,))
        spec = PartitionSpec("i")
        fn = jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)
        with pytest.raises(ArgumentError, match="axis 'i' has size 4"):
            count(fn, jax.ShapeDtypeStruct((24,), jnp.float32), axis_sizes={"i": 2})

    @pytest.mark.parametrize("sizes", [{"r": 0}, {"r": "4"}, [("r", 4)]])
    def test_bad_axis_sizes(self, sizes):
        with pytest.raises(ArgumentError, match="axis_sizes"):
            count(shift, X, axis_sizes=sizes)


class TestCollectiveCalls:
    def test_a_linear_call_is_its_forward_function(self):
        direction = Direction(ring_of("all_reduce"), ("r",))
        assert counts(lambda x: linear_call(x, direction, direction, "all_reduce")).steps == 6

    def test_a_call_in_a_loop_is_traced_once(self):
        traces = []

        def fun(x):
            traces.append(x)
            return shift(x)

        direction = Direction(fun, ("r",))

        def fn(x):
            return lax.fori_loop(0, 50, lambda i, y: linear_call(y, direction, direction, "shift"), x)

        assert counts(fn).steps == 50
        assert len(traces) < 10

    def test_a_reduce_call_is_its_forward_function(self):
        direction = Direction(ring_of("all_reduce"), ("r",))
        assert counts(lambda x: reduce_call(x, direction, None, "all_reduce")).steps == 6

    def test_its_transpose_communicates_backwards(self):
        direction = Direction(ring_of("all_reduce"), ("r",))

        def loss(x):
            return (linear_call(x, direction, direction, "all_reduce") ** 2).sum()

        assert counts(jax.grad(loss)).steps == 12


class TestBytes:
    @pytest.mark.parametrize(("dtype", "nbytes"), [("int8", 6), ("bfloat16", 12), ("float32", 24), ("bool", 6)])
    def test_payload_of_each_dtype(self, dtype, nbytes):
        assert counts(shift, jax.ShapeDtypeStruct((6,), dtype)).bytes_sent == nbytes

    def test_the_busiest_rank_counts(self):
        def fn(x):
            return [lax.ppermute(x, "r", [(0, r)]) for r in (1, 2, 3)] + [lax.ppermute(x, "r", [(3, 0)])]

        assert counts(fn) == Counts(1, 4, 0, 3, 72)

    def test_an_empty_array(self):
        assert counts(shift, jax.ShapeDtypeStruct((0,), jnp.float32)) == Counts(1, 1, 0, 1, 0)

    def test_pytrees_and_arrays_as_arguments(self):
        fn = lambda tree: {"a": shift(tree["a"]), "b": shift(tree["b"][0])}  # noqa: E731
        assert counts(fn, {"a": np.zeros(6, np.float32), "b": [X]}).bytes_sent == 48


@pytest.mark.parametrize("operator", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
@pytest.mark.parametrize("p", [2, 5, 8])
def test_formulas_of_the_ring(operator, p):
    shape = {"all_gather": (8,), "reduce_scatter": (p, 8)}.get(operator, (p * 8,))
    result = counts(ring_of(operator), jax.ShapeDtypeStruct(shape, jnp.float32), r=p)
    algorithm, nbytes = registered("ring"), p * 32
    assert result.steps == algorithm.steps(operator, p, nbytes)
    assert result.bytes_sent == algorithm.bytes_sent(operator, p, nbytes)
