"""The full-mesh primitives: blocks between all ranks of a communicator, whatever maps its axes."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from hccljax.layout import whole
from hccljax.partition import listed
from hccljax.primitives import mesh

LAYOUTS = {
    "whole": whole(8),
    "turned": listed(((5, 2, 7, 0, 3, 6, 1, 4),)),
    "halves": listed(((0, 1, 2, 3), (4, 5, 6, 7))),
    "crossed": listed(((5, 2, 7, 0), (3, 6, 1, 4))),
    "pairs": listed(((7, 0), (6, 1), (5, 2), (4, 3))),
    "alone": listed(tuple((r,) for r in range(8))),
}
GRID = np.arange(1, 2 * 4 * 8 * 3 + 1, dtype=np.float32).reshape(2, 4, 8, 3)
AXES = (("a", "b"), ("b", "a"))


def flattened(x, axes):
    """x [a, b, …] → [ranks, …] in the order of axes."""
    return (x if axes == ("a", "b") else x.swapaxes(0, 1)).reshape(8, *x.shape[2:])


@pytest.mark.parametrize("axes", AXES)
def test_blocks_are_exchanged_and_gathered_in_every_communicator(on_grid, axes):
    # A partition of two axes goes by one permute for each pair of places, which takes long to compile.
    over_two_axes = {name: LAYOUTS[name] for name in ("whole", "crossed")}

    def body(x):
        return {
            name: (mesh.exchange(x[: layout.p], axes=axes, layout=layout), mesh.gather(x, axes=axes, layout=layout))
            for name, layout in over_two_axes.items()
        }

    rows, out = flattened(GRID, axes), on_grid(body, GRID)
    for name, layout in over_two_axes.items():
        exchanged, gathered = (flattened(one, axes) for one in out[name])
        for members in layout.groups:
            for place, rank in enumerate(members):
                np.testing.assert_array_equal(exchanged[rank], rows[list(members), place], err_msg=name)
                np.testing.assert_array_equal(gathered[rank], rows[list(members)], err_msg=name)


@pytest.mark.parametrize("layout", ["whole", "crossed", "pairs"])
def test_the_transpose_of_an_exchange_is_an_exchange_and_that_of_a_gather_a_sum(layout):
    layout = LAYOUTS[layout]
    rows = GRID.reshape(8, 8, 3)
    blocks = rows[:, : layout.p]
    exchange = jax.vmap(lambda x: mesh.exchange(x, axes=("rank",), layout=layout), axis_name="rank")
    gather = jax.vmap(lambda x: mesh.gather(x, axes=("rank",), layout=layout), axis_name="rank")
    np.testing.assert_array_equal(jax.linear_transpose(exchange, blocks)(exchange(blocks))[0], blocks)
    (back,) = jax.linear_transpose(gather, rows[:, 0])(blocks)
    for members in layout.groups:
        for place, rank in enumerate(members):
            np.testing.assert_array_equal(back[rank], blocks[list(members), place].sum(0))


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("layout", ["whole", "crossed"])
def test_each_is_one_collective_of_xlas(layout, checked):
    layout, spec = LAYOUTS[layout], PartitionSpec("rank")
    devices = jax.make_mesh((8,), ("rank",), axis_types=(AxisType.Auto,))

    def body(x):
        out = mesh.exchange(x[0, : layout.p], axes=("rank",), layout=layout)
        return mesh.gather(out, axes=("rank",), layout=layout)[None]

    mapped = jax.shard_map(body, mesh=devices, in_specs=spec, out_specs=spec, check_vma=checked)
    program = jax.jit(mapped).lower(GRID.reshape(8, 8, 3)).as_text()
    assert sorted(re.findall(r'"stablehlo\.(all_\w+|collective_\w+)"', program)) == ["all_gather", "all_to_all"]


def test_gathering_a_whole_axis_under_vmap_copies_nothing():
    # Every rank's result is the operand itself, so it leaves without a mapped axis.
    rows = GRID.reshape(8, 8, 3)
    for name in ("whole", "turned"):
        gather = jax.vmap(
            lambda x, layout=LAYOUTS[name]: mesh.gather(x, axes=("rank",), layout=layout),
            axis_name="rank", out_axes=None,
        )  # fmt: skip
        np.testing.assert_array_equal(gather(rows), rows[LAYOUTS[name].members[0]])


@pytest.mark.parametrize("which", [mesh.exchange, mesh.gather])
def test_a_batch_axis_inside_travels_along(which):
    rows = GRID.reshape(8, 8, 3)
    one = lambda x: which(x, axes=("rank",), layout=LAYOUTS["whole"])  # noqa: E731
    inner = jax.vmap(jax.vmap(one, in_axes=-1, out_axes=-1), axis_name="rank")
    np.testing.assert_array_equal(inner(rows), jax.vmap(one, axis_name="rank")(rows))
