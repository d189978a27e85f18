"""The permute primitive: partial permutations anywhere, axes in the order given, one collective-permute, compact."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import hccljax
from hccljax import ArgumentError, Group
from hccljax.layout import Pairs, Shift, Xor, whole
from hccljax.partition import listed
from hccljax.primitives.permute import permute

GRID = np.arange(1, 2 * 4 * 3 + 1, dtype=np.int32).reshape(2, 4, 3)
PATTERNS = {
    "shift": Shift(3),
    "back": Shift(-1),
    "exchange": Xor(2),
    "partners-missing": Xor(5),
    "partial": Pairs(((0, 5), (5, 1), (7, 0))),
    "one": Pairs(((6, 6),)),
    "empty": Pairs(()),
    "all": Pairs(tuple((r, (3 * r + 1) % 8) for r in range(8))),
}
LAYOUTS = {
    "whole": whole(8),
    "turned": listed(((5, 2, 7, 0, 3, 6, 1, 4),)),
    "groups": listed(((5, 2, 7, 0), (3, 6, 1, 4))),
}


def sent(flat, layout, pattern):
    """flat [n, …] → out[destination] = flat[source], zeros elsewhere; written from the definition of each pattern."""
    out, p = np.zeros_like(flat), layout.p
    for members in layout.groups:
        for r in range(p):
            if isinstance(pattern, Shift):
                out[members[(r + pattern.k) % p]] = flat[members[r]]
            elif isinstance(pattern, Xor) and r ^ pattern.mask < p:
                out[members[r ^ pattern.mask]] = flat[members[r]]
        for s, d in pattern.explicit if isinstance(pattern, Pairs) else ():
            out[members[d]] = flat[members[s]]
    return out


CASES = [(pattern, "whole") for pattern in PATTERNS]
CASES += [("shift", "turned"), ("partial", "turned"), ("back", "groups"), ("partners-missing", "groups")]


@pytest.mark.parametrize("axes", [("a", "b"), ("b", "a")])
def test_ranks_of_a_tuple_of_axes_are_numbered_in_the_order_given(on_grid, axes):
    # One program holds every case: compiling them one by one would take most of the time.
    def body(x):
        return [permute(x, axes=axes, layout=LAYOUTS[n], pattern=PATTERNS[p], label="test") for p, n in CASES]

    ordered = GRID if axes == ("a", "b") else GRID.swapaxes(0, 1)
    for (pattern, layout), out in zip(CASES, on_grid(body, GRID), strict=True):
        expected = sent(ordered.reshape(8, 3), LAYOUTS[layout], PATTERNS[pattern]).reshape(ordered.shape)
        expected = expected if axes == ("a", "b") else expected.swapaxes(0, 1)
        np.testing.assert_array_equal(out, expected, err_msg=f"{pattern} {layout}")


@pytest.mark.parametrize("axis", ["a", "b"])
def test_one_axis_of_two_leaves_the_other_alone(on_grid, axis):
    size = {"a": 2, "b": 4}[axis]
    out = on_grid(lambda x: permute(x, axes=(axis,), layout=whole(size), pattern=Pairs(((0, 1),)), label="test"), GRID)
    expected = np.zeros_like(GRID)
    if axis == "a":
        expected[1] = GRID[0]
    else:
        expected[:, 1] = GRID[:, 0]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_transpose_sends_everything_back(pattern):
    pattern, rows = PATTERNS[pattern], np.arange(1.0, 25.0, dtype=np.float32).reshape(8, 3)
    send = lambda x: permute(x, axes=("rank",), layout=whole(8), pattern=pattern, label="test")  # noqa: E731
    mapped = jax.vmap(send, axis_name="rank")
    (back,) = jax.linear_transpose(mapped, rows)(rows)
    np.testing.assert_array_equal(back, sent(rows, whole(8), Pairs(tuple((d, s) for s, d in pattern.pairs(8)))))
    assert pattern.inverse().inverse() == pattern
    assert sorted(pattern.inverse().pairs(8).tolist()) == sorted([d, s] for s, d in pattern.pairs(8).tolist())


def test_the_transpose_is_one_permute_of_the_inverse_pattern():
    send = lambda x: permute(x, axes=("rank",), layout=whole(8), pattern=Shift(3), label="test")  # noqa: E731
    # Bound to an axis of a jaxpr, so that the permute is not yet a roll.
    back = lambda x: jax.linear_transpose(send, x)(x)[0]  # noqa: E731
    traced = jax.make_jaxpr(back, axis_env=[("rank", 8)])(jnp.ones(3))
    (equation,) = traced.jaxpr.eqns
    assert equation.primitive.name == "hccl_permute"
    assert equation.params["pattern"] == Shift(-3)


@pytest.mark.parametrize("axes", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(("pattern", "layout"), [("shift", "whole"), ("exchange", "groups"), ("partial", "turned")])
def test_a_permute_lowers_to_one_collective_permute(axes, pattern, layout):
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    spec = PartitionSpec("a", "b")
    body = lambda x: permute(x, axes=axes, layout=LAYOUTS[layout], pattern=PATTERNS[pattern], label="x")  # noqa: E731
    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)).lower(GRID).as_text()
    (table,) = re.findall(r"stablehlo.collective_permute.*?source_target_pairs = dense<\[\[(.+?)\]\]>", program)
    devices = np.arange(8).reshape(2, 4)
    numbers = devices.reshape(-1) if axes == ("a", "b") else devices.T.reshape(-1)
    expected = {(numbers[s], numbers[d]) for s, d in LAYOUTS[layout].expand(PATTERNS[pattern])}
    assert {tuple(map(int, pair.split(", "))) for pair in table.split("], [")} == expected
    assert not re.findall(r"stablehlo\.all_", program)


@pytest.mark.parametrize("pairs", [[(0, 1), (0, 2)], [(0, 1), (2, 1)], [(3, 3), (3, 3)], [(8, 0)], [(0, -1)]])
def test_repeated_and_missing_ranks_are_refused_under_vmap_too(pairs):
    with pytest.raises(ArgumentError, match=r"same (source|destination)|not a rank"):
        jax.vmap(lambda x: Group("rank").permute(x, pairs), axis_name="rank")(jnp.ones(8))


def test_a_permute_of_something_not_mapped_gives_every_rank_its_share():
    out = jax.vmap(lambda _: Group("rank").permute(jnp.float32(3), [(0, 2), (1, 0)]), axis_name="rank")(jnp.ones(4))
    np.testing.assert_array_equal(out, [3, 0, 3, 0])


def test_a_batch_axis_inside_travels_along():
    x = np.arange(24).reshape(4, 2, 3)
    mapped = jax.vmap(jax.vmap(lambda x: Group("rank").shift(x)), axis_name="rank")
    np.testing.assert_array_equal(mapped(x), np.roll(x, 1, 0))
    outside = jax.vmap(jax.vmap(lambda x: Group("rank").shift(x), axis_name="rank"), in_axes=1, out_axes=1)
    np.testing.assert_array_equal(outside(x), np.roll(x, 1, 0))


def _traced(function, p, *shape):
    return jax.make_jaxpr(function, axis_env=[("rank", p)])(jax.ShapeDtypeStruct(shape, "float32"))


def test_a_step_is_printed_and_kept_in_a_few_characters_at_any_number_of_ranks():
    def three(x):
        x = Group("rank").shift(x, 1)
        x = Group("rank").exchange(x, 64)
        return Group("rank").permute(x, [(r, 1023 - r) for r in range(1024)])

    traced = _traced(three, 1024, 4)
    sent = [equation for equation in traced.jaxpr.eqns if equation.primitive.name == "hccl_permute"]
    shift, exchange, explicit = (equation.params["pattern"] for equation in sent)
    assert (repr(shift), repr(exchange)) == ("Shift(k=1)", "Xor(mask=64)")
    assert repr(explicit) == "Pairs(0→1023, 1→1022, 2→1021, 3→1020, … 1024 in all)"
    assert len(str(traced)) < 1000


def test_a_pairwise_exchange_of_1024_ranks_is_traced_in_compact_steps():
    group = lambda x: hccljax.algorithm.registered("pairwise").all_to_all(x, Group("rank"))  # noqa: E731
    equations = [one for one in _traced(group, 1024, 1024, 1).jaxpr.eqns if one.primitive.name == "hccl_permute"]
    assert [one.params["pattern"] for one in equations] == [Shift(k) for k in range(1, 1024)]
    assert len({id(one.params["layout"]) for one in equations}) == 1
    assert all(one.params["label"] == "pairwise" for one in equations)
