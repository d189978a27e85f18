"""Bad input: every mistake is an HcclError while tracing, which names the value, what was expected, and the way out."""

import re

import jax
import jax.numpy as jnp
import pytest

import hccljax
from hccljax import (
    ArgumentError,
    AxisError,
    DerivativeError,
    DtypeError,
    FallbackWarning,
    Group,
    HcclError,
    HcclWarning,
    InvariantOperandWarning,
    OutOfSyncError,
    SettingError,
    Topology,
    UnsupportedError,
    VerificationError,
)

P = 4
ROWS = jnp.arange(P * P * 2.0).reshape(P, P, 2)
HUGE = "z" * 100_000


def traced(function, rows=ROWS):
    """The shapes that function gives on P ranks; nothing runs."""
    return jax.eval_shape(jax.vmap(function, axis_name="rank"), rows)


def communicator(**options):
    return hccljax.Communicator(P, executor="virtual", **options)


# What the classes are


@pytest.mark.parametrize(
    ("kind", "parents", "code"),
    [
        (ArgumentError, (HcclError, ValueError), "EI0003"),
        (DtypeError, (ArgumentError, TypeError, ValueError), "EI0003"),
        (AxisError, (HcclError, NameError), "EI0003"),
        (SettingError, (HcclError, ValueError), "EI0001"),
        (UnsupportedError, (HcclError, NotImplementedError), ""),
        (DerivativeError, (HcclError, NotImplementedError), ""),
        (VerificationError, (HcclError, ArithmeticError), ""),
        (OutOfSyncError, (HcclError, ValueError), ""),
    ],
)
def test_an_error_is_also_the_builtin_that_a_caller_would_catch(kind, parents, code):
    assert all(issubclass(kind, parent) for parent in parents)
    assert kind.code == code
    assert str(kind("a thing is wrong")) == (f"{code}: a thing is wrong" if code else "a thing is wrong")


def test_warnings_have_one_root_that_is_a_user_warning():
    assert issubclass(FallbackWarning, HcclWarning)
    assert issubclass(InvariantOperandWarning, HcclWarning)
    assert issubclass(HcclWarning, UserWarning)


# Mistakes inside a mapped function: (what is called on one rank's x, what the message has to say)

ARGUMENTS = {
    "an op that does not exist": (lambda x: hccljax.all_reduce(x, "rank", "sumn"), "op='sumn'", "'sum'"),
    "an op that is no text": (lambda x: hccljax.reduce(x, "rank", ["sum"]), r"op=\['sum'\]", "'sum'"),
    "no op": (lambda x: hccljax.reduce_scatter(x, "rank", None), "op=None", "'sum'"),
    "an algorithm that does not exist": (
        lambda x: hccljax.all_reduce(x, "rank", algorithm="rnig"),
        "algorithm='rnig'",
        "Did you mean ring",
        "Did you mean ring",
    ),
    "an algorithm in the wrong case": (
        lambda x: hccljax.all_gather(x, "rank", algorithm="Ring"),
        "algorithm='Ring'",
        "Did you mean ring",
    ),
    "an algorithm that is no text": (lambda x: hccljax.all_reduce(x, "rank", algorithm=3), "algorithm=3", "a name"),
    "a list of algorithms": (
        lambda x: hccljax.all_to_all(x, "rank", 0, 0, algorithm=["ring"]),
        r"algorithm=\['ring'\]",
        "a name",
    ),
    "a malformed text as algorithm": (
        lambda x: hccljax.all_reduce(x, "rank", algorithm="level0:ring;"),
        "algorithm='level0:ring;'",
        "between two entries",
    ),
    "a root that is out of range": (lambda x: hccljax.broadcast(x, "rank", 4), "root=4", "0 to 3"),
    "a negative root": (lambda x: hccljax.reduce(x, "rank", root=-1), "root=-1", "0 to 3"),
    "a root beyond every int": (lambda x: hccljax.gather(x, "rank", 10**30), "root=10{30}", "0 to 3"),
    "a float as root": (lambda x: hccljax.scatter(x, "rank", 1.0), r"root=1\.0", "a static int, 0 to 3"),
    "no root": (lambda x: hccljax.broadcast(x, "rank", None), "root=None", "a static int, 0 to 3"),
    "a traced root": (lambda x: hccljax.broadcast(x, "rank", jax.lax.axis_index("rank")), "root=", "a static int"),
    "an axis that is out of range": (lambda x: hccljax.all_gather(x, "rank", axis=3), "axis=3", "-?3"),
    "an axis below the range": (lambda x: hccljax.gather(x, "rank", axis=-4), "axis=-4", "-?3"),
    "an axis of a scalar": (
        lambda x: hccljax.reduce_scatter(x[0, 0], "rank"),
        "scatter_dimension=0",
        "0 dimensions",
    ),
    "an axis that is no int": (lambda x: hccljax.all_gather(x, "rank", axis="0"), "axis='0'", "an int"),
    "a split axis that is out of range": (lambda x: hccljax.all_to_all(x, "rank", 2, 0), "split_axis=2", "2"),
    "a concat axis that is out of range": (lambda x: hccljax.all_to_all(x, "rank", 0, 2), "concat_axis=2", "2"),
    "a scatter dimension that is not p": (
        lambda x: hccljax.reduce_scatter(x, "rank", scatter_dimension=1),
        "reduce_scatter",
        "size 2",
        "expected 4",
        "tiled=True",
    ),
    "a scatter dimension that p does not divide": (
        lambda x: hccljax.scatter(x, "rank", scatter_dimension=1, tiled=True),
        "scatter",
        "size 2",
        "multiple of 4",
        "pad",
    ),
    "a split axis that p does not divide": (
        lambda x: hccljax.all_to_all(x, "rank", 1, 0, tiled=True),
        "all_to_all",
        "size 2",
        "multiple of 4",
    ),
    "a replication that does not exist": (lambda x: hccljax.all_gather(x, "rank", to="all"), "to='all'", "'varying'"),
    "a replicated result of a partition": (
        lambda x: hccljax.all_gather(x, Group("rank", [[0, 1], [2, 3]]), to="invarying"),
        "to='invarying'",
        "'varying'",
    ),
    "a topology of another size": (
        lambda x: hccljax.all_reduce(x, "rank", topology="2x4"),
        "topology 2x4",
        "8 ranks",
        "4",
    ),
    "a malformed topology": (lambda x: hccljax.all_reduce(x, "rank", topology="2x"), "topology '2x'", "'4x8'"),
    "an empty tier": (lambda x: hccljax.all_reduce(x, "rank", topology="0x4"), "topology '0x4'", "'4x8'"),
    "a topology that is no text": (
        lambda x: hccljax.all_reduce(x, "rank", topology=[2, 2]),
        r"topology \[2, 2\]",
        "'4x8'",
    ),
    "a source that stands twice": (
        lambda x: hccljax.send_recv(x, "rank", [(0, 1), (0, 2)]),
        r"\(0, 1\) and \(0, 2\)",
        "source 0",
        "another send_recv",
    ),
    "a destination that stands twice": (
        lambda x: hccljax.send_recv(x, "rank", [(0, 1), (2, 1)]),
        r"\(0, 1\) and \(2, 1\)",
        "destination 1",
        "another send_recv",
    ),
    "a source that does not exist": (
        lambda x: hccljax.send_recv(x, "rank", [(4, 0)]),
        r"\(4, 0\)",
        "source 4",
        "0 to 3",
    ),
    "a negative destination": (
        lambda x: hccljax.send_recv(x, "rank", [(0, -1)]),
        r"\(0, -1\)",
        "destination -1",
        "0 to 3",
    ),
    "a rank outside the communicator of a partition": (
        lambda x: hccljax.send_recv(x, Group("rank", [[0, 1], [2, 3]]), [(0, 2)]),
        r"\(0, 2\)",
        "0 to 1",
        "inside the communicator",
    ),
    "a pair of three": (lambda x: hccljax.send_recv(x, "rank", [(0, 1, 2)]), r"\(0, 1, 2\)", "two ints"),
    "a pair of floats": (lambda x: hccljax.send_recv(x, "rank", [(0.0, 1.0)]), r"\(0\.0, 1\.0\)", "two ints"),
    "pairs in pairs": (lambda x: hccljax.send_recv(x, "rank", [[[0, 1]]]), r"\[\[0, 1\]\]", "two ints"),
    "a text as pairs": (lambda x: hccljax.send_recv(x, "rank", "ab"), "'a'", "two ints"),
    "no pairs": (lambda x: hccljax.send_recv(x, "rank", None), "None", "pairs"),
    "an int as pairs": (lambda x: hccljax.send_recv(x, "rank", 3), "3", "pairs"),
    "the second message of a batch": (
        lambda x: hccljax.batch_send_recv([(x, [(0, 1)]), (x, [(0, 9)])], "rank"),
        r"messages\[1\]",
        "destination 9",
        "0 to 3",
    ),
    "a message without pairs": (
        lambda x: hccljax.batch_send_recv([(x, [(0, 1)]), (x,)], "rank"),
        r"messages\[1\]",
        r"\(x, pairs\)",
    ),
    "a batch that is no list": (lambda x: hccljax.batch_send_recv(None, "rank"), "None", r"\(x, pairs\)"),
    "groups of another axis size": (
        lambda x: hccljax.all_reduce(x, Group("rank", [[0, 1], [2, 3], [4, 5]])),
        "6 ranks",
        "has 4",
        "0 to 3",
    ),
    "levels of another group size": (
        lambda x: hccljax.all_reduce(x, Group("rank", levels=(2, 4)), algorithm="hierarchical"),
        "4x2",
        "8 ranks",
        "4",
    ),
    "a level that does not exist": (
        lambda x: Group("rank", levels=(2, 2)).level(2).shift(x),
        "level 2",
        "levels 0 to 1",
    ),
    "a split of another size": (lambda x: Group("rank").split([[0, 1]]).shift(x), "2 ranks", "has 4", "0 to 3"),
    "a permute to a rank that does not exist": (
        lambda x: Group("rank").permute(x, [(1, 7)]),
        r"\(1, 7\)",
        "destination 7",
        "0 to 3",
    ),
    "a root of a rotation that does not exist": (lambda x: Group("rank").rotated(4).shift(x), "4", "0 to 3"),
    "a negative mask": (lambda x: Group("rank").exchange(x, -1), "-1", "mask"),
}


@pytest.mark.parametrize("mistake", ARGUMENTS)
def test_a_bad_argument_is_named_with_what_was_expected(mistake, error_of, helps):
    call, *says = ARGUMENTS[mistake]
    message = error_of(lambda: traced(call), ArgumentError)
    assert message.startswith("EI0003: ")
    assert all(re.search(part, message) for part in says), message
    assert helps(message), message


# Mistakes outside: (what is called, what the message has to say)

SETUPS = {
    "sizes that are no ints": (lambda: Topology(("2", 4)), r"sizes \('2', 4\)", "positive int"),
    "a size of zero": (lambda: Topology((0, 4)), r"sizes \(0, 4\)", "positive int"),
    "a bool as size": (lambda: Topology((True, 4)), r"sizes \(True, 4\)", "positive int"),
    "no sizes": (lambda: Topology(()), r"sizes \(\)", "positive int"),
    "an int as sizes": (lambda: Topology(8), "sizes 8", "positive int"),
    "an operator that does not exist": (
        lambda: hccljax.explain("allreduce", 8, 8),
        "operator='allreduce'",
        "all_reduce",
    ),
    "a list of operators": (lambda: hccljax.explain(["all_reduce"], 8, 8), r"operator=\['all_reduce'\]", "all_gather"),
    "no ranks": (lambda: hccljax.explain("all_reduce", 8, 0), "ranks=0", "1 or more"),
    "a bool as ranks": (lambda: hccljax.explain("all_reduce", 8, True), "ranks=True", "1 or more"),
    "a text as ranks": (lambda: hccljax.explain("all_reduce", 8, "8"), "ranks='8'", "1 or more"),
    "negative bytes": (lambda: hccljax.explain("all_reduce", -1, 8), "nbytes=-1", "0 or more"),
    "half a byte": (lambda: hccljax.explain("all_reduce", 1.5, 8), r"nbytes=1\.5", "0 or more"),
    "a topology of another size": (lambda: hccljax.explain("all_reduce", 8, 8, "2x8"), "2x8", "16 ranks", "8"),
    "an algorithm that does not exist": (
        lambda: hccljax.explain("all_reduce", 8, 8, algorithm="fast"),
        "algorithm='fast'",
        " ring, ",
    ),
    "an algorithm without a name": (lambda: hccljax.Algorithm("", "", int, int, all_reduce=int), "name ''", "str"),
    "an algorithm without a kernel": (lambda: hccljax.Algorithm("a", "", int, int), "'a' has no kernel", "all_reduce"),
    "a name that is taken": (
        lambda: hccljax.register(hccljax.Algorithm("ring", "", int, int, all_reduce=int)),
        "'ring' is registered already",
    ),
    "a record that is none": (lambda: hccljax.register(None), "None", "Algorithm"),
    "a bad op for gradients": (lambda: hccljax.value_and_grad(jnp.sum, "rank", op="max"), "op='max'", "'mean'"),
}


@pytest.mark.parametrize("mistake", SETUPS)
def test_a_bad_setup_is_named_with_what_was_expected(mistake, error_of, helps):
    call, *says = SETUPS[mistake]
    message = error_of(call, ArgumentError)
    assert message.startswith("EI0003: ")
    assert all(re.search(part, message) for part in says), message
    assert helps(message), message


# Axis names


@pytest.mark.parametrize(
    ("axis_name", "says"),
    [
        ("rnak", "'rnak' is not mapped here"),
        (("rank", "node"), "'node' is not mapped here"),
        (None, "None"),
        (0, "0"),
        ((), r"axis_name=\(\)"),
        ([["rank"]], r"\['rank'\]"),
        ({"rank": 1}, "rank"),
        (("rank", "rank"), "several different ones"),
        (HUGE, "zzz"),
    ],
)
def test_an_axis_name_that_is_not_mapped_is_refused(axis_name, says, error_of, helps):
    message = error_of(lambda: traced(lambda x: hccljax.all_reduce(x, axis_name)), AxisError)
    assert message.startswith("EI0003: ")
    assert re.search(says, message)
    assert helps(message)
    assert len(message) < 1000


@pytest.mark.parametrize(
    "name", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "scatter", "gather"]
)
def test_a_collective_outside_of_a_mapped_function_says_where_it_belongs(name, error_of):
    message = error_of(lambda: getattr(hccljax, name)(jnp.ones(4), "rank"), AxisError)
    assert all(part in message for part in ("'rank'", "jax.shard_map", "jax.vmap(axis_name=…)", "hccljax.Communicator"))


def test_a_group_cannot_be_counted_outside_of_a_mapped_function(error_of):
    assert "'rank' is not mapped here" in error_of(lambda: hccljax.explain("all_reduce", 8, Group("rank")), AxisError)


# Dtypes


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: hccljax.all_reduce(x + 1j, "rank", "max"), ("op='max'", "complex64", "no order")),
        (lambda x: hccljax.reduce_scatter(x + 1j, "rank", "min"), ("op='min'", "complex64", "no order")),
        (lambda x: hccljax.all_reduce(jax.random.key(0), "rank"), ("op='sum'", "key<", "a number or bool")),
        (lambda x: hccljax.all_reduce("abc", "rank"), ("'abc'", "type str", "an array or a number")),
        (lambda x: hccljax.all_gather(object(), "rank"), ("object", "an array or a number")),
        (lambda x: hccljax.all_reduce(x, "rank", accumulate_dtype="f33"), ("accumulate_dtype='f33'", "a dtype")),
        (
            lambda x: hccljax.all_reduce(x, "rank", accumulate_dtype=jnp.bfloat16),
            ("accumulate_dtype=bfloat16", "float32", "wider"),
        ),
    ],
)
def test_a_dtype_without_meaning_is_refused(call, says, error_of):
    message = error_of(lambda: traced(call), DtypeError)
    assert message.startswith("EI0003: ")
    assert all(part in message for part in says), message


# What an algorithm or a derivative does not do


@pytest.mark.parametrize("name", ["broadcast", "reduce", "scatter", "gather"])
def test_native_says_which_algorithms_have_the_operator(name, error_of):
    message = error_of(
        lambda: traced(lambda x: getattr(hccljax, name)(x, "rank", algorithm="native")), UnsupportedError
    )
    assert f"'native' has no {name}" in message
    assert "ring" in message.split("expected one of")[1]


def test_native_has_no_product(error_of):
    call = lambda x: hccljax.all_reduce(x, "rank", "prod", algorithm="native")  # noqa: E731
    assert "sum, mean, max or min" in error_of(lambda: traced(call), UnsupportedError)


@pytest.mark.parametrize("op", ["max", "min"])
def test_an_extremum_has_no_derivative(op, error_of):
    loss = jax.grad(lambda x: hccljax.all_reduce(x, "rank", op).sum())
    message = error_of(lambda: traced(loss), DerivativeError)
    assert op in message
    assert "stop_gradient" in message


# Huge values: the message stays readable


@pytest.mark.parametrize(
    "call",
    [
        lambda x: hccljax.all_reduce(x, "rank", HUGE),
        lambda x: hccljax.all_reduce(x, "rank", algorithm=HUGE),
        lambda x: hccljax.all_reduce(x, "rank", topology=HUGE),
        lambda x: hccljax.all_reduce(x, "rank", topology="9" * 100_000),
        lambda x: hccljax.broadcast(x, "rank", HUGE),
        lambda x: hccljax.all_gather(x, "rank", axis=HUGE),
        lambda x: hccljax.all_gather(x, "rank", to=HUGE),
        lambda x: hccljax.send_recv(x, "rank", [(HUGE, 1)]),
        lambda x: hccljax.batch_send_recv([HUGE], "rank"),
        lambda x: hccljax.all_reduce(x, Group("rank", [HUGE])),
        lambda x: hccljax.all_reduce(x, Group("rank", [[0]] * 50_000)),
        lambda x: hccljax.all_reduce(x, Group("rank", [[]] * 50_000)),
    ],
    ids=["op", "algorithm", "topology", "digits", "root", "axis", "to", "pair", "batch", "group", "ranks", "empty"],
)
def test_a_huge_value_is_shortened_in_the_message(call, error_of):
    message = error_of(lambda: traced(call), ArgumentError)
    assert len(message) < 1000
