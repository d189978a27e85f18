"""Counts that cannot be: each is named, with what would have been right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax

X = jnp.ones((2, 6, 2))
BLOCKS = jnp.ones((2, 2, 3))


def on_two_ranks(call, x=X):
    return lambda: jax.vmap(call, axis_name="r")(x)


STATIC = {
    "too few": (lambda x: hccljax.all_gather_v(x, "r", (1,)), "counts=(1,) has 1 entries; expected 2"),
    "negative": (lambda x: hccljax.all_gather_v(x, "r", (1, -2)), "counts[1] is -2; expected 0 or more"),
    "no sequence": (lambda x: hccljax.all_gather_v(x, "r", 3), "counts=3: expected a sequence of 2 static ints"),
    "floats": (lambda x: hccljax.all_gather_v(x, "r", (1.0, 2.0)), "expected a sequence of 2 static ints"),
    "bools": (lambda x: hccljax.all_gather_v(x, "r", (True, False)), "expected a sequence of 2 static ints"),
    "traced": (
        lambda x: hccljax.all_gather_v(x, "r", x[:2, 0].astype(int)),
        "a traced array of shape (2,): expected 2",
    ),
    "traced entry": (
        lambda x: hccljax.all_gather_v(x, "r", [1, x[0, 0].astype(int)]),
        "expected a sequence of 2 static",
    ),
    "no room": (
        lambda x: hccljax.all_gather_v(x, "r", (1, 7)),
        "dimension 0 has size 6, but counts=(1, 7) send up to 7 entries; expected a size of 7 or more",
    ),
    "no dimension": (lambda x: hccljax.all_gather_v(x[0, 0], "r", (1, 1)), "array of one dimension or more"),
    "bad axis": (lambda x: hccljax.all_gather_v(x, "r", (1, 1), axis=2), "axis=2 is out of range"),
    "bad to": (lambda x: hccljax.all_gather_v(x, "r", (1, 1), to="both"), "to='both': expected 'varying'"),
    "other sum": (
        lambda x: hccljax.reduce_scatter_v(x, "r", (2, 3)),
        "dimension 0 has size 6, but counts=(2, 3) add up to 5; expected a size of 5",
    ),
    "bad op": (lambda x: hccljax.reduce_scatter_v(x, "r", (2, 4), "xor"), "op='xor': expected one of"),
    "bad algorithm": (
        lambda x: hccljax.reduce_scatter_v(x, "r", (2, 4), algorithm="rings"),
        "algorithm='rings': expected",
    ),
    "matrix rows": (lambda x: hccljax.all_to_all_vc(x, "r", [[1, 2]]), "matrix has 1 rows; expected 2"),
    "matrix columns": (
        lambda x: hccljax.all_to_all_vc(x, "r", [[1, 2], [3]]),
        "matrix[1]=[3] has 1 entries; expected 2",
    ),
    "matrix entry": (lambda x: hccljax.all_to_all_vc(x, "r", [[1, 2], [3, -1]]), "matrix[1][1] is -1; expected 0"),
    "flat matrix": (
        lambda x: hccljax.all_to_all_vc(x, "r", [1, 2]),
        "matrix[0]=1: expected a sequence of 2 static ints",
    ),
    "no matrix": (lambda x: hccljax.all_to_all_vc(x, "r", 4), "matrix=4: expected 2 rows of 2 static ints"),
    "traced matrix": (lambda x: hccljax.all_to_all_vc(x, "r", x[:2]), "matrix is a traced array of shape (2, 2)"),
    "no room for the matrix": (
        lambda x: hccljax.all_to_all_vc(x, "r", [[1, 6], [0, 0]]),
        "x has shape (6, 2), but a rank of this matrix sends 7 rows; expected an array [n, …] with n at least 7",
    ),
    "rows of a scalar": (lambda x: hccljax.all_to_all_vc(x[0, 0], "r", [[0, 0], [0, 0]]), "x has shape ()"),
}


@pytest.mark.parametrize("name", STATIC)
def test_static_counts(name, error_of, helps):
    call, text = STATIC[name]
    message = error_of(on_two_ranks(call), hccljax.ArgumentError)
    assert text in message
    assert helps(message)


ONE = jnp.array([1, 1])
RUN_TIME = {
    "shape": (lambda x: hccljax.all_to_all_v(x, "r", jnp.array([1])), "send_counts has shape (1,); expected (2,)"),
    "no array": (lambda x: hccljax.all_to_all_v(x, "r", object()), "expected an array of 2 ints"),
    "known and negative": (lambda x: hccljax.all_to_all_v(x, "r", [0, -1]), "send_counts[1] is negative; expected 0"),
    "known and too large": (
        lambda x: hccljax.all_to_all_v(x, "r", np.array([4, 0])),
        "send_counts[0] is 4, but a block has room for 3 rows; expected at most 3 (pass a larger capacity)",
    ),
    "not in blocks": (
        lambda x: hccljax.all_to_all_v(x[0], "r", ONE),
        "dimensions [(3,)]; expected blocks [2, capacity",
    ),
    "other capacity": (lambda x: hccljax.all_to_all_v(x, "r", ONE, capacity=4), "[(2, 3)]; expected blocks [2, 4, …]"),
    "unlike leaves": (lambda x: hccljax.all_to_all_v([x, x[:, :2]], "r", ONE), "[(2, 2), (2, 3)]; expected blocks"),
    "unlike rows": (
        lambda x: hccljax.all_to_all_v([x[0], x], "r", ONE, capacity=1, send_offsets=ONE),
        "x starts with dimensions [(2,), (3,)]; expected arrays [n, …]",
    ),
    "nothing": (lambda x: hccljax.all_to_all_v([], "r", ONE), "x=[] holds no array: expected at least one"),
    "no capacity": (lambda x: hccljax.all_to_all_v(x, "r", ONE, send_offsets=ONE), "capacity=None with send_offsets"),
    "traced capacity": (
        lambda x: hccljax.all_to_all_v(x, "r", ONE, capacity=x[0, 0].astype(int), send_offsets=ONE),
        "expected a static int, 0 or more",
    ),
    "negative capacity": (
        lambda x: hccljax.all_to_all_v(x, "r", ONE, capacity=-1),
        "capacity=-1: expected a static int",
    ),
    "offsets": (
        lambda x: hccljax.all_to_all_v(x, "r", ONE, capacity=1, send_offsets=jnp.array(0)),
        "send_offsets has shape (); expected (2,)",
    ),
}


@pytest.mark.parametrize("name", RUN_TIME)
def test_counts_at_run_time(name, error_of, helps):
    call, text = RUN_TIME[name]
    message = error_of(on_two_ranks(call, BLOCKS), hccljax.ArgumentError)
    assert text in message
    assert helps(message)


def test_counts_that_are_no_integers(error_of):
    for counts in (jnp.ones(2), jnp.array([True, False])):
        message = error_of(
            on_two_ranks(lambda x, n=counts: hccljax.all_to_all_v(x, "r", n), BLOCKS), hccljax.DtypeError
        )
        assert f"send_counts has dtype {counts.dtype}; expected integers" in message


def test_an_axis_that_is_not_mapped(error_of):
    for call in (
        lambda: hccljax.all_gather_v(X, "r", (1, 1)),
        lambda: hccljax.reduce_scatter_v(X, "r", (1, 1)),
        lambda: hccljax.all_to_all_v(X, "r", ONE),
        lambda: hccljax.all_to_all_vc(X, "r", ((1, 1), (1, 1))),
    ):
        assert "is not mapped here" in error_of(call, hccljax.AxisError)


def test_derivatives_that_do_not_exist(error_of):
    def loss(x):
        return jnp.sum(jax.vmap(lambda x: hccljax.reduce_scatter_v(x, "r", (2, 4), "max"), axis_name="r")(x))

    assert "has no derivative" in error_of(lambda: jax.grad(loss)(X), hccljax.DerivativeError)
