"""all_reduce_tree: a tree in few messages, whose programs and buffers serve the next tree."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hccljax
from hccljax import ArgumentError, Communicator
from hccljax.staging import capacity

P = 4
BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"

each_executor = pytest.mark.parametrize("executor", ["devices", "virtual"])


@pytest.fixture
def compiled():
    """() → how many programs XLA has compiled since it was last asked."""
    seen = []

    def listen(event, duration, **_):
        if event == BACKEND_COMPILE:
            seen.append(event)

    def since():
        number = len(seen)
        seen.clear()
        return number

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield since
    jax.monitoring.unregister_event_duration_listener(listen)


def tree_of(*shapes, dtype=np.float32):
    draw = np.random.default_rng(0)
    return {f"leaf{i}": draw.integers(-4, 5, (P, *shape)).astype(dtype) for i, shape in enumerate(shapes)}


def same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(np.asarray(mine, np.float64), np.asarray(theirs, np.float64))


@each_executor
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_it_is_all_reduce_of_every_leaf(executor, op):
    comm = Communicator(P, executor=executor, algorithm="mesh")
    tree = {
        **tree_of((), (3, 2), (0, 4), (700,)),
        "half": tree_of((5,), dtype=ml_dtypes.bfloat16),
        "more": [None, tree_of((2, 2), dtype=np.int32), tree_of((3,), dtype=bool)],
    }
    found = comm.all_reduce_tree(tree, op, bucket_bytes=2000)
    same(found, comm.all_reduce(tree, op))
    same(comm.all_reduce_tree(comm.put(tree), op), found)
    assert all(leaf.sharding == comm.put(leaf).sharding for leaf in jax.tree.leaves(found) if executor == "devices")


@each_executor
def test_another_model_that_fits_the_same_buffers_compiles_nothing(compiled, executor):
    comm = Communicator(P, executor=executor)
    first, second = tree_of((30, 40), (40,), (7, 2)), tree_of((5, 5, 40), (20, 3), (1,), ())
    jax.block_until_ready(comm.all_reduce_tree(first))
    assert compiled() == 1
    found = comm.all_reduce_tree(second)
    assert compiled() == 0
    same(found, jax.tree.map(lambda leaf: np.broadcast_to(leaf.sum(0), leaf.shape), second))


@each_executor
def test_a_buffer_is_given_to_its_program_and_comes_back_with_the_result(executor, monkeypatch):
    comm = Communicator(P, executor=executor)
    seen = []
    call = comm._call

    def watched(operator, x, *rest, **options):
        before = [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards]
        out = call(operator, x, *rest, **options)
        after = [shard.data.unsafe_buffer_pointer() for shard in out.addressable_shards]
        seen.append((before == after, x.is_deleted()))
        return out

    monkeypatch.setattr(comm, "_call", watched)
    comm.all_reduce_tree(tree_of((300,), (40,)), bucket_bytes=1 << 12)
    assert seen == [(True, True)]


def test_what_the_caller_passed_is_not_given_away():
    comm = Communicator(P, executor="devices")
    tree = comm.put(tree_of((1024,)))
    first, second = comm.all_reduce_tree(tree), comm.all_reduce_tree(tree)
    same(first, second)
    comm.all_reduce_tree(first)
    same(first, second)


def test_each_bucket_is_one_message(monkeypatch):
    comm = Communicator(P, executor="virtual")
    calls = []
    call = comm._call
    monkeypatch.setattr(
        comm, "_call", lambda *given, **options: calls.append(given[1].shape) or call(*given, **options)
    )
    comm.all_reduce_tree(tree_of((100,), (1500,), (900,), (200,)), bucket_bytes=4800)
    assert calls == [(P, 1536), (P, 1280)]  # 1,500 elements are alone, and found first


@pytest.mark.parametrize(
    ("elements", "expected"),
    [(0, 1024), (1, 1024), (1024, 1024), (1025, 1280), (1280, 1280), (1537, 1792), (2048, 2048), (2049, 2560)],
)
def test_buffers_have_four_sizes_for_each_power_of_two(elements, expected):
    assert capacity(elements) == expected


def test_a_buffer_has_room_and_not_much_more():
    for elements in range(1024, 9000, 7):
        assert elements <= capacity(elements) <= 1.25 * elements


def test_it_works_under_jit_and_grad():
    comm = Communicator(P, executor="virtual", algorithm="ring")
    tree = tree_of((3,), (2, 2))
    same(jax.jit(comm.all_reduce_tree)(tree), comm.all_reduce(tree))
    grads = jax.grad(lambda t: sum((leaf**2).sum() for leaf in jax.tree.leaves(comm.all_reduce_tree(t))))(tree)
    same(grads, jax.tree.map(lambda leaf: np.broadcast_to(2 * P * leaf.sum(0), leaf.shape), tree))


def test_in_groups_and_by_every_size_of_bucket():
    comm = Communicator(6, executor="virtual").split([[0, 1, 2, 3], [4, 5]])
    x = {"a": np.arange(6.0, dtype=np.float32), "b": np.ones((6, 2), np.float32)}
    for bucket_bytes in (None, "auto", 4):
        found = comm.all_reduce_tree(x, bucket_bytes=bucket_bytes)
        np.testing.assert_array_equal(found["a"], [6, 6, 6, 6, 9, 9])


def test_wide_accumulation_and_other_options_reach_the_collective():
    comm = Communicator(P, executor="virtual")
    tree = tree_of((300,), dtype=ml_dtypes.bfloat16)
    options = {"algorithm": "ring", "accumulate_dtype": jnp.float32}
    same(comm.all_reduce_tree(tree, **options), comm.all_reduce(tree, **options))


def test_an_empty_tree_comes_back():
    assert Communicator(P, executor="virtual").all_reduce_tree({"a": None}) == {"a": None}


@pytest.mark.parametrize("bucket_bytes", [0, -3, 1.5, "large", 3])
def test_a_bad_bucket_is_refused(bucket_bytes):
    with pytest.raises(ArgumentError, match=r"bucket_bytes=.*expected"):
        Communicator(P, executor="virtual").all_reduce_tree(tree_of((3,)), bucket_bytes=bucket_bytes)


def test_other_mistakes_are_those_of_all_reduce(error_of):
    comm = Communicator(P, executor="virtual")
    for tree, op, options in (
        (tree_of((3,)), "most", {}),
        (tree_of((3,)), "sum", {"algorithm": "rung"}),
        ({"a": np.ones((P + 1, 2), np.float32)}, "sum", {}),
        ({"a": np.float32(3)}, "sum", {}),
        (tree_of((3,), dtype=np.complex64), "max", {}),
        (jax.random.split(jax.random.key(0), P), "sum", {}),
    ):
        with pytest.raises(hccljax.HcclError) as theirs:
            comm.all_reduce(tree, op, **options)
        assert error_of(lambda t=tree, o=op, k=options: comm.all_reduce_tree(t, o, **k), type(theirs.value)) == str(
            theirs.value
        )
