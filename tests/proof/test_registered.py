"""Every registered algorithm is proved: every operator, 1 to 64 ranks, with the first, second or last as root."""

import contextlib
import statistics
import time
from dataclasses import replace

import pytest

import hccljax
from hccljax.algorithm import algorithms, registered
from hccljax.algorithm.base import OPERATORS, REDUCING
from hccljax.topology import as_topology

CASES = [(name, operator) for name in algorithms() for operator in OPERATORS if registered(name).supports(operator)]
ROOTED = ("broadcast", "reduce", "scatter", "gather")
REGIMES = (2, 3, 8)


@pytest.mark.parametrize(("name", "operator"), CASES)
def test_every_contribution_arrives_exactly_once(name, operator):
    seconds, record = [], registered(name)
    for p in range(1, 65):
        roots = sorted({0, 1 % p, p - 1}) if operator in ROOTED else [0]
        for root in roots if p <= 20 else [roots[p % len(roots)]]:  # all of them at every p take three minutes more
            started = time.process_time()
            # A record without regimes is proved for small messages only.
            proved = record if p in REGIMES and root == roots[0] else replace(record, regimes=())
            proof = hccljax.verify(proved, operator, p, root=root)
            seconds.append(time.process_time() - started)
            assert (proof.algorithm, proof.operator, proof.ranks, proof.exact) == (name, operator, p, True)
            assert len(proof.nbytes) == 1 + len(proved.regimes)
            assert all(n > t for n, t in zip(proof.nbytes[1:], proved.regimes, strict=True))
    print(f"{name} {operator}: {len(seconds)} cases, median {1e3 * statistics.median(seconds):.1f} ms")


@pytest.mark.parametrize(("name", "operator"), [case for case in CASES if case[1] in REDUCING])
def test_the_other_reductions(name, operator):
    able = {"native": {"all_reduce": ("max", "min"), "reduce_scatter": ()}}.get(name, {})
    record = replace(registered(name), regimes=())
    for op in able.get(operator, ("max", "min", "prod")):
        for p in range(1, 65) if op == "max" else (5,):
            proof = hccljax.verify(record, operator, p, op=op)
            assert (proof.op, proof.exact) == (op, True)
    assert hccljax.verify(record, operator, 3, op="mean").op == "mean"


HIERARCHIES = [
    ("level0:ring;level1:tree", "4x8"),
    ("level0:mesh;level1:ring", "2x4"),
    ("level0:H-D_R;level1:H-D_R", "3x5"),
    ("level0:tree;level1:ring", "3x5"),
    ("level0:mesh;level1:H-D_R", "4x8"),
    ("level0:pairwise;level1:mesh", "3x5"),
    ("level0:mesh;level1:pairwise", "2x4"),
    ("level0:ring;level1:H-D_R;level2:tree", "2x2x4"),
    ("level0:mesh;level1:mesh;level2:ring", "2x2x4"),
    ("level0:ring;level1:double_tree", "2x4"),
]


@pytest.mark.parametrize(("text", "topology"), HIERARCHIES)
def test_hierarchies(text, topology):
    sizes = hccljax.Topology(tuple(map(int, reversed(topology.split("x"))))).sizes
    p = hccljax.Topology(sizes).ranks
    proved = 0
    for operator in OPERATORS:
        for root in (0, 1, p - 1) if operator in ROOTED else (0,):
            for op in ("sum", "max") if operator in REDUCING and root != 1 else ("sum",):
                with contextlib.suppress(hccljax.UnsupportedError):  # a level lacks the operator
                    proof = hccljax.verify(text, operator, p, topology=topology, op=op, root=root, nbytes=8 * p - 4)
                    assert (proof.algorithm, proof.topology.sizes, proof.exact) == (text, sizes, True)
                    proved += 1
    assert proved >= LEAST.get(text, 8)


LEAST = {"level0:pairwise;level1:mesh": 1, "level0:mesh;level1:pairwise": 1}
"""Proofs, where a level has few operators of its own."""


def test_a_hierarchy_has_the_regimes_of_its_levels():
    proof = hccljax.verify("level0:ring;level1:double_tree", "broadcast", 4, topology="2x2")
    thresholds = registered("double_tree").regimes
    assert proof.nbytes[-1] > 2 * max(thresholds)
    assert len(proof.nbytes) > len(thresholds)


@pytest.mark.parametrize("topology", ["5+3", "2+3+4", "1+7", "2x4", "4x8", "3x5", "2x2x4"])
@pytest.mark.parametrize("name", ["AHC", "pipeline", "NHR_pipeline"])
def test_algorithms_over_all_levels(name, topology):
    if name != "AHC" and "+" in topology:
        with pytest.warns(hccljax.FallbackWarning, match="AHC"):  # it wants servers that are alike
            assert hccljax.explain("all_reduce", 4096, as_topology(topology).ranks, topology, name).algorithm == "AHC"
        return
    p = as_topology(topology).ranks
    for operator in (operator for operator in OPERATORS if registered(name).supports(operator)):
        for op in ("sum", "max") if operator in REDUCING else ("sum",):
            for root in (0, p // 2, p - 1) if operator in ROOTED else (0,):
                assert hccljax.verify(name, operator, p, op=op, root=root, topology=topology).exact
