"""Communicators of several sizes in one group: each works as it would alone, in every mode, and so do gradients."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import hccljax
from hccljax import ArgumentError, Group
from hccljax.schedule import count

P = 8
GROUPS = [[7, 1, 2], [3, 4], [0, 5, 6]]
PARTITIONS = {
    "1+7": [[4], [0, 1, 2, 3, 5, 6, 7]],
    "2+3+4": [[0, 1], [2, 3, 4], [8, 7, 6, 5]],
    "1+2+4+9": [[3], [15, 0], [1, 2, 4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14]],
}
OPS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": np.mean}
NAMES = ("ring", "double_ring", "tree", "double_tree", "H-D_R", "NHR", "NB", "mesh", "pipeline")
QUICK = ("ring", "tree", "H-D_R", "NHR", "mesh")


def rows(n, *shape):
    """Small integers, some negative, none zero."""
    return np.random.default_rng(n).choice([-3, -2, -1, 1, 2, 3], (n, *shape)).astype(np.float32)


def within(x, groups, what):
    """what(rows of one communicator) → its rows, put back in axis order."""
    parts = {rank: row for members in groups for rank, row in zip(members, what(x[np.array(members)]), strict=True)}
    return np.stack([parts[rank] for rank in range(len(x))])


def reduced(op):
    return lambda part: np.broadcast_to(OPS[op](part, axis=0), part.shape)


def on_root(values, root):
    """values of the root, zeros elsewhere."""
    return np.where((np.arange(len(values)) == root).reshape(-1, *[1] * (values.ndim - 1)), values, 0)


def masked_psum(x, groups, axis="rank"):
    """What a user writes with lax alone: one psum for each group, of what its members hold and zeros."""
    out, index = jnp.zeros_like(x), lax.axis_index(axis)
    for members in groups:
        inside = jnp.isin(index, jnp.array(members))
        total = lax.psum(jnp.where(inside, x, 0), axis)
        out = jnp.where(inside, total, out)
    return out


# Values


def test_every_operator_that_keeps_the_shape(on_ranks):
    group, x = Group("rank", GROUPS), rows(P, 5)

    def body(x):
        return {
            "rank": group.rank,
            **{op: hccljax.all_reduce(x, group, op) for op in OPS},
            "broadcast": hccljax.broadcast(x, group, 1),
            "reduce": hccljax.reduce(x, group, "max", root=1),
            "barrier": hccljax.barrier(x, group),
            "send_recv": hccljax.send_recv(x, group, [(0, 1), (1, 0)]),
            "shift": group.shift(x, 1),
        }

    out = on_ranks(body, x)
    np.testing.assert_array_equal(out["rank"], within(np.arange(P), GROUPS, lambda part: range(len(part))))
    for op in OPS:
        np.testing.assert_allclose(out[op], within(x, GROUPS, reduced(op)), rtol=1e-6, err_msg=op)
    np.testing.assert_array_equal(
        out["broadcast"], within(x, GROUPS, lambda part: np.broadcast_to(part[1], part.shape))
    )
    np.testing.assert_array_equal(out["reduce"], within(x, GROUPS, lambda part: on_root(reduced("max")(part), 1)))
    np.testing.assert_array_equal(out["barrier"], x)
    np.testing.assert_array_equal(
        out["send_recv"], within(x, GROUPS, lambda part: [part[1], part[0], *np.zeros_like(part[2:])])
    )
    np.testing.assert_array_equal(out["shift"], within(x, GROUPS, lambda part: np.roll(part, 1, 0)))


@pytest.mark.parametrize(
    ("name", "partition"),
    [(name, "2+3+4") for name in NAMES if name != "double_tree"]
    + [(name, one) for name in QUICK for one in ("1+7", "1+2+4+9")],
)
def test_every_algorithm(virtual, name, partition):
    groups = PARTITIONS[partition]
    x = rows(sum(map(len, groups)), 7).astype(np.int32)
    group = Group("rank", groups)
    out = virtual(lambda x: [hccljax.all_reduce(x, group, op, algorithm=name) for op in ("sum", "max")], x)
    for op, found in zip(("sum", "max"), out, strict=True):
        np.testing.assert_array_equal(found, within(x, groups, reduced(op)), err_msg=op)


@st.composite
def partitions(draw):
    """Any partition of up to 16 ranks, in any order."""
    n = draw(st.integers(2, 16))
    order = draw(st.permutations(range(n)))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=4)))
    return [order[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]


@settings(max_examples=8, deadline=None)
@given(
    groups=partitions(), name=st.sampled_from(QUICK), op=st.sampled_from(["sum", "max", "prod"]), size=st.integers(0, 9)
)
def test_any_partition(groups, name, op, size):
    x = rows(sum(map(len, groups)), size).astype(np.int32)
    body = lambda x: hccljax.all_reduce(x, Group("rank", groups), op, algorithm=name)  # noqa: E731
    found = jax.jit(jax.vmap(body, axis_name="rank"))(x)
    np.testing.assert_array_equal(found, within(x, groups, reduced(op)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "complex64"])
def test_types_follow_those_of_groups_of_one_size(virtual, dtype):
    x = jnp.asarray(rows(P, 3)).astype(dtype)
    twins = Group("rank", [[0, 1, 2, 3], [4, 5, 6, 7]])
    for op in ("sum", "mean"):
        out = virtual(lambda x, op=op: hccljax.all_reduce(x, Group("rank", GROUPS), op), x)
        assert out.dtype == virtual(lambda x, op=op: hccljax.all_reduce(x, twins, op), x).dtype
        exact = within(np.asarray(x.astype("complex64")), GROUPS, reduced(op))
        np.testing.assert_allclose(out.astype("complex64"), exact, rtol=1e-2, err_msg=op)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 3)])
def test_scalars_and_empty_arrays(virtual, shape):
    x = rows(P, *shape)
    out = virtual(lambda x: (hccljax.all_reduce(x, Group("rank", GROUPS)), hccljax.barrier(x, "rank")), x)
    np.testing.assert_array_equal(out[0], within(x, GROUPS, reduced("sum")))


def test_keys_and_trees_are_broadcast(virtual):
    keys = jax.random.split(jax.random.key(0), P)
    sent = virtual(
        lambda i: jax.tree.map(
            lambda leaf: jax.random.key_data(leaf) if leaf.ndim == 0 and leaf.dtype != jnp.int32 else leaf,
            hccljax.broadcast({"key": keys[i], "i": i}, Group("rank", GROUPS), 1),
        ),
        jnp.arange(P),
    )
    roots = within(np.arange(P), GROUPS, lambda part: [part[1]] * len(part))
    np.testing.assert_array_equal(sent["i"], roots)
    np.testing.assert_array_equal(sent["key"], jax.random.key_data(keys)[roots])


def test_a_wider_sum_is_rounded_once(virtual):
    x = jnp.full((P, 2), 1.0, jnp.bfloat16).at[0].set(512.0)
    groups = [[0, 1, 2, 3, 4], [5, 6, 7]]
    total = virtual(lambda x: hccljax.all_reduce(x, Group("rank", groups), accumulate_dtype="float32"), x)
    np.testing.assert_array_equal(total.astype(np.float32), [[516.0] * 2] * 5 + [[3.0] * 2] * 3)
    mean = virtual(lambda x: hccljax.all_reduce(x, Group("rank", groups), "mean", accumulate_dtype="float32"), x)
    np.testing.assert_array_equal(mean.astype(np.float32)[[2, 7]], [[103.0] * 2, [1.0] * 2])


def test_a_tuple_of_axes_and_an_axis_that_vmap_maps():
    x = rows(12, 2).reshape(3, 4, 2)
    groups = [[0, 5, 10, 3, 8], [1, 2, 4], [6, 7, 9, 11]]
    body = lambda x: hccljax.all_reduce(x, Group(("a", "b"), groups))  # noqa: E731
    expected = within(x.reshape(12, 2), groups, reduced("sum")).reshape(3, 4, 2)
    both = jax.vmap(jax.vmap(body, axis_name="b"), axis_name="a")
    np.testing.assert_array_equal(both(x), expected)
    mesh = jax.make_mesh((4,), ("b",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec(None, "b")
    rest = jax.shard_map(
        lambda x: jax.vmap(lambda row: body(row[0])[None], axis_name="a")(x), mesh=mesh, in_specs=spec, out_specs=spec
    )
    np.testing.assert_array_equal(jax.jit(rest)(x), expected)


# Gradients


def test_gradients_are_those_of_masked_psums(on_ranks):
    group, x = Group("rank", GROUPS), rows(P, 3)

    def gradients(collective):
        def on_rank(x):
            weight = lax.axis_index("rank").astype(x.dtype) + 1
            loss = lambda x: jnp.sum(collective(x * x) ** 2 * weight)  # noqa: E731
            return jax.grad(loss)(x), jax.jvp(loss, (x,), (x + 1,))[1]

        return on_rank

    ours = on_ranks(gradients(lambda x: hccljax.all_reduce(x, group, algorithm="H-D_R")), x)
    # The masked program's own inner gradient depends on the mode; outside, under vmap, it is the derivative itself.
    collective = lambda x: masked_psum(x * x, GROUPS)  # noqa: E731
    weights = np.arange(1, P + 1, dtype=np.float32)[:, None]
    total = lambda x: jnp.sum(jax.vmap(collective, axis_name="rank")(x) ** 2 * weights)  # noqa: E731
    np.testing.assert_array_equal(ours[0], jax.grad(total)(x))
    tangents = jax.jvp(lambda x: jnp.sum(jax.vmap(collective, axis_name="rank")(x) ** 2 * weights, 1), (x,), (x + 1,))
    np.testing.assert_array_equal(ours[1], tangents[1])


@pytest.mark.parametrize("name", ["all_reduce", "mean", "prod", "broadcast", "reduce", "send_recv", "barrier"])
def test_every_derivative(name):
    group, x = Group("rank", GROUPS), rows(P, 2)
    ours = {
        "all_reduce": lambda x: hccljax.all_reduce(x, group),
        "mean": lambda x: hccljax.all_reduce(x, group, "mean"),
        "prod": lambda x: hccljax.all_reduce(x, group, "prod"),
        "broadcast": lambda x: hccljax.broadcast(x, group, 1),
        "reduce": lambda x: hccljax.reduce(x, group, root=1),
        "send_recv": lambda x: hccljax.send_recv(x, group, [(1, 0)]),
        "barrier": lambda x: hccljax.barrier(x, group),
    }[name]
    within_group = {
        "all_reduce": lambda part: jnp.broadcast_to(part.sum(0), part.shape),
        "mean": lambda part: jnp.broadcast_to(part.mean(0), part.shape),
        "prod": lambda part: jnp.broadcast_to(part.prod(0), part.shape),
        "broadcast": lambda part: jnp.broadcast_to(part[1], part.shape),
        "reduce": lambda part: jnp.zeros_like(part).at[1].set(part.sum(0)),
        "send_recv": lambda part: jnp.zeros_like(part).at[0].set(part[1]),
        "barrier": lambda part: part,
    }[name]

    def by_hand(x):
        out = jnp.zeros_like(x)
        for members in GROUPS:
            out = out.at[jnp.array(members)].set(within_group(x[jnp.array(members)]))
        return out

    weights = np.arange(1, P + 1, dtype=np.float32)[:, None]
    loss = lambda f: lambda x: jnp.sum(f(x) ** 2 * weights)  # noqa: E731
    mapped = jax.vmap(ours, axis_name="rank")

    def derivatives(f):  # the last one of second order, forward over reverse
        gradient = jax.grad(loss(f))
        return jax.jit(lambda x: (gradient(x), jax.jvp(gradient, (x,), (x + 1,))[1]))

    for found, expected in zip(derivatives(mapped)(x), derivatives(by_hand)(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["H-D_R", "mesh"])
def test_what_other_communicators_hold_spoils_no_derivative_of_a_product(name):
    x = rows(P, 2)
    x[3] = np.inf
    group = Group("rank", GROUPS)
    mapped = jax.vmap(lambda x: hccljax.all_reduce(x, group, "prod", algorithm=name), axis_name="rank")
    finite = np.array([0, 1, 2, 5, 6, 7])
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(mapped(x)[finite])))(x)
    assert np.isfinite(gradient[np.array([0, 1, 2, 3, 5, 6, 7])]).all()  # of rank 4 it is 0 times infinity


def test_batches_and_remat(virtual):
    x, group = rows(P, 4, 3), Group("rank", GROUPS)
    collective = jax.checkpoint(lambda row: hccljax.all_reduce(row, group))
    out = virtual(jax.vmap(collective), x)
    np.testing.assert_array_equal(out, within(x, GROUPS, reduced("sum")))


def test_an_operand_that_is_the_same_everywhere_warns_once():
    mesh = jax.make_mesh((P,), ("rank",), axis_types=(AxisType.Auto,))
    body = jax.shard_map(
        lambda x: hccljax.all_reduce(x, Group("rank", GROUPS))[None],
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec("rank"),
    )
    with pytest.warns(hccljax.InvariantOperandWarning, match="3 or 2 times") as caught:
        out = jax.jit(body)(np.float32(2))
    assert len(caught) == 1
    np.testing.assert_array_equal(out, [6, 6, 6, 4, 4, 6, 6, 6])


# jax.lax's signatures


def test_the_drop_in_module(on_ranks):
    x = rows(P, 2)
    options = {"axis_index_groups": GROUPS}
    names = {"psum": "sum", "pmean": "mean", "pmax": "max", "pmin": "min"}

    def body(x):
        out = {name: getattr(hccljax.lax, name)(x, "rank", **options) for name in names}
        constants = [hccljax.lax.psum(1, "rank", **options), hccljax.lax.pmean(2.5, "rank", **options)]
        return out, [jnp.asarray(one) for one in constants]

    out, (size, constant) = on_ranks(body, x)
    for name, op in names.items():
        np.testing.assert_allclose(out[name], within(x, GROUPS, reduced(op)), rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(size, within(np.arange(P), GROUPS, lambda part: [len(part)] * len(part)))
    np.testing.assert_array_equal(constant, [2.5] * P)


def test_jax_lax_sums_unequal_groups_where_it_takes_them_at_all():
    x = rows(P, 2)
    mesh = jax.make_mesh((P,), ("rank",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("rank")
    found = [
        jax.jit(
            jax.shard_map(
                lambda x, psum=psum: psum(x, "rank", axis_index_groups=GROUPS),
                mesh=mesh,
                in_specs=spec,
                out_specs=spec,
                check_vma=False,
            )
        )(x)
        for psum in (lax.psum, hccljax.lax.psum)
    ]
    np.testing.assert_array_equal(*found)


# Communicators, decisions and counts


def test_a_communicator_splits_unequally_and_only_once():
    comm, x = hccljax.Communicator(9, executor="virtual"), rows(9, 2)
    groups = [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    parts = comm.split(groups)
    assert repr(parts) == "Communicator(9 ranks, in groups of 4, 3 and 2, virtual)"
    np.testing.assert_array_equal(parts.all_reduce(x, "max"), within(x, groups, reduced("max")))
    np.testing.assert_array_equal(parts.broadcast(x, 1)[:5], x[[1, 1, 1, 4, 4]])
    np.testing.assert_array_equal(
        parts.send_recv(x, [(1, 0)]), within(x, groups, lambda part: [part[1], *np.zeros_like(part[1:])])
    )
    for call in (lambda: parts.group_size, lambda: parts.split([[0, 1]])):
        with pytest.raises(ArgumentError, match="4, 3 and 2 ranks, so its size has no single value; expected"):
            call()
    halves = comm.split([[0, 2, 4, 6, 8, 1, 3, 5, 7]]).split([[8, 0, 1], [2, 3, 4, 5, 6, 7]])
    np.testing.assert_array_equal(halves.all_reduce(x), within(x, [[7, 0, 2], [4, 6, 8, 1, 3, 5]], reduced("sum")))


def test_split_makes_unequal_groups_in_every_communicator(virtual):
    group = Group("rank", [[0, 2, 4, 6], [7, 5, 3, 1]]).split([[3], [0, 2, 1]])
    groups = [[6], [0, 4, 2], [1], [7, 3, 5]]
    x = rows(P, 2)
    np.testing.assert_array_equal(virtual(lambda x: hccljax.all_reduce(x, group), x), within(x, groups, reduced("sum")))


def test_explain_has_a_decision_for_each_size():
    groups = [list(range(12)), [12, 13, 14], [15, 16, 17]]
    decision = hccljax.explain("all_reduce", 64, Group("rank", groups))
    assert [(one.ranks, one.algorithm) for one in decision.classes] == [(12, "tree"), (3, "ring")]
    assert (decision.ranks, decision.algorithm, decision.steps) == (12, "tree", decision.classes[0].steps)
    assert str(decision) == "\n".join(map(str, decision.classes))
    assert hccljax.Communicator(18).split(groups).explain("all_reduce", 64) == decision
    assert hccljax.explain("all_reduce", 64, 3).classes == ()


@pytest.mark.parametrize(
    "operator", ["all_gather", "reduce_scatter", "scatter", "gather", "all_to_all", "all_gather_v"]
)
def test_explain_refuses_what_cannot_run(operator):
    with pytest.raises(ArgumentError, match=r"communicators of unequal size .3, 2 ranks.: expected one of all_reduce"):
        hccljax.explain(operator, 64, Group("rank", GROUPS))


def test_native_is_refused_to_a_call_and_gives_way_as_a_setting(monkeypatch):
    x = rows(P, 2)
    with pytest.raises(hccljax.UnsupportedError, match="'native' runs in communicators of one size only"):
        hccljax.Communicator(P, executor="virtual", groups=GROUPS).all_reduce(x, algorithm="native")
    comm = hccljax.Communicator(P, executor="virtual", groups=GROUPS, algorithm="native")
    with pytest.warns(hccljax.FallbackWarning, match=r"'native' runs in communicators of one size only; .* instead"):
        out = comm.all_reduce(x)
    np.testing.assert_array_equal(out, within(x, GROUPS, reduced("sum")))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "double_tree"])
def test_nothing_is_sent_to_another_communicator(name):
    groups = [[0, 1, 2, 3, 4], [5, 6, 7]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = count(
            lambda x: hccljax.all_reduce(x, Group("rank", groups), algorithm=name),
            jax.ShapeDtypeStruct((960,), np.float32),
            axis_sizes={"rank": P},
        )
    alone = [hccljax.explain("all_reduce", 3840, p, algorithm=name) for p in (5, 3)]
    assert whole.steps == max(one.steps for one in alone)
    assert whole.bytes_sent == max(one.bytes_sent for one in alone)


# What a group of a class says to its ranks


def test_full_mesh_communication_leaves_out_who_is_in_no_communicator(on_ranks):
    big, small = Group("rank", GROUPS).classes
    x = np.arange(P * 3 * 2, dtype=np.int32).reshape(P, 3, 2)

    def body(x):
        return big.mesh_exchange(x), big.mesh_gather(x), small.mesh_exchange(x[:2]), small.mesh_gather(x), big.is_member

    exchanged, gathered, two, both, member = on_ranks(body, x)
    np.testing.assert_array_equal(member, [True, True, True, False, False, True, True, True])
    for members in ([7, 1, 2], [0, 5, 6]):
        for place, rank in enumerate(members):
            np.testing.assert_array_equal(exchanged[rank], x[members, place])
            np.testing.assert_array_equal(gathered[rank], x[members])
    for place, rank in enumerate([3, 4]):
        np.testing.assert_array_equal(two[rank], x[[3, 4], place])
        np.testing.assert_array_equal(both[rank], x[[3, 4]])


# Mistakes

ARGUMENTS = {
    "all_gather": (lambda x, g: hccljax.all_gather(x, g)),
    "reduce_scatter": (lambda x, g: hccljax.reduce_scatter(x, g)),
    "scatter": (lambda x, g: hccljax.scatter(x, g)),
    "gather": (lambda x, g: hccljax.gather(x, g)),
    "all_to_all": (lambda x, g: hccljax.all_to_all(x, g, 0, 0)),
    "all_gather_v": (lambda x, g: hccljax.all_gather_v(x, g, [1, 1])),
    "reduce_scatter_v": (lambda x, g: hccljax.reduce_scatter_v(x, g, [1, 1])),
    "all_to_all_v": (lambda x, g: hccljax.all_to_all_v(x, g, [1, 1])),
    "all_to_all_vc": (lambda x, g: hccljax.all_to_all_vc(x, g, [[1, 1], [1, 1]])),
}


@pytest.mark.parametrize("operator", ARGUMENTS)
def test_operators_with_a_block_for_each_rank_say_why_they_cannot(operator, error_of):
    message = error_of(
        lambda: jax.vmap(lambda x: ARGUMENTS[operator](x, Group("rank", GROUPS)), axis_name="rank")(rows(P, 2)),
        ArgumentError,
    )
    assert f"{operator} over communicators of 3 and 2 ranks" in message
    assert "expected communicators of one size, or all_reduce, broadcast, reduce" in message


def test_what_they_advise_instead_gathers_each_communicator(virtual):
    group, x = Group("rank", GROUPS), rows(P, 2)
    out = virtual(lambda x: hccljax.all_reduce(jnp.zeros((3, 2)).at[group.rank].set(x), group), x)
    for members in GROUPS:
        for rank in members:
            np.testing.assert_array_equal(out[rank][: len(members)], x[members])
            np.testing.assert_array_equal(out[rank][len(members) :], 0)


MISTAKES = {
    "a root that the smallest lacks": (lambda x, g: hccljax.broadcast(x, g, 2), "root=2", "every", "0 to 1"),
    "a pair that the smallest lacks": (lambda x, g: hccljax.send_recv(x, g, [(0, 2)]), "pair", "every", "0 to 1"),
    "its size": (lambda x, g: g.size, "3 and 2 ranks", "no single value", "classes"),
    "its levels": (lambda x, g: g.level(0).rank, "3 and 2 ranks", "no single value"),
    "a topology for all": (lambda x, g: hccljax.all_reduce(x, g, topology="1x3"), "1x3", "the group has 2"),
    "one size split": (lambda x, g: g.split([[0], [1]]).rank, "3 and 2 ranks", "no single value"),
    "a gather by mesh": (lambda x, g: g.mesh_gather(x), "3 and 2 ranks", "no single value"),
    "ranks of another axis": (
        lambda x, g: hccljax.all_reduce(x, Group("rank", [[0, 1], [2]])), "groups list 3 ranks", "has 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake, error_of, helps):
    call, *says = MISTAKES[mistake]
    message = error_of(
        lambda: jax.vmap(lambda x: call(x, Group("rank", GROUPS)), axis_name="rank")(rows(P, 2)), ArgumentError
    )
    assert all(part in message for part in says), message
    assert helps(message), message
