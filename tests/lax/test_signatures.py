"""hccljax.lax has every name of jax.lax, and its collectives have jax.lax's signatures."""

import inspect

import jax
import pytest

import hccljax
from hccljax import lax

COLLECTIVES = (
    "psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute", "pbroadcast", "pshuffle",
    "pswapaxes",
)  # fmt: skip


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_signature_is_that_of_jax(name):
    ours, theirs = getattr(lax, name), getattr(jax.lax, name)
    assert ours is not theirs
    assert parameters(ours) == parameters(theirs)


def test_the_collectives_are_what_the_module_says_it_defines():
    assert sorted(lax.OURS) == sorted(COLLECTIVES)


def test_every_other_name_is_passed_through():
    others = [name for name in dir(jax.lax) if not name.startswith("__") and name not in COLLECTIVES]
    assert {"scan", "fori_loop", "cond", "axis_index", "axis_size", "pcast", "stop_gradient"} <= set(others)
    assert [name for name in others if getattr(lax, name) is not getattr(jax.lax, name)] == []


def test_dir_lists_everything():
    assert set(dir(jax.lax)) <= set(dir(lax))


def test_it_is_imported_like_jax_lax():
    from hccljax.lax import psum, scan

    assert psum is hccljax.lax.psum
    assert scan is jax.lax.scan


def test_a_name_that_neither_has_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_collective"):
        _ = lax.no_such_collective
    with pytest.raises(ImportError):
        from hccljax.lax import no_such_collective  # noqa: F401
