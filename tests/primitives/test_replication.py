"""The casts between varying and replicated: they change types only, and only where types are checked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from hccljax.primitives import compat
from hccljax.primitives.replication import invariant, vary

X = np.arange(8.0, dtype=np.float32)


def over_mesh(function, x, out_specs, checked=True, sizes=(8,), names=("rank",), in_specs=None):
    mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
    in_specs = PartitionSpec(names) if in_specs is None else in_specs
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=checked))(x)


def test_a_value_that_is_the_same_everywhere_may_be_typed_as_replicated():
    def body(x):
        total = lax.all_gather(x, "rank").sum()
        assert compat.varying(total) == {"rank"}
        same = invariant(total, ("rank",))
        assert compat.varying(same) == frozenset()
        return same

    assert over_mesh(body, X, PartitionSpec()) == X.sum()


def test_without_the_cast_jax_refuses():
    with pytest.raises(ValueError, match="rank"):
        over_mesh(lambda x: lax.all_gather(x, "rank").sum(), X, PartitionSpec())


def test_casting_back_and_forth_changes_no_value():
    def body(x):
        again = vary(invariant(x, ("rank",)), ("rank",))
        assert compat.varying(again) == {"rank"}
        return again

    np.testing.assert_array_equal(over_mesh(body, X, PartitionSpec("rank")), X)


def test_the_casts_leave_alone_what_is_typed_already():
    seen = []

    def body(x):
        replicated = jnp.float32(2)
        seen.extend([invariant(replicated, ("rank",)) is replicated, vary(x, ("rank",)) is x])
        return x + vary(replicated, ("rank",))

    np.testing.assert_array_equal(over_mesh(body, X, PartitionSpec("rank")), X + 2)
    assert seen == [True, True]


def test_one_axis_of_two_is_cast_by_itself():
    def body(x):
        total = lax.all_gather(x, "b").sum()
        assert compat.varying(total) == {"a", "b"}
        same = invariant(total, ("b",))
        assert compat.varying(same) == {"a"}
        return same[None]

    out = over_mesh(body, X, PartitionSpec("a"), sizes=(2, 4), names=("a", "b"))
    np.testing.assert_array_equal(out, X.reshape(2, 4).sum(1))


def test_where_types_are_not_checked_the_casts_are_nothing():
    def body(x):
        assert invariant(x, ("rank",)) is x
        assert vary(x, ("rank",)) is x
        return x

    np.testing.assert_array_equal(over_mesh(body, X, PartitionSpec("rank"), checked=False), X)
    np.testing.assert_array_equal(jax.vmap(body, axis_name="rank")(X), X)


def test_the_cast_is_mapped_by_vmap_and_costs_nothing():
    x = np.arange(24.0, dtype=np.float32).reshape(8, 3)
    cast = jax.vmap(lambda x: invariant(x, ("rank",)))
    mesh = jax.make_mesh((8,), ("rank",), axis_types=(AxisType.Auto,))
    body = lambda x: cast(lax.all_gather(x[0], "rank").sum(0))  # noqa: E731
    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("rank"), out_specs=PartitionSpec()))
    np.testing.assert_array_equal(program(x), x.sum(0))
    text = program.lower(x).as_text()
    assert text.count('"stablehlo.all_') == 1
    assert "collective_permute" not in text


@pytest.mark.parametrize(("checked", "expected"), [(True, True), (False, False)])
def test_whether_types_are_checked_is_seen_from_inside(checked, expected):
    seen = []

    def body(x):
        seen.append(compat.is_checked("rank"))
        return x

    over_mesh(body, X, PartitionSpec("rank"), checked=checked)
    assert set(seen) == {expected}
    seen.clear()
    jax.vmap(body, axis_name="rank")(X)
    assert set(seen) == {False}


def test_the_mesh_has_an_order_and_vmap_has_none():
    seen = []

    def body(x):
        seen.append((compat.mesh_order(("b", "a")), compat.mesh_order(("a", "b")), compat.mesh_order(("b", "other"))))
        return x

    over_mesh(body, X, PartitionSpec(("a", "b")), sizes=(2, 4), names=("a", "b"))
    assert set(seen) == {(("a", "b"), ("a", "b"), ("b", "other"))}
    assert compat.mesh_order(("b", "a")) == ("b", "a")
