import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec


def _mapped(function, sizes, specs, strip, restore, checked):
    """shard_map of function over a mesh of the given axes; strip and restore take a device's axes of size 1 away."""
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))

    def body(block):
        return jax.tree.map(lambda out: jnp.expand_dims(out, restore), function(strip(block)))

    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=checked)


def _on_grid(kind, function, x):
    a, b = x.shape[:2]
    if kind == "vmap-vmap":
        mapped = jax.vmap(jax.vmap(function, axis_name="b"), axis_name="a")
    elif kind == "vmap-devices":
        rows = jax.vmap(function, axis_name="a")
        mapped = _mapped(rows, {"b": b}, PartitionSpec(None, "b"), lambda block: block[:, 0], (1,), True)
    elif kind == "devices-vmap":
        rows = jax.vmap(function, axis_name="b")
        mapped = _mapped(rows, {"a": a}, PartitionSpec("a"), lambda block: block[0], (0,), False)
    else:
        sizes, specs = {"a": a, "b": b}, PartitionSpec("a", "b")
        mapped = _mapped(function, sizes, specs, lambda block: block[0, 0], (0, 1), kind == "checked")
    return jax.tree.map(np.asarray, jax.jit(mapped)(x))


@pytest.fixture(params=["vmap-vmap", "checked", "unchecked", "vmap-devices", "devices-vmap"])
def on_grid(request):
    """(function of one rank's array, x [a, b, …]) → its results [a, b, …]; each axis mapped by vmap or over devices."""
    return lambda function, x: _on_grid(request.param, function, x)
