"""The check of the compiled program: it counts what runs, and notices whatever reduces in the algorithm's place."""

from __future__ import annotations

from collections import Counter
from functools import cache

import jax
import pytest

import hccljax
from hccljax.demo import network
from hccljax.demo.__main__ import main
from hccljax.demo.devices import AXIS
from hccljax.demo.inspect_hlo import BypassedError, Expected, check, described, executed, expected
from hccljax.demo.train import by_algorithm, by_psum

MODULE = """HloModule invented, num_partitions=4

%body (p: (s32[], f32[2])) -> (s32[], f32[2]) {
  %x = f32[2]{0} get-tuple-element(%p), index=1
  %cp.1 = f32[2]{0} collective-permute(%x), source_target_pairs={{0,1}}, metadata={op_name=" all-reduce("}
  ROOT %t = (s32[], f32[2]) tuple(%i, %cp.1)
}

%outer (p: (s32[], f32[2])) -> (s32[], f32[2]) {
  %w = (s32[], f32[2]) while(%p), condition=%less, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %cp.2 = f32[2]{0} collective-permute-start(%w), source_target_pairs={{1,0}}
}

%less (p: (s32[], f32[2])) -> pred[] {
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

%left (p: f32[2]) -> f32[2] {
  ROOT %g = f32[8]{0} all-gather(%p), dimensions={0}
}

%right (p: f32[2]) -> f32[2] {
  %e = f32[2]{0} all-to-all(%p), dimensions={0}
  ROOT %g = f32[8]{0} all-gather(%e), dimensions={0}
}

ENTRY %main (p: f32[2]) -> f32[2] {
  %w = (s32[], f32[2]) while(%p), condition=%less, body=%outer, backend_config={"known_trip_count":{"n":"5"}}
  %d = f32[2]{0} collective-permute-done(%w)
  %b = f32[2]{0} conditional(%pred, %w, %w), branch_computations={%left, %right}
  ROOT %r = f32[2]{0} all-reduce(%d), to_apply=%less
}
"""


@pytest.fixture(scope="module")
def found(plan):
    """The collectives of compiled steps, by the name of what reduces their gradients; each is compiled once."""

    @cache
    def collectives(name):
        return executed(plan.compiled(by_psum if name == "psum" else by_algorithm(name, "2x2")).as_text())

    return collectives


@pytest.fixture(scope="module")
def asked(plan):
    """What the step should communicate, by the name of the algorithm."""
    return lambda name: expected(plan.reduced(), 4, "2x2", name)


def test_loops_count_by_their_trips_and_branches_by_the_longest():
    expected = {"collective-permute": 5 * (3 + 1), "all-gather": 1, "all-to-all": 1, "all-reduce": 1}
    assert executed(MODULE) == expected


def test_a_loop_of_unknown_length_is_not_guessed():
    with pytest.raises(ValueError, match="loop of unknown length"):
        executed(MODULE.replace('"known_trip_count":{"n":"3"}', ""))


def test_what_is_expected_is_the_sum_over_four_gradients_and_the_loss(asked):
    # On 4 ranks: a ring has 6 permutes, a tree 4; a mesh exchanges twice; 2 x 2 rings have 2 permutes a level.
    assert asked("ring") == Expected(5 * 6, 0, False)
    assert asked("tree") == Expected(5 * 4, 0, False)
    assert asked("mesh") == Expected(0, 5 * 2, False)
    assert asked("level0:ring;level1:ring") == Expected(5 * 4, 0, False)
    assert asked("native").native


@pytest.mark.parametrize("name", ["ring", "tree", "H-D_R", "mesh", "level0:ring;level1:tree", "native"])
def test_the_program_of_an_algorithm_passes(found, asked, name):
    check(found(name), asked(name))


@pytest.mark.parametrize("name", ["ring", "tree", "mesh"])
def test_gradients_reduced_by_psum_are_noticed(found, asked, name):
    with pytest.raises(BypassedError, match=r"it runs 1 all-reduce; expected no all-reduce"):
        check(found("psum"), asked(name))


def test_gradients_reduced_by_an_algorithm_are_not_native(found, asked):
    for name in ("ring", "mesh"):
        with pytest.raises(BypassedError, match="expected all-reduce and nothing else"):
            check(found(name), asked("native"))


def test_another_algorithm_than_the_one_asked_for_is_noticed(found, asked):
    for name, ran in (("ring", "tree"), ("tree", "ring"), ("mesh", "ring"), ("ring", "mesh")):
        with pytest.raises(BypassedError, match=r"expected \d+ collective-permute and \d+ of all-to-all"):
            check(found(ran), asked(name))


def test_a_sum_that_grad_has_inserted_is_noticed_beside_the_algorithm(plan, asked):
    """The trap of the checked mode: gradients of replicated parameters have been summed by XLA already."""

    def twice(params, images, labels):
        loss, grads = jax.value_and_grad(network.loss)(params, images, labels)
        return hccljax.all_reduce((loss, grads), AXIS, "mean", algorithm="ring")

    with pytest.warns(hccljax.InvariantOperandWarning):
        found = executed(plan.compiled(twice).as_text())
    assert found["collective-permute"] == asked("ring").permutes
    with pytest.raises(BypassedError, match="expected no all-reduce"):
        check(found, asked("ring"))


def test_a_program_that_reduces_nothing_is_noticed():
    with pytest.raises(BypassedError, match="it runs no collective at all"):
        check(Counter(), Expected(0, 0, False))


def test_collectives_are_described_in_a_fixed_order():
    assert described(Counter({"collective-permute": 2, "all-gather": 1})) == "1 all-gather, 2 collective-permute"


@pytest.mark.parametrize(
    ("ran", "message"),
    [
        (by_psum, "ring: it runs 1 all-reduce; expected no all-reduce"),
        (by_algorithm("mesh", "2"), "ring: expected 10 collective-permute and 0 of"),
    ],
)
def test_the_demo_fails_where_a_program_bypasses_its_algorithm(monkeypatch, capsys, ran, message):
    monkeypatch.setattr("hccljax.demo.run.by_algorithm", lambda name, topology: ran)
    assert main(["--algorithms", "ring", "--epochs", "1", "--devices", "2"]) == 1
    assert message in capsys.readouterr().err
