"""check_in_sync finds every bit that differs between ranks, and names the leaf and the ranks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import hccljax
from hccljax.training import check_in_sync
from hccljax.training.checksum import checksum


def report_of(tree, axis_name="data", **options):
    """The report of virtual ranks, one for each row of the leaves."""
    options = {"out_axes": None} | options
    return jax.vmap(lambda t: check_in_sync(t, axis_name), axis_name="data", **options)(tree)


def copies(leaf, p=4):
    return np.stack([np.asarray(leaf)] * p)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)


def on_devices(mesh, spec, shape, change):
    """A global array of ones whose parts are what change(ones, device number) makes of them."""
    sharding = NamedSharding(mesh, spec)
    parts = []
    for number, device in enumerate(mesh.devices.flat):
        ones = np.ones(sharding.shard_shape(shape), np.float32)
        parts.append(jax.device_put(change(ones, number), device))
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def test_ranks_that_differ_are_named_with_their_leaf(on_ranks):
    tree = {"layers": [{"w": copies(np.ones((3, 2), np.float32), 8)}, None], "step": np.zeros(8, np.int32)}
    report = on_ranks(lambda _, t: check_in_sync(t, "data"), replicated=True)(0.0, tree)
    assert report.in_sync
    report.check()
    tree["layers"][0]["w"][5, 2, 1] = np.nextafter(np.float32(1), np.float32(2))
    report = on_ranks(lambda _, t: check_in_sync(t, "data"), replicated=True)(0.0, tree)
    assert not report.in_sync
    assert report.differs["layers"][0]["w"].tolist() == [rank == 5 for rank in range(8)]
    assert not report.differs["step"].any()
    with pytest.raises(hccljax.OutOfSyncError, match=r"^\['layers'\]\[0\]\['w'\]: rank 5: other bits than on most"):
        report.check()


def test_parameters_typed_as_replicated_are_compared_all_the_same(in_mode):
    report = in_mode("checked", lambda w, _: check_in_sync({"w": w}, "data"), {"data": 8}, True)(
        np.ones(3, np.float32), np.zeros(8)
    )
    assert report.in_sync


def test_training_stays_in_sync_and_a_step_without_a_reduction_does_not(in_mode, linear):
    loss, params, x, y = linear

    def step(params, x, y):
        own = jax.grad(loss)(hccljax.as_varying(params, "data"), x, y)
        reduced = hccljax.sync_gradients(own, "data", algorithm="mesh")
        return [check_in_sync(jax.tree.map(jnp.subtract, params, grads), "data") for grads in (reduced, own)]

    good, bad = in_mode("checked", step, {"data": 8}, True)(params, x, y)
    good.check()
    with pytest.raises(hccljax.OutOfSyncError, match=r"\['w'\]: ranks "):
        bad.check()


DTYPES = [
    "float32",
    "float16",
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    "int8",
    "uint16",
    "int32",
    "bool",
    "complex64",
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_every_dtype_counts(dtype):
    # uint8 words seen as the dtype; of a bool and of 4-bit integers only some bits mean anything.
    leaf = np.frombuffer(np.random.default_rng(0).bytes(16), np.uint8)
    leaf = leaf % 2 == 0 if dtype == "bool" else leaf.view(dtype)
    same = copies(leaf, 9)
    bits = same.view(np.uint8).reshape(9, -1)
    for row in range(1, 9):
        bits[row, row] ^= 1 if dtype == "bool" else 1 << row - 1
    report = report_of(same)
    assert report.differs.tolist() == [False] + [True] * 8


def test_four_bit_integers_and_keys_and_empty_arrays():
    keys = jax.vmap(jax.random.key)(jnp.array([1, 1, 2, 1]))
    four = jnp.array([3, 3, -3, 3], jnp.int4)
    report = report_of({"k": keys, "n": four, "e": jnp.zeros((4, 0, 2))})
    for name in ("k", "n"):
        assert report.differs[name].tolist() == [False, False, True, False]
    assert not report.differs["e"].any()


def test_sixty_four_bits_count():
    with jax.enable_x64(True):
        x = jnp.ones((4, 2), jnp.float64).at[2, 1].set(1 + 2.0**-50)
        z = jnp.ones((4, 2), jnp.complex128).at[1, 1].set(1 + 2.0**-50j)
        report = report_of({"x": x, "z": z})
    assert report.differs["x"].tolist() == [False, False, True, False]
    assert report.differs["z"].tolist() == [False, True, False, False]


def test_nan_equals_itself_and_minus_zero_is_not_zero():
    x = copies(np.array([np.nan, 0.0, np.inf], np.float32))
    report_of(x).check()
    x[1, 1] = -0.0
    assert report_of(x).differs.tolist() == [False, True, False, False]


def test_elements_that_have_changed_places_show():
    x = copies(np.arange(100, dtype=np.float32))
    x[3, [10, 20]] = x[3, [20, 10]]
    assert report_of(x).differs.tolist() == [False, False, False, True]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
@settings(max_examples=30, deadline=None)
def test_checksums_differ_where_arrays_do(values, data):
    one = np.array(values, np.int32)
    other = np.array(data.draw(st.permutations(values)), np.int32)
    same = bool((checksum(jnp.asarray(one)) == checksum(jnp.asarray(other))).all())
    assert same is bool((one == other).all())


def test_most_ranks_are_right_even_where_rank_0_is_not():
    assert report_of(np.array([7, 1, 1, 2], np.float32)).differs.tolist() == [True, False, False, True]
    assert report_of(np.array([1, 2, 1, 2], np.float32)).differs.tolist() == [False, True, False, True]


def test_communicators_of_a_group_are_compared_each_in_itself():
    group = hccljax.Group("data", groups=[[0, 1, 2], [3, 4, 5]])
    report = report_of(np.array([1, 1, 1, 2, 2, 3], np.float32), group, out_axes=0)
    assert report.differs.tolist() == [[False] * 3] * 3 + [[False, False, True]] * 3


def test_an_error_names_a_few_leaves_and_ranks_and_counts_the_others():
    tree = {f"w{i}": np.arange(32) // 2 * (np.arange(32) > 16) for i in range(9)}
    with pytest.raises(hccljax.OutOfSyncError) as caught:
        report_of(tree).check()
    assert "ranks 17, 18, 19, 20, 21 and 10 more" in str(caught.value)
    assert "and 4 more leaves" in str(caught.value)
    assert "expected" in str(caught.value)


def test_an_empty_tree_is_in_sync():
    report = report_of({}, axis_size=4)
    assert report.in_sync
    report.check()
    assert check_in_sync({}) is None


def test_only_checksums_travel():
    from hccljax.schedule import trace

    tree = {"w": jax.ShapeDtypeStruct((1000,), "float32"), "b": jax.ShapeDtypeStruct((10,), "bfloat16")}
    schedule = trace(lambda t: check_in_sync(t, "data"), tree, axis_sizes={"data": 8})
    assert max(schedule.bytes_sent) <= 8 * 2 * 8


def test_an_axis_that_is_not_mapped_is_refused():
    with pytest.raises(hccljax.AxisError, match="data"):
        check_in_sync(jnp.ones(3), "data")


# On the host


def test_devices_that_hold_the_same_pass(mesh):
    replicated = on_devices(mesh, PartitionSpec(), (3,), lambda ones, number: ones)
    sharded = on_devices(mesh, PartitionSpec("model"), (4, 2), lambda ones, number: ones * (number % 2))
    assert check_in_sync({"r": replicated, "s": sharded, "h": np.ones(3), "one": jnp.ones(2), "n": 3}) is None


def test_devices_that_differ_are_named(mesh):
    bad = on_devices(mesh, PartitionSpec(), (3,), lambda ones, number: ones * (1 + (number == 6)))
    good = on_devices(mesh, PartitionSpec(), (2,), lambda ones, number: ones)
    with pytest.raises(hccljax.OutOfSyncError, match=r"^\['bad'\]: device 6: other bits") as caught:
        check_in_sync({"bad": bad, "good": good})
    assert "good" not in str(caught.value)


def test_only_holders_of_the_same_part_are_compared(mesh):
    # Sharded over "model": even devices hold one half, odd ones the other.
    def change(ones, number):
        return ones * (5 if number == 3 else number % 2)

    with pytest.raises(hccljax.OutOfSyncError, match="device 3:"):
        check_in_sync(on_devices(mesh, PartitionSpec("model"), (4,), change))


def test_a_traced_array_has_no_devices_to_compare():
    with pytest.raises(hccljax.UnsupportedError, match="pass its axis name"):
        jax.jit(lambda x: check_in_sync({"w": x}))(jnp.ones(3))


def test_a_second_check_compiles_nothing(mesh):
    tree = [on_devices(mesh, PartitionSpec(), (3,), lambda ones, number: ones)]
    check_in_sync(tree)
    compiled = []
    listen = lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        check_in_sync(tree)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled
