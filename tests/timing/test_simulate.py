"""Simulated times against closed forms and published figures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hccljax
from hccljax.algorithm import hierarchy, registered
from hccljax.errors import ArgumentError
from hccljax.timing.bounds import lower_bound
from hccljax.timing.closed import closed_form
from hccljax.timing.rates import Rates
from hccljax.timing.settling import makespans, settled
from hccljax.timing.simulation import simulate
from hccljax.topology import Level, Topology

ALPHA, BETA, GAMMA = 1e-6, 1e-9, 0.3e-9
BLOCK = 1 << 18
GB = 1 << 30

BLOCKS = ("reduce_scatter", "all_gather", "all_reduce", "broadcast")
HAVE_FORMULAS = [
    *(("ring", operator) for operator in (*BLOCKS, "reduce", "scatter", "gather")),
    *(("tree", operator) for operator in ("reduce", "broadcast", "all_reduce")),
    *((name, operator) for name in ("NHR", "NB") for operator in (*BLOCKS, "scatter")),
    ("H-D_R", "all_reduce"),
    ("pairwise", "all_to_all"),
    ("bruck", "all_to_all"),
    *(("mesh", operator) for operator in (*BLOCKS, "scatter", "gather", "all_to_all")),
    *(("star", operator) for operator in ("broadcast", "reduce", "scatter", "gather")),
]


@pytest.mark.parametrize(("name", "operator"), HAVE_FORMULAS)
def test_closed_forms_come_out(name, operator, schedule_of, uniform):
    links = "full_mesh" if name in ("mesh", "star") else "switch"
    for p in (2, 3, 4, 5, 6, 7, 8, 11, 16, 31, 32, 48, 64):
        nbytes = BLOCK * p
        run = settled(schedule_of(name, operator, p, nbytes), uniform(p, links), gamma=GAMMA)
        expected = closed_form(name, operator, p, nbytes).seconds(ALPHA, BETA, GAMMA)
        assert makespans(run, [1.0])[0] == pytest.approx(expected, rel=1e-9), p


@pytest.mark.parametrize("p", [4, 8, 32])
@pytest.mark.parametrize("operator", ["reduce_scatter", "all_gather", "scatter", "gather", "reduce", "broadcast"])
def test_halving_and_doubling_at_powers_of_two(p, operator, schedule_of, uniform):
    run = settled(schedule_of("H-D_R", operator, p, BLOCK * p), uniform(p))
    expected = closed_form("H-D_R", operator, p, BLOCK * p).seconds(ALPHA, BETA)
    assert makespans(run, [1.0])[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("servers", "inside"), [(4, 8), (2, 4), (3, 5), (8, 2)])
@pytest.mark.parametrize(("beta0", "beta1"), [(1 / 56e9, 1 / 25e9), (1 / 5e9, 1 / 25e9)])
def test_pipeline_on_two_tiers(servers, inside, beta0, beta1, schedule_of):
    """RS and AG take p1 - 1 ring steps, each as long as the slower tier's, and one step of the mesh."""
    alpha0, alpha1, p, nbytes = 1.5e-6, 5e-6, servers * inside, BLOCK * servers * inside
    levels = (
        Level("in", inside, "full_mesh", 1 / beta0, alpha0),
        Level("out", servers, "switch", 1 / beta1, alpha1),
    )
    # s/p of the formula is the block that one link inside carries, and a rank between.
    ring, mesh = BLOCK * beta1 + alpha1, BLOCK * beta0 + alpha0
    expected = max(ring, mesh) * (servers - 1) + mesh
    record = registered("pipeline").over((inside, servers))
    for operator, phases in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        schedule = schedule_of(record, operator, p, nbytes, (inside, servers))
        assert simulate(schedule, Topology(levels=levels)).seconds == pytest.approx(phases * expected, rel=1e-9)


def test_rendezvous_in_order_and_pure_dataflow(schedule_of):
    """A binomial all_reduce of 5 ranks, α = 1, nβ = 10, nγ = 3: 75 in order, 53 by dataflow with endless ports."""
    schedule = schedule_of("tree", "all_reduce", 5, 10)
    topology = Topology(levels=(Level("links", 5, "switch", 1.0, 1.0),))
    assert simulate(schedule, topology, gamma=0.3).seconds == pytest.approx(75)
    free = Topology(levels=(Level("links", 5, "full_mesh", 1.0, 1.0),))
    assert simulate(schedule, free, gamma=0.3, mode="eager").seconds == pytest.approx(53)


def test_the_articles_figures(schedule_of):
    """8 NPUs in an HCCS ring, 5 µs for each MB of 2^20 bytes: 7 steps of 128 MB.

    The article gives 4,480 µs for the all_reduce; that is its first half, the reduce_scatter.
    """
    hccs = Topology(levels=(Level("HCCS", 8, "ring", (1 << 20) / 5e-6, 0.0),))
    for operator, micro in (("reduce_scatter", 4480), ("all_gather", 4480), ("all_reduce", 8960)):
        seconds = simulate(schedule_of("ring", operator, 8, GB), hccs).seconds
        assert seconds == pytest.approx(micro * 1e-6, rel=1e-9)


def test_algorithms_differ_by_more_than_three_times(schedule_of, a2):
    """1 GB over 4 servers of 8: flat ring, tree, and ring inside with tree between servers."""
    times = {name: simulate(schedule_of(name, "all_reduce", 32, GB), a2(4)).seconds for name in ("ring", "tree")}
    record = hierarchy((registered("ring"), registered("tree")), (8, 4))
    times["hierarchical"] = simulate(schedule_of(record, "all_reduce", 32, GB, (8, 4)), a2(4)).seconds
    assert [round(1e3 * seconds) for seconds in times.values()] == [84, 287, 55]
    assert max(times.values()) > 3 * min(times.values())


def test_streams_overlap_and_share_ports(uniform):
    """Two all-reduces that do not need each other: on one port they queue, on links of their own they do not."""
    both = lambda x, y: (lax.ppermute(x, "r", [(0, 1)]), lax.ppermute(y, "r", [(0, 2)]))  # noqa: E731
    x = jax.ShapeDtypeStruct((1000,), jnp.uint8)
    schedule = hccljax.trace(both, x, x, axis_sizes={"r": 3})
    assert simulate(schedule, uniform(3)).seconds == pytest.approx(2 * 2e-6)
    assert simulate(schedule, uniform(3, "full_mesh")).seconds == pytest.approx(2e-6)


def test_a_ring_of_links_forwards(uniform):
    """To the rank opposite a message crosses 4 links; all of them at once share each link between 4."""
    x = jax.ShapeDtypeStruct((1000,), jnp.uint8)
    one = hccljax.trace(lambda v: lax.ppermute(v, "r", [(0, 3)]), x, axis_sizes={"r": 8})
    assert simulate(one, uniform(8, "ring")).seconds == pytest.approx(3e-6 + 1e-6)
    all_of_them = hccljax.trace(
        lambda v: lax.ppermute(v, "r", [(r, (r + 3) % 8) for r in range(8)]), x, axis_sizes={"r": 8}
    )
    assert simulate(all_of_them, uniform(8, "ring")).seconds == pytest.approx(3e-6 + 3e-6)


def test_sizes_are_timed_together(schedule_of, a2):
    schedule = schedule_of("ring", "all_reduce", 32, 32 << 10)
    scales = [0.0, 0.5, 1, 8, 1024]
    together = makespans(settled(schedule, a2(4)), scales)
    alone = [makespans(settled(schedule, a2(4)), [scale])[0] for scale in scales]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


class TestComputation:
    def step(self, x, y):
        product = x @ x
        return lax.psum(product, "r"), y @ y @ y @ y

    def simulated(self, **options):
        x = jax.ShapeDtypeStruct((100, 100), jnp.float32)
        schedule = hccljax.trace(self.step, x, x, axis_sizes={"r": 2}, compute=True)
        topology = Topology(levels=(Level("links", 2, "switch", 40e9, 0.0),))
        return simulate(schedule, topology, **options)

    def test_overlaps_with_communication(self):
        """A product takes 2 µs, the message 1 µs, three more products 6 µs meanwhile."""
        found = self.simulated(rates=Rates(1e12))
        assert found.computing == pytest.approx(8e-6)
        assert found.seconds == pytest.approx(8e-6)
        assert found.communication_share == pytest.approx(0)

    def test_takes_no_time_without_rates(self):
        assert self.simulated().seconds == pytest.approx(1e-6)
        assert self.simulated().communication_share == 1

    def test_memory_may_be_what_takes_time(self):
        """Matrices of 40 KB, two or three of them for a product: 4 µs at 100 GB/s, however fast the unit."""
        assert self.simulated(rates=Rates(1e18, 100e9)).computing == pytest.approx((2 + 2 + 3 + 3) * 0.4e-6)

    def test_comes_after_what_it_needs(self):
        x = jax.ShapeDtypeStruct((100, 100), jnp.float32)
        step = lambda x: lax.psum(x @ x, "r") @ x  # noqa: E731
        schedule = hccljax.trace(step, x, axis_sizes={"r": 2}, compute=True)
        topology = Topology(levels=(Level("links", 2, "switch", 40e9, 0.0),))
        found = simulate(schedule, topology, rates=Rates(1e12))
        assert found.seconds == pytest.approx(5e-6)
        assert found.exposed == pytest.approx(1e-6)


class TestResult:
    def test_tiers(self, schedule_of, a2):
        """A flat ring over 4 servers of 8: 4 of 32 messages of each step cross to another server."""
        found = simulate(schedule_of("ring", "reduce_scatter", 32, 32 << 10), a2(4))
        inside, between = found.tiers
        assert (inside.nbytes, between.nbytes) == (31 * 28 * 1024, 31 * 4 * 1024)
        assert (inside.most, between.most) == (31 * 1024, 31 * 1024)
        assert between.busy == pytest.approx(31 * (5e-6 + 1024 / 25e9))
        assert found.seconds >= between.busy

    def test_text(self, schedule_of, a2):
        text = str(simulate(schedule_of("ring", "all_reduce", 32, GB), a2(4)))
        assert text.startswith("83.52 ms for 62 steps of 32 ranks on 4x8\n")
        assert "RoCE: 8,321,499,136 bytes; the busiest port 2,080,374,784 bytes, 83.52 ms (100% of the time)" in text
        assert "assumes: links: HCCS full_mesh 56 GB/s, 1.5 µs; RoCE switch 25 GB/s, 5 µs" in text

    def test_what_xla_does_in_its_own_way_is_said(self, a2):
        schedule = hccljax.trace(lambda x: lax.psum(x, "r"), jax.ShapeDtypeStruct((8,), "float32"), axis_sizes={"r": 8})
        assert any("psum of jax.lax" in sentence for sentence in simulate(schedule, a2(1)).assumptions)

    def test_figures_that_were_not_given_are_said(self, schedule_of):
        schedule = schedule_of("ring", "all_reduce", 8, 800)
        said = "these figures: the topology was given as 8 alone"
        assert said in simulate(schedule, "8").assumptions
        assert said not in simulate(schedule, "atlas-800t-a2:8").assumptions

    def test_what_takes_no_time_is_said(self, schedule_of, a2):
        summing, moving = (schedule_of("ring", operator, 8, 800) for operator in ("all_reduce", "all_gather"))
        assert simulate(summing, a2(1)).assumptions[1:] == (
            "to combine what comes with one's own takes no time (gamma=0)",
        )
        assert len(simulate(summing, a2(1), gamma=1e-12).assumptions) == 1
        assert len(simulate(moving, a2(1)).assumptions) == 1
        x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
        computing = hccljax.trace(lambda x: lax.ppermute(x @ x, "r", [(0, 1)]), x, axis_sizes={"r": 8}, compute=True)
        assert simulate(computing, a2(1)).assumptions[1:] == ("computations take no time (no rates were given)",)
        assert len(simulate(computing, a2(1), rates=Rates(1e12)).assumptions) == 1

    def test_an_oversubscribed_switch_is_said(self, schedule_of):
        """The clock goes by 6.25 GB/s."""
        topology = Topology(levels=(Level("RoCE", 8, "switch", 25e9, 5e-6, oversubscription=4),))
        found = simulate(schedule_of("ring", "all_gather", 8, 8 << 20), topology)
        assert found.assumptions == ("links: RoCE switch 25 GB/s, 5 µs, 4 times oversubscribed",)
        assert found.seconds == pytest.approx(7 * (5e-6 + (1 << 20) / 6.25e9))

    def test_nothing_is_communicated(self, a2):
        found = simulate(hccljax.trace(lambda x: x, 1.0, axis_sizes={"r": 8}), a2(1))
        assert (found.seconds, found.communication_share) == (0, 0)
        assert found.timeline().critical_path() == []

    def test_messages_without_bytes(self, uniform):
        empty = jax.ShapeDtypeStruct((0,), "float32")
        schedule = hccljax.trace(lambda x: lax.ppermute(x, "r", [(0, 1)]), empty, axis_sizes={"r": 2})
        assert simulate(schedule, uniform(2)).seconds == pytest.approx(1e-6)


class TestRefusals:
    def test_bad_arguments(self, schedule_of, a2):
        schedule = schedule_of("ring", "all_reduce", 8, 800)
        for options, words in [
            ({"mode": "lazy"}, "mode='lazy'"),
            ({"gamma": True}, "gamma=True"),
            ({"rates": 1e12}, r"expected hccljax\.Rates"),
            ({"gamma": -1}, "gamma=-1"),
            ({"gamma": float("nan")}, "gamma=nan"),
            ({"placement": [0] * 8}, "a different place"),
            ({"placement": list(range(1, 9))}, "0 to 7"),
            ({"placement": [0.5] * 8}, "a different place"),
        ]:
            with pytest.raises(ArgumentError, match=words):
                simulate(schedule, a2(1), **options)

    def test_no_schedule(self, a2):
        for wrong in ("ring", None, lambda x: x):
            with pytest.raises(ArgumentError, match="expected a Schedule"):
                simulate(wrong, a2(1))

    def test_too_many_ranks(self, schedule_of, a2):
        with pytest.raises(ArgumentError, match="16 ranks on a topology of 8"):
            simulate(schedule_of("ring", "all_reduce", 16, 1600), a2(1))

    def test_rates(self):
        for bad in (0, -1, float("nan"), True, "fast"):
            with pytest.raises(ArgumentError, match=r"Rates flops=.*: expected a number, above 0, in operations/s"):
                Rates(bad)

    def test_numbers_of_numpy(self, schedule_of, a2):
        assert Rates(np.float32(1e12), np.int64(10**9)) == Rates(float(np.float32(1e12)), 1e9)
        summing = schedule_of("ring", "all_reduce", 8, 800)
        found, expected = (simulate(summing, a2(1), gamma=gamma).seconds for gamma in (np.float32(0.5), 0.5))
        assert found == expected


def test_records_with_arrays_are_compared_as_objects(schedule_of, a2):
    schedule = schedule_of("ring", "all_reduce", 8, 800)
    one, other = (settled(schedule, a2(1)) for _ in range(2))
    routes = one.wiring.routes(np.array([0, 1]), np.array([1, 2]))
    for record, another in (
        (one, other),
        (one.rounds[0][0], other.rounds[0][0]),
        (routes, one.wiring.routes(np.array([0, 1]), np.array([1, 2]))),
    ):
        assert record != another
        assert len({record, another}) == 2


def test_what_nobody_receives_takes_no_time_to_combine(uniform):
    """A rank that keeps its own beside a message that is over at once."""

    def step(x):
        kept = hccljax.Group("r").permute(x, [(0, 0)], "reduce")
        return kept, lax.ppermute(x, "r", [(0, 1)])

    schedule = hccljax.trace(step, jax.ShapeDtypeStruct((1000,), jnp.uint8), axis_sizes={"r": 2})
    assert simulate(schedule, uniform(2), gamma=1.0).seconds == pytest.approx(2e-6)


def test_placement(schedule_of, a2):
    """Two ranks in one server, or in two."""
    schedule = schedule_of("ring", "all_reduce", 2, 2 << 20)
    near, far = (simulate(schedule, a2(2), placement=places).seconds for places in ([0, 1], [0, 8]))
    assert (near, far) == (
        pytest.approx(2 * (1.5e-6 + (1 << 20) / 56e9)),
        pytest.approx(2 * (5e-6 + (1 << 20) / 25e9)),
    )


@pytest.mark.parametrize("operator", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
def test_no_algorithm_beats_the_bound(operator, schedule_of, a2):
    for name in hccljax.algorithms():
        record = registered(name) if name not in ("native", "hierarchical") else None
        if record is None or not record.supports(operator):
            continue
        record = record.over((8, 4)) if record.over else record
        for nbytes in (32, 32 << 10, 32 << 20):
            seconds = simulate(schedule_of(record, operator, 32, nbytes, (8, 4)), a2(4)).seconds
            assert seconds >= lower_bound(operator, nbytes, a2(4)).seconds * (1 - 1e-9), (name, nbytes)


@pytest.mark.parametrize("algorithm", ["mesh", "H-D_R", "NB", "ring"])
def test_no_port_is_busy_for_longer_than_it_all_takes(schedule_of, algorithm):
    """Also a link of a ring that several messages share."""
    found = simulate(schedule_of(algorithm, "all_reduce", 8, 1 << 22), "article:8")
    assert all(0 < tier.busy <= found.seconds * (1 + 1e-9) for tier in found.tiers)
