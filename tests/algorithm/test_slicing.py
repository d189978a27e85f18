"""Messages longer than the buffer: the same results from slices, in bounded memory, at the cost that is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.algorithm import registered
from hccljax.algorithm.base import OPERATORS
from hccljax.algorithm.slicing import fillings, sliced
from hccljax.schedule import count

P = 5
X = np.random.default_rng(0).integers(-9, 9, (P, P, 7, 3)).astype(np.float32)
OPTIONS = {"all_to_all": {"split_axis": 0, "concat_axis": 0}}


def results(operator, algorithm):
    """The operator and its gradient on every rank."""

    def one_rank(x):
        def out(x):
            return getattr(hccljax, operator)(x, "r", algorithm=algorithm, **OPTIONS.get(operator, {}))

        return out(x), jax.grad(lambda x: jnp.sum(out(x) ** 2))(x)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one_rank, axis_name="r"))(X))


@pytest.mark.parametrize("buffer", [16, 100])  # one element of each block; uneven slices
@pytest.mark.parametrize("operator", OPERATORS)
def test_slices_give_the_same(operator, buffer):
    algorithm = registered("mesh" if operator == "all_to_all" else "ring")
    whole, slices = (results(operator, one) for one in (algorithm, sliced(algorithm, buffer)))
    jax.tree.map(np.testing.assert_array_equal, slices, whole)


@pytest.mark.parametrize("algorithm", ["tree", "double_tree", "H-D_R", "NHR"])
def test_every_algorithm_can_be_sliced(algorithm):
    whole, slices = (results("all_reduce", one) for one in (registered(algorithm), sliced(registered(algorithm), 200)))
    jax.tree.map(np.testing.assert_array_equal, slices, whole)


def test_a_root_is_a_root_in_every_slice():
    def broadcast(algorithm):
        return jax.vmap(lambda x: hccljax.broadcast(x, "r", 3, algorithm=algorithm), axis_name="r")(X)

    np.testing.assert_array_equal(broadcast(sliced(registered("ring"), 64)), broadcast("ring"))


def test_the_buffer_is_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("HCCL_BUFFSIZE", "1048576")
    x = jax.ShapeDtypeStruct((3 << 18,), jnp.float32)  # 3 MiB
    counts = count(lambda x: hccljax.all_reduce(x, "r", algorithm="ring"), x, axis_sizes={"r": 4})
    decision = hccljax.explain("all_reduce", 3 << 20, 4, algorithm="ring")
    assert (counts.steps, counts.bytes_sent) == (decision.steps, decision.bytes_sent) == (3 * 6, 3 * 6 * (1 << 18))
    assert "3 slices of up to 1048576 bytes (HCCL_BUFFSIZE)" in decision.reason
    assert hccljax.explain("all_reduce", 1 << 20, 4, algorithm="ring").steps == 6  # what fits is not cut


@pytest.mark.parametrize("p", [3, 5, 7, 12])
@pytest.mark.parametrize("operator", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_slices_are_as_many_as_the_decision_says(monkeypatch, p, operator):
    """Also where the buffer does not hold a whole number of even blocks."""
    monkeypatch.setenv("HCCL_BUFFSIZE", "1048577")
    for elements in (p << 20, (p << 20) + 5 * p):
        shape = (elements // p if operator == "all_gather" else elements,)
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        options = {"algorithm": "ring"} | ({"tiled": True} if operator == "reduce_scatter" else {})
        counts = count(lambda x: getattr(hccljax, operator)(x, "r", **options), x, axis_sizes={"r": p})  # noqa: B023
        decision = hccljax.explain(operator, 4 * elements, p, algorithm="ring")
        assert counts.steps == decision.steps
        assert counts.bytes_sent == pytest.approx(decision.bytes_sent, abs=8 * p * decision.steps)


def test_a_hierarchy_is_sliced_as_a_whole(monkeypatch):
    monkeypatch.setenv("HCCL_BUFFSIZE", "1")  # MB
    x = jax.ShapeDtypeStruct((1 << 19,), jnp.float32)
    options = {"algorithm": "level0:ring;level1:tree", "topology": "2x4"}
    counts = count(lambda x: hccljax.all_reduce(x, "r", **options), x, axis_sizes={"r": 8})
    decision = hccljax.explain("all_reduce", 1 << 21, 8, **options)
    assert (counts.steps, counts.bytes_sent) == (decision.steps, decision.bytes_sent)
    assert decision.steps == 2 * hccljax.explain("all_reduce", 1 << 20, 8, **options).steps


def test_native_keeps_its_own_buffers(monkeypatch):
    monkeypatch.setenv("HCCL_BUFFSIZE", "1")
    assert hccljax.explain("all_reduce", 1 << 30, 8, algorithm="native").steps == 1


def temporaries(algorithm, elements):
    """Bytes of temporary memory that the compiled program of one device needs beside its operand and result."""
    mesh = jax.make_mesh((4,), ("r",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("r")
    fn = jax.shard_map(
        lambda x: hccljax.all_reduce(x, "r", algorithm=algorithm),
        mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False,
    )  # fmt: skip
    compiled = jax.jit(fn).lower(jax.ShapeDtypeStruct((4 * elements,), jnp.float32)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_temporary_memory_is_bounded_by_the_buffer():
    buffer, message = 1 << 16, 1 << 20
    whole, slices = (temporaries(one, message) for one in ("H-D_R", sliced(registered("H-D_R"), buffer)))
    assert whole > 4 * message  # more than the message of 4-byte elements
    twice = temporaries(sliced(registered("H-D_R"), buffer), 2 * message)
    assert twice - slices <= 4 * message + buffer  # the result that grows in the loop, and nothing else
    assert slices <= 4 * message + 8 * buffer


def test_the_last_slice_is_as_long_as_the_others():
    assert [fillings(size, 100) for size in (0, 1, 100, 101, 1000)] == [1, 1, 1, 2, 10]


def test_more_elements_than_indices_reach():
    """A flat gradient of 3 billion parameters: traced, as nothing of it fits here."""
    x = jax.ShapeDtypeStruct((3 * 10**9,), jnp.bfloat16)
    counts = count(lambda x: hccljax.all_reduce(x, "r", algorithm="ring"), x, axis_sizes={"r": 8})
    assert counts.steps == hccljax.explain("all_reduce", 6 * 10**9, 8, algorithm="ring").steps


@pytest.mark.parametrize("operator", ["all_reduce", "reduce_scatter", "all_gather"])
def test_several_loops_give_the_same(monkeypatch, operator):
    """As if 32 bits reached no further than 40 elements."""
    monkeypatch.setattr("hccljax.algorithm.slicing.INDEXED", 40)
    sliced.cache_clear()
    whole, slices = (results(operator, one) for one in (registered("ring"), sliced(registered("ring"), 68)))
    jax.tree.map(np.testing.assert_array_equal, slices, whole)
