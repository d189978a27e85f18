"""The operators whose block sizes are known while JAX traces, against NumPy: values, groups, algorithms, bytes sent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hccljax
from hccljax.schedule import count

KINDS = ("odd", "one rank", "empty", "equal")


def counts_of(kind, p, rng):
    """p counts: different ones with a zero among them, all at one rank, none at all, all the same."""
    if kind == "odd":
        counts = rng.integers(1, 6, p)
        counts[rng.integers(p)] = 0 if p > 1 else 3
        return counts
    return np.where(np.arange(p) == p // 2, 3, 0) if kind == "one rank" else np.full(p, 2 if kind == "equal" else 0)


def matrix_of(kind, p, rng):
    """p × p counts of the same kinds; at "one rank", every rank sends everything to one."""
    if kind == "one rank":
        matrix = np.zeros((p, p), int)
        matrix[:, p // 2] = rng.integers(0, 4, p)
        return matrix
    return np.stack([counts_of(kind, p, rng) for _ in range(p)])


def cut(x, counts):
    """x [sum, …] → one piece for each rank."""
    return np.split(x, np.cumsum(counts)[:-1])


def padded(rows, length):
    return np.concatenate([rows, np.zeros((length - len(rows), *rows.shape[1:]), rows.dtype)])


def gathered(x, counts):
    """all_gather_v of x [p, room, …]."""
    whole = np.concatenate([rows[:n] for rows, n in zip(x, counts, strict=True)])
    return np.stack([whole] * len(x))


def scattered(total, counts):
    """reduce_scatter_v, given the reduction [sum, …]."""
    return np.stack([padded(block, max(counts)) for block in cut(total, counts)])


def exchanged(x, matrix):
    """all_to_all_vc of x [p, n, …]."""
    blocks = [cut(rows[: n.sum()], n) for rows, n in zip(x, matrix, strict=True)]
    longest = matrix.sum(0).max()
    return np.stack([padded(np.concatenate([sent[j] for sent in blocks]), longest) for j in range(len(x))])


def static(values):
    """Counts as the Python ints that a jitted function can be made for."""
    return tuple(map(static, values)) if isinstance(values, np.ndarray) else int(values)


def numbers(rng, shape, dtype="int32"):
    """Small numbers that are exact in dtype, and nowhere zero but for bool."""
    x = rng.integers(0 if dtype == "bool" else 1, 2 if dtype == "bool" else 9, shape)
    return (x * (1 + 2j) if dtype == "complex64" else x).astype(jnp.dtype(dtype))


def operands(kind, p, dtype="int32"):
    """(counts, matrix, operands and what they become, by operator)."""
    rng = np.random.default_rng(p)
    counts, matrix = counts_of(kind, p, rng), matrix_of(kind, p, rng)
    x = {
        "gather": numbers(rng, (p, max(counts) + p % 2, 2), dtype),  # with room to spare, or none
        "scatter": numbers(rng, (p, sum(counts), 2), dtype),
        "exchange": numbers(rng, (p, matrix.sum(1).max() + p % 2, 2), dtype),
    }
    return static(counts), static(matrix), x


def call(x, counts, matrix, axis, op="sum", **options):
    return {
        "gather": hccljax.all_gather_v(x["gather"], axis, counts, **options),
        "scatter": hccljax.reduce_scatter_v(x["scatter"], axis, counts, op, **options),
        "exchange": hccljax.all_to_all_vc(x["exchange"], axis, matrix, **options),
    }


def expected(ranks, x, counts, matrix, op="sum"):
    return {
        "gather": gathered(x["gather"], counts),
        "scatter": scattered(ranks.fold(op, x["scatter"]), counts),
        "exchange": exchanged(x["exchange"], np.array(matrix)),
    }


def check(ranks, out, wanted):
    for name, value in wanted.items():
        ranks.same(out[name], value, name)


# Every kind at an even and at an odd number of ranks.
TURNS = ["odd", "equal", "odd", "one rank", "empty", "odd", "equal", "empty", "one rank"]


@pytest.mark.parametrize(("p", "kind"), [*enumerate(TURNS, 1), (16, "odd")])
def test_virtual_ranks_equal_numpy(p, kind, ranks):
    counts, matrix, x = operands(kind, p)
    out = ranks.virtual(lambda x: call(x, counts, matrix, ranks.axis), x)
    check(ranks, out, expected(ranks, x, counts, matrix))


@pytest.mark.parametrize(("p", "kind"), [(4, "one rank"), (8, "odd")])
def test_devices_equal_numpy(p, kind, ranks):
    counts, matrix, x = operands(kind, p)
    out = ranks.devices(lambda x: call(x, counts, matrix, ranks.axis), x, p)
    check(ranks, out, expected(ranks, x, counts, matrix))


@pytest.mark.parametrize(
    ("dtype", "op"), [("bfloat16", "max"), ("bool", "sum"), ("complex64", "prod"), ("uint8", "min"), ("int16", "mean")]
)
def test_dtypes_and_ops(dtype, op, ranks):
    counts, matrix, x = operands("odd", 4 if op == "mean" else 3, dtype)  # a quarter is exact
    out = ranks.virtual(lambda x: call(x, counts, matrix, ranks.axis, op), x)
    check(ranks, out, expected(ranks, x, counts, matrix, op))


@pytest.mark.parametrize("algorithm", ["ring", "H-D_R", "mesh", "native", "level0:mesh;level1:ring", "pairwise"])
@pytest.mark.filterwarnings("ignore::hccljax.FallbackWarning")  # not every algorithm has every operator
def test_every_algorithm_gives_the_same(algorithm, ranks):
    p, topology = 6, "2x3"
    counts, matrix, x = operands("odd", p)
    out = ranks.virtual(lambda x: call(x, counts, matrix, ranks.axis, algorithm=algorithm, topology=topology), x)
    check(ranks, out, expected(ranks, x, counts, matrix))


def test_counts_hold_in_every_communicator_of_a_group(ranks):
    groups = [[4, 0, 3], [1, 5, 2]]
    counts, matrix, x = operands("odd", 3)
    x = {name: np.concatenate([rows, rows + 1]) for name, rows in x.items()}
    out = ranks.virtual(lambda x: call(x, counts, matrix, hccljax.Group(ranks.axis, groups)), x)
    for members in groups:
        inside = {name: rows[members] for name, rows in x.items()}
        check(
            ranks,
            {name: rows[members] for name, rows in out.items()},
            expected(ranks, inside, counts, matrix),
        )


def test_other_dimensions_and_pytrees(ranks):
    counts, p = (2, 0, 3), 3
    x = {"a": np.arange(p * 4 * 5).reshape(p, 4, 5).astype(np.int32), "b": [np.ones((p, 2, 3), np.float32)]}
    out = ranks.virtual(lambda x: hccljax.all_gather_v(x, ranks.axis, counts, axis=-1), x)
    ranks.same(out["a"], gathered(x["a"].swapaxes(1, 2), counts).swapaxes(1, 2))
    ranks.same(out["b"][0], gathered(x["b"][0].swapaxes(1, 2), counts).swapaxes(1, 2))
    x = {"a": x["a"], "b": [np.ones((p, 2, 5), np.float32)]}
    out = ranks.virtual(lambda x: hccljax.reduce_scatter_v(x, ranks.axis, counts, scatter_dimension=1), x)
    for mine, rows in ((out["a"], x["a"]), (out["b"][0], x["b"][0])):
        ranks.same(mine, scattered(rows.sum(0, dtype=rows.dtype).T, counts).swapaxes(1, 2))


def test_keys_of_random_numbers_travel(ranks):
    keys, counts, matrix = jax.random.split(jax.random.key(0), (2, 3)), (1, 2), ((1, 2), (0, 1))

    def fn(keys):
        whole = hccljax.all_gather_v(keys, ranks.axis, counts)
        mine = hccljax.all_to_all_vc(keys, ranks.axis, matrix)
        return jax.random.key_data(whole), jax.random.key_data(mine)

    data = np.asarray(jax.random.key_data(keys))
    whole, mine = ranks.virtual(fn, keys)
    ranks.same(whole, gathered(data, counts))
    ranks.same(mine, exchanged(data, np.array(matrix)))


@settings(max_examples=5, deadline=None)
@given(data=st.data(), p=st.integers(1, 5), accumulate=st.sampled_from([None, "int32"]))
def test_random_counts_equal_numpy(ranks, data, p, accumulate):
    counts = data.draw(st.lists(st.integers(0, 4), min_size=p, max_size=p))
    matrix = tuple(tuple(data.draw(st.lists(st.integers(0, 4), min_size=p, max_size=p))) for _ in range(p))
    rng = np.random.default_rng(sum(counts))
    x = {
        "gather": numbers(rng, (p, max(counts)), "int16"),
        "scatter": numbers(rng, (p, sum(counts)), "int16"),
        "exchange": numbers(rng, (p, max(map(sum, matrix))), "int16"),
    }

    def fn(x):
        return {
            "gather": hccljax.all_gather_v(x["gather"], ranks.axis, counts),
            "scatter": hccljax.reduce_scatter_v(x["scatter"], ranks.axis, counts, accumulate_dtype=accumulate),
            "exchange": hccljax.all_to_all_vc(x["exchange"], ranks.axis, matrix),
        }

    check(ranks, ranks.virtual(fn, x), expected(ranks, x, counts, matrix))


# What the wire carries ----------------------------------------------------------------------------------------------


def sizes(p):
    return {"rank": p}


@pytest.mark.parametrize("p", [2, 5, 8])
@pytest.mark.parametrize("algorithm", ["ring", "mesh"])
def test_static_blocks_travel_as_long_as_the_longest(p, algorithm):
    counts = static(counts_of("odd", p, np.random.default_rng(p)))
    room = jax.ShapeDtypeStruct((max(counts) + 3, 2), "float32")
    whole = jax.ShapeDtypeStruct((sum(counts), 2), "float32")
    gather = count(lambda x: hccljax.all_gather_v(x, "rank", counts, algorithm=algorithm), room, axis_sizes=sizes(p))
    scatter = count(
        lambda x: hccljax.reduce_scatter_v(x, "rank", counts, algorithm=algorithm), whole, axis_sizes=sizes(p)
    )
    padded_bytes = max(counts) * 2 * 4
    assert gather.bytes_sent == scatter.bytes_sent == (p - 1) * padded_bytes
    for operator, counted in (("all_gather_v", gather), ("reduce_scatter_v", scatter)):
        decision = hccljax.explain(operator, p * padded_bytes, p, algorithm=algorithm)
        assert (decision.operator, decision.algorithm) == (operator, algorithm)
        assert (decision.bytes_sent, decision.steps) == (counted.bytes_sent, counted.steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_a_matrix_travels_by_steps_as_long_as_their_longest_message(p, kind):
    matrix = matrix_of(kind, p, np.random.default_rng(p))
    longest = [max(matrix[i, (i + k) % p] for i in range(p)) for k in range(1, p)]
    x = jax.ShapeDtypeStruct((int(matrix.sum(1).max()), 3), "float16")

    def fn(x):
        return hccljax.all_to_all_vc(x, "rank", matrix)

    counts = count(fn, x, axis_sizes=sizes(p))
    assert counts.bytes_sent == sum(longest) * 3 * 2
    assert counts.permutes == counts.steps == sum(length > 0 for length in longest)
    back = count(lambda x: jax.vjp(fn, jnp.zeros_like(x))[1](fn(x)), x, axis_sizes=sizes(p))
    assert back.bytes_sent == 2 * counts.bytes_sent  # fn itself, and its transpose


def test_other_algorithms_carry_a_matrix_in_blocks_of_its_largest_entry():
    matrix = matrix_of("odd", 6, np.random.default_rng(6))
    x = jax.ShapeDtypeStruct((int(matrix.sum(1).max()),), "float32")
    counts = count(lambda x: hccljax.all_to_all_vc(x, "rank", matrix, algorithm="mesh"), x, axis_sizes=sizes(6))
    assert counts.bytes_sent == 5 * 4 * matrix.max()
    assert (counts.exchanges, counts.permutes) == (1, 0)


# Which algorithm runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "operator"), [("allgather", "all_gather_v"), ("reducescatter", "reduce_scatter_v")])
def test_hccl_algo_speaks_of_the_base_operator(monkeypatch, text, operator):
    monkeypatch.setenv("HCCL_ALGO", f"{text}=level0:H-D_R")
    assert hccljax.explain(operator, 1024, 4).algorithm == "H-D_R"
    assert hccljax.explain("all_to_all_vc", 1024, 4).algorithm == "pairwise"


def test_hccl_algo_reaches_the_kernels(monkeypatch):
    monkeypatch.setenv("HCCL_ALGO", "alltoall=level0:fullmesh/allgather=level0:fullmesh")
    matrix, x = ((1, 2), (0, 1)), jax.ShapeDtypeStruct((3,), "float32")
    counts = count(lambda x: hccljax.all_to_all_vc(x, "rank", matrix), x, axis_sizes=sizes(2))
    assert (counts.exchanges, counts.permutes) == (1, 0)
    counts = count(lambda x: hccljax.all_gather_v(x, "rank", (3, 1)), x, axis_sizes=sizes(2))
    assert (counts.exchanges, counts.permutes) == (1, 0)


def test_a_matrix_goes_by_pairs_at_any_number_of_ranks_unless_something_is_asked_for():
    decision = hccljax.explain("all_to_all_vc", 1 << 20, 128)
    assert (decision.algorithm, decision.tiers, decision.steps) == ("pairwise", None, 127)
    assert hccljax.explain("all_to_all_v", 1 << 20, 128).tiers == (8, 16)
    assert hccljax.explain("all_to_all_vc", 1 << 20, 128, algorithm="hierarchical").tiers == (8, 16)


def test_the_warning_of_a_fallback_names_the_operator_that_was_called():
    with pytest.warns(hccljax.FallbackWarning, match=r"all_gather_v of 4 ranks: 'tree' has no all_gather; 'H-D_R'"):
        jax.make_jaxpr(lambda x: hccljax.all_gather_v(x, "r", (1, 0, 2, 1), algorithm="tree"), axis_env=[("r", 4)])(
            jnp.zeros(2)
        )
