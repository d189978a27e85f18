"""Specs, presets, meshes: which topology comes of them, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import hccljax
from hccljax.errors import ArgumentError
from hccljax.topology import Level, Preset, Topology, as_topology, from_mesh, presets, register_preset, with_figures
from hccljax.topology.presets import PRESETS, tiered
from hccljax.topology.wiring import Wiring


def wired(topology):
    return [(level.name, level.size, level.links, level.bandwidth) for level in topology.levels]


@pytest.mark.parametrize(
    ("spec", "sizes", "levels"),
    [
        ("atlas-800t-a2:4x8", (8, 4), [("HCCS", 8, "full_mesh", 56e9), ("RoCE", 4, "switch", 25e9)]),
        ("atlas-800t-a2-effective:2x4", (4, 2), [("HCCS", 4, "full_mesh", 18.3e9), ("RoCE", 2, "switch", 20e9)]),
        ("atlas-800t-a2:8", (8,), [("HCCS", 8, "full_mesh", 56e9)]),
        (
            "atlas-800t-a2:2x4x8",
            (8, 4, 2),
            [("HCCS", 8, "full_mesh", 56e9), ("RoCE", 4, "switch", 25e9), ("RoCE", 2, "switch", 25e9)],
        ),
        ("dgx-a100:4x8", (8, 4), [("NVLink", 8, "switch", 300e9), ("InfiniBand", 4, "switch", 25e9)]),
        (
            "atlas-800-910:4x8",
            (8, 4),
            [("HCCS", 4, "full_mesh", 10e9), ("HCCS joint", 2, "switch", 10e9), ("RoCE", 4, "switch", 10e9)],
        ),
        ("atlas-800-910:2x4", (4, 2), [("HCCS", 4, "full_mesh", 10e9), ("RoCE", 2, "switch", 10e9)]),
        (
            "atlas-900-a3:2x24x16",
            (16, 24, 2),
            [("SIO", 2, "full_mesh", 204e9), ("HCCS", 192, "switch", 196e9), ("RoCE", 2, "switch", 25e9)],
        ),
    ],
)  # fmt: skip
def test_presets(spec, sizes, levels):
    topology = as_topology(spec)
    assert (topology.sizes, topology.servers, wired(topology)) == (sizes, None, levels)
    assert str(topology) == spec
    assert as_topology(str(topology)) == topology
    assert as_topology(topology) is topology


def test_links_that_are_too_many():
    with pytest.raises(ArgumentError, match="a full mesh of n ranks has n²"):
        Wiring(Topology(levels=(Level("x", 16384, "full_mesh", 1e9, 0.0),)))


def test_the_articles_ring():
    """5 µs for 2^20 bytes."""
    (hccs,) = as_topology("article:8").levels
    assert (hccs.links, hccs.latency) == ("ring", 0)
    assert (1 << 20) / hccs.bandwidth == pytest.approx(5e-6)


def test_unequal_servers_with_figures():
    topology = as_topology("atlas-800t-a2:5+3")
    assert topology.servers == (5, 3)
    assert [level.size for level in topology.levels] == [5, 2]
    assert topology.places.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0], [4, 0], [0, 1], [1, 1], [2, 1]]


def test_bare_specs_have_no_figures():
    assert as_topology("4x8").levels == ()
    assert with_figures("4x8") == as_topology("atlas-800t-a2:4x8")
    flat = with_figures("32")  # one tier, wired as servers of 8
    assert (flat.sizes, [level.size for level in flat.levels]) == ((32,), [8, 4])
    assert [level.size for level in with_figures("12").levels] == [1, 12]
    assert with_figures("dgx-a100:8") == as_topology("dgx-a100:8")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("atlas-800t-a3:4x8", "unknown topology preset 'atlas-800t-a3'.*Did you mean atlas-800t-a2"),
        ("atlas-800t-a2", "says no sizes; expected them behind it, as in 'atlas-800t-a2:4x8'"),
        ("atlas-800t-a2:4x16", "a server of 16 ranks: one of atlas-800t-a2 has up to 8"),
        ("atlas-800-910:6", "a server of 6 ranks: .*two full meshes of 4; expected up to 4, or 8"),
        ("atlas-800-910:6+3", "two full meshes of 4"),
        ("atlas-900-a3:16+15", r"servers of 16\+15 ranks: one fabric joins.*expected equal ones"),
        ("atlas-800t-a2:", "expected a spec such as"),
        (":4x8", "unknown topology preset ''"),
        ("4x", "expected a spec such as"),
        ("0x8", "expected a spec such as"),
        ("4x8x", "expected a spec such as"),
        ("4x-8", "expected a spec such as"),
        ("", "expected a spec such as"),
        ("9" * 400, "expected a spec such as"),
        (8, "expected a spec such as"),
    ],
)
def test_bad_specs(spec, words):
    with pytest.raises(ArgumentError, match=words):
        as_topology(spec)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bandwidth": 0}, "bandwidth=0.*1e-06 or more"),
        ({"bandwidth": -1.0}, "bandwidth=-1"),
        ({"bandwidth": float("nan")}, "bandwidth=nan"),
        ({"bandwidth": float("inf")}, "bandwidth=inf"),
        ({"bandwidth": "56"}, "bandwidth='56'"),
        ({"bandwidth": True}, "bandwidth=True"),
        ({"latency": -1e-6}, "latency=-1e-06"),
        ({"latency": float("nan")}, "latency=nan"),
        ({"size": 0}, "size=0"),
        ({"size": 2.0}, "size=2.0"),
        ({"bandwidth": 10**400}, "finite number"),
        ({"links": "torus"}, "links='torus'"),
        ({"oversubscription": 0.5}, "oversubscription=0.5"),
        ({"oversubscription": 2.0}, "expected 'switch'"),
    ],
)
def test_bad_levels(change, words):
    given = {"name": "x", "size": 4, "links": "full_mesh", "bandwidth": 1e9, "latency": 0.0} | change
    with pytest.raises(ArgumentError, match=words):
        Level(**given)


def test_numbers_of_numpy():
    level = Level("x", np.int64(4), "switch", np.float32(1e9), np.float64(0))
    assert (level.size, type(level.size), level.bandwidth) == (4, int, 1e9)
    slow = as_topology("atlas-800t-a2:8").degrade(rank=np.int64(3), factor=np.float64(0.5))
    assert slow == as_topology("atlas-800t-a2:8").degrade(rank=3, factor=0.5)


def test_sizes_that_do_not_fit():
    level = Level("x", 4, "switch", 1e9, 0.0)
    with pytest.raises(ArgumentError, match="levels of 4 members, innermost first, for 8 ranks"):
        Topology((8,), levels=(level,))
    with pytest.raises(ArgumentError, match=r"levels of 4 members, .*for servers of 3\+1 ranks: expected 2 members at"):
        Topology(servers=(3, 1), levels=(level,))
    with pytest.raises(ArgumentError, match="2 members at the last level, one a server, and room for 5 ranks in those"):
        Topology(servers=(5, 3), levels=(level, replace(level, size=2)))
    with pytest.raises(ArgumentError, match="Topology levels hold 'x'"):
        Topology((4,), levels=("x",))
    assert Topology(levels=(level, level)).sizes == (4, 4)


def test_rings_of_unequal_servers():
    """Only inside a server that is one ring is it known who is beside whom."""
    ring, switch = Level("ring", 3, "ring", 1e9, 0.0), Level("port", 3, "switch", 1e9, 0.0)
    for levels in (
        (replace(switch, size=5), ring),
        (replace(ring, size=5), ring),
        (ring, replace(switch, size=2), switch),
        (replace(switch, size=2), ring, switch),
    ):
        with pytest.raises(ArgumentError, match=r"cannot be joined by a ring.*expected 'switch' or 'full_mesh'"):
            Topology(servers=(5, 3, 4), levels=levels)
    with pytest.raises(ArgumentError, match=r"level 1 \(RoCE\) is a ring"):
        as_topology("atlas-800t-a2:5+3").with_level(1, links="ring")
    assert Topology(servers=(5, 3, 4), levels=(replace(ring, size=5), switch)).ranks == 12


def test_other_figures_for_a_level():
    topology = as_topology("atlas-800t-a2:4x8").with_level(1, bandwidth=50e9, latency=2e-6)
    assert (topology.levels[1].bandwidth, topology.levels[1].latency, topology.levels[1].size) == (50e9, 2e-6, 4)
    assert topology.levels[0] == as_topology("atlas-800t-a2:4x8").levels[0]
    for level, figures, words in [
        (2, {}, "with_level: k=2: expected an int, 0 to 1"),
        (1.0, {}, "=1.0: expected an int, 0 to 1"),
        (True, {}, "=True: expected an int, 0 to 1"),
        (0, {"size": 3}, "not its size"),
        (0, {"bandwidth": 0}, "1e-06 or more"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            topology.with_level(level, **figures)


def test_levels_that_are_none():
    with pytest.raises(ArgumentError, match="topology 4x8 has no levels; expected one with figures"):
        as_topology("4x8").with_level(0, bandwidth=1e9)
    for bare in ("8", "4x8", "5+3"):
        assert as_topology(bare).places.shape == (as_topology(bare).ranks, 0)


def test_sizes_may_be_any_iterable():
    assert Topology(size for size in (8, 4)) == Topology((8, 4))
    with pytest.raises(ArgumentError, match=r"Topology sizes \(8, 0\): expected one positive int"):
        Topology(size for size in (8, 0))
    for bad in ((8, True), (8, 2.0), (), 8, None):
        with pytest.raises(ArgumentError, match="expected one positive int for each level"):
            Topology(bad)


@pytest.mark.parametrize("spec", ["atlas-800t-a2:4x8", "atlas-800t-a2:5+3", "4x8", "32", "12", "5+3", "article:8"])
def test_a_name_is_that_of_a_preset_with_these_levels(spec):
    """str is a spec of the topology wherever it has a name."""
    topology = with_figures(spec)
    assert not topology.name or as_topology(str(topology)) == topology
    for changed in (topology.with_level(0, bandwidth=1e9), topology.degrade(rank=0, factor=0.5)):
        assert (changed.name, str(changed)) == ("", topology.shape)
    assert topology.with_level(0, bandwidth=topology.levels[0].bandwidth) == topology
    assert bool(topology.name) == (spec not in ("32", "12"))


def test_presets_say_where_they_come_from():
    assert {"atlas-800-910", "atlas-800t-a2", "atlas-900-a3", "dgx-a100", "article"} <= set(presets())
    for preset in PRESETS.values():
        assert preset.source
        assert as_topology(preset.example).name == preset.name


def test_a_preset_of_ones_own():
    level = Level("wire", 1, "switch", 1e9, 0.0)
    mine = Preset(
        "mine", "measured", tiered(lambda size: (Level("bus", size, "switch", 2e9, 0.0),), level), 4, "mine:2x4"
    )
    try:
        assert register_preset(mine) is register_preset(mine)
        assert wired(as_topology("mine:2x4")) == [("bus", 4, "switch", 2e9), ("wire", 2, "switch", 1e9)]
        with pytest.raises(ArgumentError, match="registered already"):
            register_preset(Preset("mine", "other", mine.wire, 4, ""))
    finally:
        PRESETS.pop("mine", None)
    with pytest.raises(ArgumentError, match=r"expected a hccljax\.topology\.Preset"):
        register_preset("mine")


def mesh_of(*processes):
    devices = np.array([SimpleNamespace(process_index=process) for process in processes], object)
    return SimpleNamespace(devices=devices)


def test_more_ranks_than_there_may_be():
    with pytest.raises(ArgumentError, match="ranks: expected 16,777,216 at most"):
        as_topology("9999999x9999999x9999999")
    with pytest.raises(ArgumentError, match="ranks: expected 16,777,216 at most"):
        hccljax.lower_bound("all_reduce", 8, "5000x5000")


class TestMesh:
    def test_one_process(self):
        assert from_mesh(jax.make_mesh((2, 4), ("a", "b"))) == Topology((8,))

    def test_processes_are_servers(self):
        assert from_mesh(mesh_of(0, 0, 0, 1, 1, 1)) == Topology((3, 2))
        assert from_mesh(mesh_of(3, 3, 3, 1, 1)) == Topology(servers=(3, 2))

    def test_refusals(self):
        with pytest.raises(ArgumentError, match="do not follow each other"):
            from_mesh(mesh_of(0, 1, 0, 1))
        for bad in (None, 8, mesh_of()):
            with pytest.raises(ArgumentError, match=r"expected a jax\.sharding\.Mesh"):
                from_mesh(bad)
