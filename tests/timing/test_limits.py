"""No algorithm beats the bound, whatever the topology; pure dataflow is never slower than the order of streams."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from hccljax.algorithm import algorithms, hierarchy, registered
from hccljax.algorithm.base import OPERATORS
from hccljax.algorithm.hierarchical import serves
from hccljax.timing.bounds import lower_bound
from hccljax.timing.kernel import kernel_schedule
from hccljax.timing.simulation import simulate
from hccljax.topology import Level, Topology

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda sizes: 1 < math.prod(sizes) <= 24)


@st.composite
def topologies(draw):
    return Topology(
        levels=tuple(
            Level(
                f"level{k}",
                size,
                draw(st.sampled_from(["switch", "full_mesh", "ring"])),
                draw(st.floats(1e8, 1e12)),
                draw(st.sampled_from([0.0, 1e-7, 1e-5])),
            )
            for k, size in enumerate(draw(SIZES))
        )
    )


@st.composite
def records(draw, topology, operator):
    """An algorithm that has the operator on these tiers: one for all ranks, or one for each level."""
    tiers, able = topology.sizes, [name for name in algorithms() if name != "native"]
    if draw(st.booleans()):
        named = [
            draw(st.sampled_from([n for n in able if serves(registered(n), operator, k == len(tiers) - 1)]))
            for k in range(len(tiers))
        ]
        record = hierarchy(tuple(map(registered, named)), tiers)
        if record.supports(operator):
            return record
    record = registered(draw(st.sampled_from([n for n in able if registered(n).supports(operator)])))
    return record.over(tiers) if record.over is not None else record


@settings(max_examples=150, deadline=None)
@given(st.data(), topologies(), st.sampled_from(OPERATORS), st.integers(0, 1 << 16))
def test_bounds_and_modes(data, topology, operator, block):
    record = data.draw(records(topology, operator))
    nbytes = block * topology.ranks
    schedule = kernel_schedule(record, operator, topology.ranks, nbytes, topology.sizes)
    ordered = simulate(schedule, topology).seconds
    assert ordered >= lower_bound(operator, nbytes, topology).seconds * (1 - 1e-9)
    assert simulate(schedule, topology, mode="eager").seconds <= ordered * (1 + 1e-12)
