"""Buckets overlap with the backward pass: each waits for its own gradients, in the HLO and in a simulation."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.training import sync_gradients

HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = .*? ([\w\-]+)\(")
COLLECTIVES = ("all-reduce", "collective-permute", "all-to-all", "all-gather")


class Program:
    """The entry computation of a compiled module: which instruction needs which, and which communicate."""

    def __init__(self, hlo):
        self.computations, self.entry, lines = {}, "", []
        for line in re.sub(r", metadata=\{.*?\}", "", hlo).splitlines():
            header = HEADER.match(line)
            if header:
                self.entry = header[2] if header[1] else self.entry
                self.computations[header[2]] = lines = []
            else:
                lines.append(line)
        self.needs, self.kind, self.text = {}, {}, {}
        for line in self.computations[self.entry]:
            found = INSTRUCTION.match(line)
            if found:
                body = line.partition(" = ")[2]
                self.needs[found[1]] = set(re.findall(r"%([\w.\-]+)", body)) - {found[1]}
                self.kind[found[1]], self.text[found[1]] = found[2], line

    def holds(self, line, kinds):
        """Whether an instruction, or one in what it calls, is of one of these kinds."""
        found = INSTRUCTION.match(line)
        if found and found[2].removesuffix("-start") in kinds:
            return True
        called = re.findall(r"(?:body|calls|to_apply)=%([\w.\-]+)", line)
        return any(self.holds(inner, kinds) for name in called for inner in self.computations.get(name, ()))

    def behind(self, name):
        """Everything that an instruction waits for."""
        seen, waiting = set(), [name]
        while waiting:
            one = waiting.pop()
            if one in seen or one not in self.needs:
                continue
            seen.add(one)
            waiting += self.needs[one]
        return seen

    def parameters(self, name):
        """The numbers of the parameters of the program that an instruction waits for."""
        found = (re.search(r" parameter\((\d+)\)", self.text[one]) for one in self.behind(name))
        return {int(number[1]) for number in found if number}

    def collectives(self):
        return [name for name, line in self.text.items() if self.holds(line, COLLECTIVES)]


@pytest.mark.parametrize("algorithm", ["ring", "mesh"])
def test_a_bucket_waits_for_its_own_leaves_only(in_mode, algorithm):
    """In the compiled program, for six leaves in three buckets."""
    leaves = [np.ones((8, 64), np.float32) for _ in range(6)]
    reduce = partial(sync_gradients, axis_name="data", algorithm=algorithm, bucket_bytes=512)
    step = in_mode("unchecked", lambda _, *grads: reduce(list(grads)), {"data": 8}, True)
    program = Program(step.lower(0.0, *leaves).compile().as_text())
    found = {frozenset(program.parameters(name)) for name in program.collectives()}
    # The program drops the first argument, which it does not use.
    assert found == {frozenset({4, 5}), frozenset({2, 3}), frozenset({0, 1})}


@pytest.mark.parametrize("dtype", [np.float32, np.uint32])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_bucket_waits_for_the_one_that_leaves_room(in_mode, in_flight, dtype):
    leaves = [np.ones((8, 64), dtype) for _ in range(3)]
    reduce = partial(sync_gradients, op="sum", axis_name="data", algorithm="mesh", bucket_bytes=256)
    step = in_mode("unchecked", lambda _, *grads: reduce(list(grads), in_flight=in_flight), {"data": 8}, True)
    program = Program(step.lower(0.0, *leaves).compile().as_text())
    found = {frozenset(program.parameters(name)) for name in program.collectives()}
    expected = {1: [{2}, {1, 2}, {0, 1, 2}], 2: [{2}, {1}, {0, 2}]}  # the last leaf goes first
    assert found == set(map(frozenset, expected[in_flight]))


def test_few_in_flight_hold_few_packed_buckets(in_mode):
    leaves = [np.ones((8, 8192), np.float32) for _ in range(32)]

    def temporary(in_flight):
        options = {"algorithm": "ring", "bucket_bytes": 65536, "in_flight": in_flight}
        reduce = partial(sync_gradients, op="sum", axis_name="data", **options)
        step = in_mode("unchecked", lambda _, *grads: reduce(list(grads)), {"data": 8}, True)
        return step.lower(0.0, *leaves).compile().memory_analysis().temp_size_in_bytes

    gradients, bucket = 32 * 32768, 65536
    small = 4096  # pointers, counters
    assert temporary(1) <= gradients + 2 * bucket + small < temporary(None)


def layers(count, width):
    """(loss, parameters, x): a network of count square layers."""

    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    return loss, [jnp.ones((width, width))] * count, jnp.ones((16, width))


def test_the_first_bucket_does_not_wait_for_the_first_layers(in_mode):
    """The gradient of the last layer is ready when nothing of the backward pass but its own product has run."""
    loss, params, x = layers(4, 16)
    grad = hccljax.value_and_grad(loss, "data", algorithm="ring", bucket_bytes=16 * 16 * 4)
    step = in_mode("unchecked", grad, {"data": 8}, True)
    program = Program(step.lower(params, jnp.stack([x] * 8)).compile().as_text())
    products = [
        sum(program.holds(program.text[one], ("dot",)) for one in program.behind(name))
        for name in program.collectives()
    ]
    # Of 4 + 3 + 4 products: forward, then for each layer one for its weights and one to go on.
    assert sorted(set(products)) == [4, 5, 6, 7, 8]


@pytest.fixture(scope="module")
def simulated():
    """simulated(bucket_bytes) → the Simulation of a step of eight layers of 4 MB on 8 ranks."""
    loss, params, x = layers(8, 1024)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x))

    def run(bucket_bytes):
        grad = hccljax.value_and_grad(loss, "data", algorithm="ring", bucket_bytes=bucket_bytes)
        schedule = hccljax.trace(grad, *shapes, axis_sizes={"data": 8}, compute=True)
        return hccljax.simulate(schedule, "atlas-800t-a2:8", rates=hccljax.Rates(flops=0.4e12))

    return run


def test_buckets_hide_behind_the_rest_of_the_backward_pass(simulated):
    layerwise, whole = simulated(4 << 20), simulated(1 << 30)
    total = layerwise.busy_by_axes()["data"]
    # The last layer's gradients leave first; at the end, those of the first layer are what nothing is left to hide.
    assert total / 10 < layerwise.exposed < total / 5
    # One bucket of everything starts when the backward pass is over.
    assert whole.exposed > 0.95 * whole.busy_by_axes()["data"]
    assert layerwise.computing == pytest.approx(whole.computing, rel=0.02)
    assert layerwise.seconds < 0.8 * whole.seconds


def test_the_order_of_the_tree_would_hide_nothing(simulated):
    """all_reduce takes leaves from the first, whose gradient comes last: the others queue behind it."""
    assert simulated(None).exposed > 5 * simulated(4 << 20).exposed


def test_the_first_message_leaves_before_the_backward_pass_is_over(simulated):
    timeline = simulated(4 << 20).timeline()
    every = [timeline[i] for i in range(len(timeline))]
    first = min(one.start for one in every if one.level >= 0 and one.nbytes > 4)
    assert first < 0.6 * max(one.end for one in every if one.level < 0)
