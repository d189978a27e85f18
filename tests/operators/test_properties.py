"""Random operators, shapes, dtypes and groups on virtual ranks, against NumPy and against jax.lax."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import hccljax
from hccljax.algorithm import registered
from hccljax.algorithm.base import OPERATORS

# jax.lax has no groups under vmap, and so has "native".
PAIRS = [
    (name, operator)
    for name in hccljax.algorithms()
    for operator in OPERATORS
    if name not in ("native", "hierarchical") and registered(name).supports(operator)
]
SIZES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
DTYPES = st.sampled_from(["int8", "uint16", "int32", "float32", "bfloat16", "bool"])
few = settings(max_examples=40, deadline=None)


@st.composite
def partitions(draw):
    """Up to 12 ranks in any number of groups of equal size, in any order."""
    size = draw(st.integers(1, 6))
    ranks = draw(st.permutations(range(size * draw(st.integers(1, 12 // size)))))
    return [ranks[i : i + size] for i in range(0, len(ranks), size)]


@few
@given(pair=st.sampled_from(PAIRS), groups=partitions(), shape=SIZES, dtype=DTYPES, data=st.data())
def test_every_group_is_served_as_numpy_would(ranks, pair, groups, shape, dtype, data):
    algorithm, operator = pair
    p, n = len(groups[0]), sum(map(len, groups))
    op = data.draw(st.sampled_from(["sum", "max", "min"]), label="op")
    root = data.draw(st.integers(0, p - 1), label="root")
    x = np.random.default_rng(0).integers(0, 4, (n, *ranks.rows_of(operator, p, shape)[1:])).astype(jnp.dtype(dtype))
    group = hccljax.Group(ranks.axis, groups)
    out = ranks.virtual(lambda row: ranks.call(operator, row, op, root, axis=group, algorithm=algorithm), x)
    for members in groups:
        ranks.same(out[list(members)], ranks.expected(operator, x[list(members)], op, root), members)


@few
@given(
    operator=st.sampled_from(["all_gather", "reduce_scatter", "all_to_all"]),
    p=st.integers(1, 6), shape=st.lists(st.integers(0, 4), min_size=1, max_size=3), tiled=st.booleans(), data=st.data(),
)  # fmt: skip
def test_axes_and_tiles_are_those_of_jax_lax(ranks, operator, p, shape, tiled, data):
    axis, other = (data.draw(st.integers(-len(shape), len(shape) - 1), label=name) for name in ("axis", "other"))
    able = [name for name, operator_ in PAIRS if operator_ == operator]
    algorithm = data.draw(st.sampled_from(able), label="algorithm")
    shape = list(shape)
    if operator != "all_gather":
        shape[axis] = p * data.draw(st.integers(0, 3), label="tiles") if tiled else p
    if operator == "all_to_all":
        twin = partial(lax.all_to_all, split_axis=axis % len(shape), concat_axis=other % len(shape), tiled=tiled)
        arguments = {"split_axis": axis, "concat_axis": other}
    else:
        name = "axis" if operator == "all_gather" else "scatter_dimension"
        twin = partial(
            lax.all_gather if operator == "all_gather" else lax.psum_scatter, **{name: axis % len(shape)}, tiled=tiled
        )
        arguments = {name: axis % len(shape)}
    x = np.arange(p * np.prod(shape, dtype=int), dtype=np.int32).reshape(p, *shape)
    ours = partial(getattr(hccljax, operator), **arguments, tiled=tiled, algorithm=algorithm)
    one, two = (ranks.virtual(lambda row, f=f: f(row, axis_name=ranks.axis), x) for f in (ours, twin))
    ranks.same(one, two)


@few
@given(p=st.integers(1, 12), shape=SIZES, dtype=DTYPES, data=st.data())
def test_send_recv_moves_what_the_pairs_say(ranks, p, shape, dtype, data):
    sources = data.draw(st.lists(st.integers(0, p - 1), unique=True), label="sources")
    destinations = data.draw(st.permutations(range(p)), label="destinations")[: len(sources)]
    x = np.random.default_rng(0).integers(0, 4, (p, *shape)).astype(jnp.dtype(dtype))
    wanted = np.zeros_like(x)
    wanted[destinations] = x[sources]
    pairs = list(zip(sources, destinations, strict=True))
    ranks.same(jax.vmap(lambda row: hccljax.send_recv(row, ranks.axis, pairs), axis_name=ranks.axis)(x), wanted)
