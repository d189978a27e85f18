"""Python numbers that a program closes over stay weakly typed through collectives where jax.lax leaves them so."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import hccljax

COLLECTIVES = {
    "psum": lambda module, x: module.psum(x, "i"),
    "pmean": lambda module, x: module.pmean(x, "i"),
    "pmax": lambda module, x: module.pmax(x, "i"),
    "pmin": lambda module, x: module.pmin(x, "i"),
    "all_gather": lambda module, x: module.all_gather(x, "i"),
    "ppermute": lambda module, x: module.ppermute(x, "i", [(0, 1), (1, 0)]),
}


def kept(name, module, mode, number):
    """Whether a weak number is weak behind the collective."""
    seen = []

    def one_rank(x):
        seen.append(jax.typeof(COLLECTIVES[name](module, x)).weak_type)
        return x

    if mode == "vmap":
        mapped = jax.vmap(one_rank, in_axes=None, out_axes=None, axis_name="i", axis_size=2)
    else:
        mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
        everywhere = PartitionSpec()
        mapped = jax.shard_map(
            one_rank, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=mode == "checked"
        )
    jax.eval_shape(lambda x: mapped(x * number), 1 if isinstance(number, int) else 1.0)
    return seen[0]


@pytest.mark.filterwarnings("ignore::hccljax.InvariantOperandWarning")
@pytest.mark.parametrize("number", [2.5, 3])
@pytest.mark.parametrize("mode", ["vmap", "unchecked", "checked"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_number_is_as_weak_as_behind_jax_lax(name, mode, number):
    assert kept(name, hccljax.lax, mode, number) == kept(name, lax, mode, number)


def test_a_weak_number_does_not_widen_what_it_meets():
    def scaled(s):
        return jax.vmap(lambda: jnp.bfloat16(1) * hccljax.lax.psum(s, "i"), axis_name="i", axis_size=8, out_axes=None)()

    assert jax.jit(scaled)(1.0).dtype == jnp.bfloat16
