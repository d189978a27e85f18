"""Numbers that a caller gives: which are taken, as what, and what the error says of others."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hccljax.errors import ArgumentError
from hccljax.numbers import real, whole


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3), jnp.int32(3)])
def test_whole_numbers(value):
    assert whole("p", value, 1, 3) == 3
    assert type(whole("p", value)) is int


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float64(3), "3", None, [3], np.array([3, 3]), 4, 0, -1])
def test_what_is_no_whole_number_from_1_to_3(value):
    with pytest.raises(ArgumentError, match=r"p=.*: expected an int, 1 to 3"):
        whole("p", value, 1, 3)


def test_a_number_that_is_not_known_while_tracing():
    with pytest.raises(ArgumentError, match=r"p=.*expected an int, 0 or more"):
        jax.eval_shape(lambda x: whole("p", x) * x, jax.ShapeDtypeStruct((), "int32"))


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), np.float16(2), Fraction(2)])
def test_real_numbers(value):
    assert real("rate", value, 2) == real("rate", value, 0, 2, above=True) == 2
    assert type(real("rate", value)) is float


@pytest.mark.parametrize("value", [True, np.True_, math.nan, math.inf, -math.inf, 10**400, "2", None, 2j, -1, 0])
def test_what_is_no_real_number_above_0(value):
    with pytest.raises(ArgumentError, match=r"rate=.*: expected a finite number, above 0, in bytes/s"):
        real("rate", value, above=True, unit="bytes/s")


def test_bounds_are_said():
    for bounds, words in [
        ({"least": 1}, "1 or more"),
        ({"most": 1}, "0 or more and up to 1"),
        ({"most": 1, "above": True}, "above 0 and up to 1"),
    ]:
        with pytest.raises(ArgumentError, match=f"expected a finite number, {words}$"):
            real("x", -1.0, **bounds)


def test_what_may_be_infinite():
    assert real("x", math.inf, infinite=True) == real("x", np.float32(math.inf), infinite=True) == math.inf
    for bad in (-math.inf, math.nan, "inf"):
        with pytest.raises(ArgumentError, match=r"x=.*: expected a number, 0 or more"):
            real("x", bad, infinite=True)
