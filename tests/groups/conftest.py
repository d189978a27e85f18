import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec


def _on_devices(function, x, checked):
    mesh = jax.make_mesh((x.shape[0],), ("rank",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("rank")
    body = jax.shard_map(
        lambda rows: jax.tree.map(lambda out: out[None], function(rows[0])),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=checked,
    )
    return jax.jit(body)(x)


def _on_one_device(function, x):
    return jax.jit(jax.vmap(function, axis_name="rank"))(x)


@pytest.fixture(params=["virtual", "unchecked", "checked"])
def on_ranks(request):
    """(function of one rank's array, rows [p, …]) → its results as NumPy rows, on devices or on virtual ranks."""

    def run(function, x):
        if request.param == "virtual":
            out = _on_one_device(function, x)
        else:
            out = _on_devices(function, x, request.param == "checked")
        return jax.tree.map(np.asarray, out)

    return run


@pytest.fixture
def virtual():
    """The same on virtual ranks only, as many as x has rows."""
    return lambda function, x: jax.tree.map(np.asarray, _on_one_device(function, x))
