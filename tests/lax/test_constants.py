"""Constants and dtypes: psum(1, axis) is a Python int, and every result has the type that jax.lax gives it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hccljax import lax

AXIS, RANKS = "i", 4
PYTHON_NUMBERS = (bool, int, float, complex)
CONSTANTS = {
    "1": 1,
    "int": 7,
    "float": 2.5,
    "complex": 1 + 2j,
    "bool": True,
    "False": False,
    "numpy scalar": np.float32(3),
    "numpy bool": np.bool_(True),
    "numpy int8": np.int8(100),
    "numpy array": np.arange(3, dtype=np.int32),
    "numpy bools": np.array([True, False]),
    "numpy float64": np.arange(2.0),
    "jax array": jnp.arange(3.0),
    "tree": {"a": 1, "b": (2.0, np.ones(2, np.float32))},
    "empty tree": {},
}


def seen(collective, constant):
    """What the collective of a constant is while tracing, outside of any trace's reach."""
    found = []

    def body(x):
        found.append(collective(constant, AXIS))
        return x

    jax.vmap(body, axis_name=AXIS)(np.zeros(RANKS, np.float32))
    return found[0]


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("collective", ["psum", "pmean"])
def test_a_constant_gives_what_it_gives_jax(collective, name):
    ours, theirs = (seen(getattr(module, collective), CONSTANTS[name]) for module in (lax, jax.lax))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.shape(one) == np.shape(other)
        assert (type(one) in PYTHON_NUMBERS) == (type(other) in PYTHON_NUMBERS)
        assert jnp.asarray(one).dtype == jnp.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def test_psum_of_one_is_a_python_int_in_every_mode(on_ranks, mode):
    def body(x):
        size = lax.psum(1, AXIS)
        assert type(size) is int
        return jnp.zeros(size) + x

    assert on_ranks(body, mode, np.zeros(RANKS, np.float32)).shape == (RANKS, RANKS)


def test_psum_of_one_counts_the_group():
    groups = [[0, 1], [2, 3]]
    assert seen(lambda x, axis: lax.psum(x, axis, axis_index_groups=groups), 1) == 2


def test_psum_of_one_counts_all_of_a_tuple_of_axes():
    found = []

    def body(x):
        found.extend([lax.psum(1, ("i", "j")), lax.psum(1, ["j", "i"]), lax.psum(1, "j"), lax.psum(1, ())])
        return x

    jax.vmap(jax.vmap(body, axis_name="j"), axis_name="i")(np.zeros((2, 3)))
    assert found == [6, 6, 3, 1]
    assert {type(size) for size in found} == {int}


KINDS = ("bool", "int8", "uint8", "int32", "uint32", "float16", "bfloat16", "complex64")


@pytest.mark.parametrize(
    ("collective", "dtype"),
    [
        (collective, dtype)
        for collective in ("psum", "pmean", "pmax", "pmin")
        for dtype in KINDS
        if collective in ("psum", "pmean") or dtype != "complex64"
    ],
)
def test_the_dtype_of_every_reduction_is_that_of_jax(on_ranks, collective, dtype):
    x = np.asarray(jnp.asarray(np.array([[0, 1], [1, 0], [1, 1], [0, 1]]), dtype))

    def both(x):
        return tuple(getattr(module, collective)(x, AXIS) for module in (lax, jax.lax))

    ours, theirs = on_ranks(both, "vmap", x)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def test_an_axis_that_is_not_mapped_is_a_name_error_as_in_jax():
    for module in (lax, jax.lax):
        for call in (lambda m=module: m.psum(1, "no"), lambda m=module: m.psum(jnp.ones(2), "no")):
            with pytest.raises(NameError, match="no"):
                call()
