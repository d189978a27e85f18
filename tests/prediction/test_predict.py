"""Predictions of whole steps: what is replaced, what overlaps, and what comes out for known programs."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hccljax
from hccljax import Rates
from hccljax.errors import ArgumentError, SettingError
from hccljax.prediction.part import part
from hccljax.prediction.replacing import Replacing
from hccljax.schedule.tracing import trace_with
from hccljax.topology import Topology, as_topology

A2 = as_topology("atlas-800t-a2:4x8")
F32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731


def replaced(fn, *args, sizes, topology, algorithm=None, places=None):
    return trace_with(fn, args, sizes, False, Replacing(topology, places, algorithm))


def events(schedule):
    return [(e.kind, e.label, e.nbytes, e.trips, str(e.pattern), e.messages.tolist()) for e in schedule]


class TestReplaced:
    @pytest.mark.parametrize(
        ("bare", "ours"),
        [
            (lambda x: lax.psum(x, "r"), lambda x, **o: hccljax.all_reduce(x, "r", **o)),
            (lambda x: lax.pmean(x, "r"), lambda x, **o: hccljax.all_reduce(x, "r", **o)),
            (lambda x: lax.pmax(x, "r"), lambda x, **o: hccljax.all_reduce(x, "r", "max", **o)),
            (lambda x: lax.all_gather(x, "r"), lambda x, **o: hccljax.all_gather(x, "r", **o)),
            (
                lambda x: lax.all_gather(x, "r", axis=1, tiled=True),
                lambda x, **o: hccljax.all_gather(x, "r", axis=1, tiled=True, **o),
            ),
            (
                lambda x: lax.psum_scatter(x, "r", tiled=True),
                lambda x, **o: hccljax.reduce_scatter(x, "r", tiled=True, **o),
            ),
            (lambda x: lax.all_to_all(x, "r", 0, 0), lambda x, **o: hccljax.all_to_all(x, "r", 0, 0, **o)),
        ],
    )
    @pytest.mark.parametrize("algorithm", ["NHR", "level0:mesh;level1:ring", None])
    def test_a_collective_of_lax_is_one_of_hccljax(self, bare, ours, algorithm):
        x, sizes = F32(8, 16), {"r": 8}
        options = {"algorithm": algorithm, "topology": "2x4"}
        if algorithm == "NHR" and "all_to_all" in str(jax.make_jaxpr(bare, axis_env=[("r", 8)])(x)):
            options["algorithm"] = algorithm = "bruck"
        if algorithm == "level0:mesh;level1:ring" and "all_to_all" in str(jax.make_jaxpr(bare, axis_env=[("r", 8)])(x)):
            options["algorithm"] = algorithm = "level0:mesh;level1:pairwise"
        found = replaced(bare, x, sizes=sizes, topology=as_topology("atlas-800t-a2:2x4"), algorithm=algorithm)
        expected = hccljax.trace(partial(ours, **options), x, axis_sizes=sizes)
        assert events(found) == events(expected)

    def test_several_operands_groups_and_scalars(self):
        def step(a, b):
            pair = lax.psum((a, b), "r")
            return pair, lax.psum(b, "r", axis_index_groups=[[0, 1], [2, 3]]), lax.pmax(1.0 * b[0], "r")

        schedule = replaced(step, F32(4), F32(4), sizes={"r": 4}, topology=as_topology("atlas-800t-a2:4"))
        assert {event.kind for event in schedule} == {"permute"}
        assert [event.layout.p for event in schedule] == [4, 4, 4, 4, 2, 2, 4, 4]

    def test_groups_of_unequal_size(self):
        """Each size of communicator runs on its own part of the topology."""
        step = lambda x: lax.pmax(x, "r", axis_index_groups=[[0], [1, 2, 3], [4, 5, 6]])  # noqa: E731
        found = replaced(step, F32(9), sizes={"r": 7}, topology=as_topology("atlas-800t-a2:7"), algorithm="ring")
        assert {event.layout.p for event in found} == {3}
        assert found.bytes_sent.tolist() == [0, *[4 * 3 * 4] * 6]
        many = lambda x: lax.all_gather(x, "r", axis_index_groups=[[0], [1, 2, 3]])  # noqa: E731
        with pytest.raises(ArgumentError, match="all_gather over communicators of 3 and 1 ranks"):
            replaced(many, F32(9), sizes={"r": 4}, topology=as_topology("atlas-800t-a2:4"))

    def test_communicators_that_lie_differently(self):
        """One program runs in all of them: on the part of the slowest, whichever comes first."""
        near, far = [0, 1, 2, 3], [4, 5, 8, 9]
        options = {"axis_sizes": {"copy": 2, "r": 4}, "topology": "atlas-800t-a2:2x8", "algorithm": "fastest"}
        step = lambda x: lax.psum(x, "r")  # noqa: E731
        labels = lambda found: [event.label for event in found.schedule]  # noqa: E731
        alone = hccljax.predict(step, F32(1 << 20), **{**options, "axis_sizes": {"r": 4}}, placement=far)
        for placement in ([*near, *far], [*far, *near]):
            found = hccljax.predict(step, F32(1 << 20), **options, placement=placement)
            assert labels(found) == labels(alone)
            assert found.simulation.assumptions[-1].startswith("communicators over r lie differently")
        alike = hccljax.predict(step, F32(1 << 20), **options, placement=[*near, 8, 9, 10, 11])
        assert labels(alike) != labels(alone)
        assert not any("lie differently" in sentence for sentence in alike.simulation.assumptions)

    def test_array_dimensions_among_the_axes_are_reduced_first(self):
        both = lambda x: lax.psum(x, ("r", 1))  # noqa: E731
        mapped = lambda x: jax.vmap(lambda row: lax.psum(row, ("i", "r")), axis_name="i")(x)  # noqa: E731
        for step, nbytes in ((both, 8 * 4), (mapped, 4 * 4)):
            options = {"sizes": {"r": 4}, "topology": as_topology("atlas-800t-a2:4")}
            ring = replaced(step, F32(8, 4), algorithm="ring", **options)
            assert ring.max_bytes_sent == 6 * nbytes / 4
            native = replaced(step, F32(8, 4), algorithm="native", **options)
            assert [(event.kind, event.nbytes) for event in native] == [("psum", nbytes)]
            assert [event.nbytes for event in hccljax.trace(step, F32(8, 4), axis_sizes={"r": 4})] == [nbytes]

    def test_inside_scan_and_gradients(self):
        def loss(w, x):
            return lax.scan(lambda v, one: (jnp.tanh(lax.psum(v @ one, "r")), None), x, w)[0].sum()

        schedule = replaced(jax.grad(loss), F32(5, 8, 8), F32(8, 8), sizes={"r": 4}, topology=as_topology("4"))
        assert {event.kind for event in schedule} == {"permute"}
        assert {event.trips for event in schedule} == {15}

    def test_the_psum_that_differentiation_inserts(self):
        mesh = jax.sharding.AbstractMesh((4,), ("r",))
        spec = jax.sharding.PartitionSpec

        def step(w, x):
            loss = lambda w, x: ((x @ w) ** 2).sum()  # noqa: E731
            return jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(spec(), spec("r")), out_specs=spec())(w, x)

        schedule = trace_with(step, (F32(8, 8), F32(8, 8)), {}, False, Replacing(as_topology("4"), None, "ring"))
        assert [event.label for event in schedule] == ["ring_reduce_scatter", "ring_all_gather"]

    def test_native_stays_what_it_is(self):
        schedule = replaced(lambda x: lax.psum(x, "r"), F32(8), sizes={"r": 4}, topology=A2, algorithm="native")
        assert [event.kind for event in schedule] == ["psum"]


class TestPart:
    @pytest.mark.parametrize(
        ("places", "sizes", "levels"),
        [
            (range(32), (8, 4), [("HCCS", 8), ("RoCE", 4)]),
            (range(8, 16), (8,), [("HCCS", 8)]),
            (range(3, 32, 8), (1, 4), [("RoCE", 4)]),  # a level 0 of one rank: what joins them is level 1
            ([0, 1, 8, 9], (2, 2), [("HCCS", 2), ("RoCE", 2)]),
            ([0, 1, 10, 11], (2, 2), [("HCCS", 2), ("RoCE", 2)]),
            ([0, 8, 1, 9], (4,), [("RoCE", 4)]),  # servers take turns
            ([1, 0], (2,), [("HCCS", 2)]),
            ([5], (1,), []),
        ],
    )
    def test_of_equal_servers(self, places, sizes, levels):
        found = part(A2, places)
        assert (found.sizes, [(level.name, level.size) for level in found.levels]) == (sizes, levels)

    @pytest.mark.parametrize(
        ("places", "sizes", "levels"),
        [
            (range(64), (8, 4, 2), [8, 4, 2]),
            (range(32, 64), (8, 4), [8, 4]),
            ([0, 32], (1, 1, 2), [2]),
            (range(1, 64, 8), (1, 4, 2), [4, 2]),
            (range(16, 48), (8, 2, 2), [8, 2, 2]),
            (range(24, 64), (8, 5), [8, 5]),  # a server of one pod, all of the other: no tier
            ([0, 8, 1, 9, 32, 40, 33, 41], (4, 2), [4, 2]),  # servers take turns, pods do not
        ],
    )
    def test_of_super_pods(self, places, sizes, levels):
        found = part(as_topology("atlas-800t-a2:2x4x8"), places)
        assert (found.sizes, [level.size for level in found.levels]) == (sizes, levels)

    def test_of_wiring_that_does_not_follow_the_tiers(self):
        found = part(as_topology("atlas-900-a3:2x3x16"), range(0, 96, 2))
        assert (found.sizes, [(one.name, one.size) for one in found.levels]) == ((8, 3, 2), [("HCCS", 24), ("RoCE", 2)])

    def test_all_places_are_the_topology_itself(self):
        degraded = A2.degrade(rank=3, factor=0.5)
        assert part(degraded, range(32)) is degraded
        assert (part(A2, range(8)).name, part(A2, [5]).name) == ("atlas-800t-a2", "")

    def test_what_is_degraded_stays_so_among_the_ranks_that_remain(self):
        degraded = (
            A2.degrade(link=(0, 1), factor=0.25)
            .degrade(rank=9, level=1, lost=True)
            .degrade(level=0, factor=0.5)
            .degrade(rank=9, computing=0.5)
        )
        faults = lambda places: [str(fault) for fault in part(degraded, places).faults]  # noqa: E731
        level, slow = "level 0 at 50% of its bandwidth", "rank {} computes at 50%"
        assert faults([2, 1, 0]) == ["link 2-1 at 25% of its bandwidth", level]
        assert faults([1, 2]) == [level]
        assert faults([1, 9]) == ["rank 1 level 0 at 50% of its bandwidth", slow.format(1)]  # level 0 of the part
        assert faults([0, 1, 2, 8, 9]) == [
            "link 0-1 at 25% of its bandwidth",
            "rank 4 level 1 at 50% of its bandwidth",
            level,
            slow.format(4),
        ]
        assert faults([9]) == [slow.format(0)]
        assert faults([0, 8, 1, 9])[1:] == [level, slow.format(3)]  # a switch between 0 and 1: no link of theirs
        ring = as_topology("article:8").degrade(link=(0, 1), factor=0.5)
        assert part(ring, [0, 2, 4, 6, 1, 3, 5, 7]).faults == ()

    def test_of_unequal_servers(self):
        uneven = as_topology("atlas-800t-a2:5+3")
        assert part(uneven, range(8)).servers == (5, 3)
        assert part(uneven, [0, 1, 5, 6]).sizes == (2, 2)
        some = part(A2, [0, 1, 2, 8])
        assert (some.servers, [(one.name, one.size) for one in some.levels]) == ((3, 1), [("HCCS", 3), ("RoCE", 2)])

    def test_without_figures(self):
        assert part(Topology((8, 4)), range(8)) == Topology((8,))


class TestPredict:
    @staticmethod
    def step(w, x):
        grads = jax.grad(lambda w: ((x @ w) ** 2).sum())(w)
        return w - 0.1 * lax.psum(grads, "data")

    def predicted(self, **options):
        options = {"axis_sizes": {"data": 8}, "topology": "atlas-800t-a2:8", **options}
        return hccljax.predict(self.step, F32(1024, 1024), F32(64, 1024), **options)

    def test_communication_alone_is_the_collective(self):
        found = self.predicted(algorithm="ring")
        assert found.seconds == pytest.approx(14 * (1.5e-6 + (4 << 20) / 8 / 56e9))
        assert found.communication_share == 1
        assert found.communicators == {"data": pytest.approx(found.seconds)}

    def test_computation_adds_up(self):
        rates = Rates(100e12)
        products = 2 * 2 * 64 * 1024 * 1024 / 100e12
        found = self.predicted(algorithm="mesh", rates=rates)
        assert found.simulation.computing == pytest.approx(products, rel=0.2)
        assert found.seconds > found.simulation.computing
        assert 0 < found.communication_share < 1

    def test_settings_and_comparison(self):
        found = self.predicted(settings={"HCCL_ALGO": "ring"}, compare=["ring", "tree", "fullmesh", ""], samples=512)
        assert found.alternatives["ring"].seconds == pytest.approx(found.seconds)
        assert found.alternatives[""].seconds == pytest.approx(found.seconds)  # up to 8 ranks it is ring
        assert found.alternatives["fullmesh"].seconds < found.alternatives["ring"].seconds
        assert found.throughput == pytest.approx(512 / found.seconds)
        text = str(found)
        assert "samples/s" in text
        assert "automatic" in text
        assert "over data: messages of" in text

    def test_the_environment_stays_what_it_was(self, monkeypatch):
        monkeypatch.setenv("HCCL_ALGO", "tree")
        before = self.predicted().seconds
        self.predicted(settings={"HCCL_ALGO": "ring"})
        assert self.predicted().seconds == before
        assert self.predicted(settings={"HCCL_ALGO": ""}).seconds != before

    def test_fastest_is_no_slower_than_any_setting(self):
        found = self.predicted(algorithm="fastest", compare=["ring", "tree", "NHR", "H-D_R", "fullmesh"])
        assert found.seconds <= min(other.seconds for other in found.alternatives.values()) * (1 + 1e-9)

    def test_groups_are_placed(self):
        """Tensor parallel inside servers, data parallel between them, and the other way round."""

        def step(x):
            return lax.psum(lax.psum(x, "model"), "data")

        options = {"topology": "atlas-800t-a2:4x8", "settings": {"HCCL_ALGO": "ring"}}
        near = hccljax.predict(step, F32(1 << 20), axis_sizes={"data": 4, "model": 8}, **options)
        assert near.seconds == pytest.approx(14 * (1.5e-6 + (1 << 19) / 56e9) + 6 * (5e-6 + (1 << 20) / 25e9))
        far = hccljax.predict(step, F32(1 << 20), axis_sizes={"model": 8, "data": 4}, **options)
        assert far.seconds > near.seconds

    def test_every_level_of_a_setting_counts(self):
        """With super pods, the setting for level 2 runs between them."""

        def step(x):
            return lax.psum(x, "data")

        options = {"axis_sizes": {"data": 64}, "topology": "atlas-800t-a2:2x4x8"}
        rings, tree = (
            hccljax.predict(
                step, F32(1 << 20), settings={"HCCL_ALGO": f"level0:ring;level1:ring;level2:{top}"}, **options
            )
            for top in ("ring", "tree")
        )
        assert "ring" in rings.schedule.events[2].label
        assert "tree" in tree.schedule.events[2].label
        assert rings.seconds != tree.seconds

    def test_early_gradients_are_reduced_while_others_are_computed(self):
        def step(w1, w2, x):
            def loss(w1, w2):
                return ((jnp.tanh(x @ w1) @ w2) ** 2).sum()

            g1, g2 = jax.grad(loss, (0, 1))(w1, w2)
            return lax.psum(g2, "data"), lax.psum(g1, "data")

        shapes = (F32(2048, 2048), F32(2048, 2048), F32(4096, 2048))
        found = hccljax.predict(step, *shapes, axis_sizes={"data": 8}, topology="atlas-800t-a2:8", rates=Rates(50e12))
        alone = hccljax.predict(step, *shapes, axis_sizes={"data": 8}, topology="atlas-800t-a2:8").seconds
        assert found.simulation.exposed < 0.6 * alone

    def test_a_mesh_in_place_of_sizes(self):
        expected = self.predicted().seconds
        assert self.predicted(axis_sizes=jax.sharding.AbstractMesh((8,), ("data",))).seconds == expected
        assert self.predicted(axis_sizes=jax.make_mesh((8,), ("data",))).seconds == expected

    def test_a_step_that_maps_its_own_axes(self):
        mesh, spec = jax.sharding.AbstractMesh((8,), ("data",)), jax.sharding.PartitionSpec

        def step(w, x):
            loss = lambda w, x: ((x @ w) ** 2).sum()  # noqa: E731
            return jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(spec(), spec("data")), out_specs=spec())(w, x)

        shapes = (F32(1024, 1024), F32(512, 1024))
        found = hccljax.predict(step, *shapes, axis_sizes={}, topology="atlas-800t-a2:8", algorithm="ring")
        assert found.seconds == pytest.approx(14 * (1.5e-6 + (4 << 20) / 8 / 56e9))

    def test_refusals(self):
        with pytest.raises(ArgumentError, match=r"make 16 ranks, but atlas-800t-a2:8 has 8"):
            self.predicted(axis_sizes={"data": 16})
        with pytest.raises(SettingError):
            self.predicted(settings={"HCCL_ALGO": "rign"})
        with pytest.raises(ArgumentError, match="axis_sizes=8: expected axis names"):
            self.predicted(axis_sizes=8)
        mesh, spec = jax.sharding.AbstractMesh((16,), ("data",)), jax.sharding.PartitionSpec()
        mapped = jax.shard_map(lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=spec, out_specs=spec)
        with pytest.raises(ArgumentError, match=r"axes data=16 make 16 ranks, but atlas-800t-a2:8 has 8"):
            hccljax.predict(mapped, F32(8), axis_sizes={}, topology="atlas-800t-a2:8")

    @pytest.mark.parametrize(
        ("name", "values", "expected"),
        [
            ("axis_sizes", [{"data": "8"}, {"data": 0}, {"data": True}, {3: 8}, [("data", 8)]], "expected axis names"),
            ("placement", [[0, 1, 2], 3, [*range(7), 99], [*range(7), 0], "01234567"], "for each of the 8 ranks"),
            ("placement", [[[0], [1, 2]]], "expected one place for each rank"),
            ("samples", [0, -1, float("nan"), float("inf"), True, "3", 1j], "expected a finite number above 0"),
            ("compare", ["ring", None, 3, [3]], "expected a sequence of values"),
            ("settings", [3, [], "HCCL_ALGO=ring"], "expected HCCL variables and their values"),
            ("rates", [3], "expected hccljax.Rates"),
        ],
    )
    def test_what_cannot_be_is_refused_before_the_step_is_walked(self, name, values, expected):
        for value in values:
            with pytest.raises(ArgumentError, match=f"{name}=.*{expected}"):
                self.predicted(**{name: value})
