"""A malformed HCCL_ALGO is refused while tracing, by everything that would have obeyed it."""

import jax
import jax.numpy as jnp
import pytest

import hccljax
from hccljax import SettingError

P = 4
ROWS = jnp.arange(P * P * 2.0).reshape(P, P, 2)


def _traced(function):
    return jax.eval_shape(jax.vmap(function, axis_name="rank"), ROWS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rnig", ("'rnig'", "Did you mean ring")),
        ("level0:ring;", ("nothing after a ';'",)),
        ("level0:ring;level0:tree", ("names level0 twice",)),
        ("allreduce=ring/tree", ("without an operator",)),
        ("allreduced=ring", ("'allreduced'", "allreduce")),
        ("level9:ring", ("'level9'", "level0, level1")),
        ("z" * 100_000, ("100000 characters",)),
    ],
)
def test_a_malformed_hccl_algo_is_refused_by_every_collective(monkeypatch, text, says, error_of):
    monkeypatch.setenv("HCCL_ALGO", text)
    calls = [
        lambda: _traced(lambda x: hccljax.all_reduce(x, "rank")),
        lambda: _traced(lambda x: hccljax.lax.psum(x, "rank")),
        lambda: hccljax.explain("all_gather", 8, 8),
        lambda: hccljax.Communicator(P, executor="virtual").broadcast(ROWS),
    ]
    for call in calls:
        message = error_of(call, SettingError)
        assert message.startswith("EI0001: HCCL_ALGO")
        assert all(part in message for part in says), message
        assert "expected" in message
        assert len(message) < 1000


def test_what_the_call_asks_for_works_under_a_malformed_hccl_algo(monkeypatch):
    monkeypatch.setenv("HCCL_ALGO", "rnig")
    assert _traced(lambda x: hccljax.all_reduce(x, "rank", algorithm="ring")).shape == ROWS.shape
