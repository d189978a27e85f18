"""Data × pipeline × tensor parallel training takes the steps of one device, by the algorithm that was named."""

import numpy as np
import pytest

from hccljax.demo import hybrid
from hccljax.demo.data import Digits
from hccljax.demo.inspect_hlo import executed
from hccljax.demo.transformer import Shape, initial


@pytest.fixture(scope="module")
def digits():
    draw = np.random.default_rng(0)
    return Digits(draw.random((16, 64), np.float32), draw.integers(0, 10, 16, np.int32))


@pytest.mark.parametrize(("algorithm", "check_vma"), [("ring", True), ("mesh", False)])
def test_two_steps_are_those_of_one_device(digits, algorithm, check_vma):
    ours = theirs = initial(Shape(), seed=1)
    step = hybrid.spread_step(hybrid.hybrid_mesh(), algorithm, check_vma=check_vma)
    for _ in range(2):
        ours, mine = step(ours, digits.images, digits.labels)
        theirs, alone = hybrid.whole_step(theirs, digits.images, digits.labels)
        np.testing.assert_allclose(mine, alone, rtol=1e-5)
    assert hybrid.difference(ours, theirs) < 2e-6
    if algorithm == "ring":
        text = step.lower(ours, digits.images, digits.labels).compile().as_text()
        assert set(executed(text)) == {"collective-permute"}  # no psum that JAX has put in


def test_the_program_says_how_it_compares(capsys, monkeypatch, digits):
    monkeypatch.setattr(hybrid.data, "load", lambda: (digits, digits))
    monkeypatch.setattr(hybrid, "BATCH", 16)
    assert hybrid.main("mesh", epochs=1) == 0
    printed = capsys.readouterr().out
    assert "2 data × 2 stages × 2 model ranks, mesh" in printed
    assert "accuracy on 16 other digits" in printed
    monkeypatch.setattr(hybrid, "TOLERANCE", -1.0)
    assert hybrid.main("mesh", epochs=1) == 1
