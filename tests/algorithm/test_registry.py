"""Users' own algorithms: one record, and every public function knows it by name."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax.algorithm import base, registered
from hccljax.schedule import count

AXIS = "r"
X = np.arange(20, dtype=np.float32).reshape(5, 4)


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A registry of its own for every test; Decisions that were made with it are forgotten."""
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    yield
    for name, module in list(sys.modules.items()):
        if name.startswith("hccljax.selection"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def to_everybody(x, group, op):
    """all_reduce in p - 1 shifts, written by somebody who has read nothing but the record's docstring."""
    total, moving = x, x
    for _ in range(group.size - 1):
        moving = group.shift(moving, 1)
        total = op(total, moving)
    return total


def mine(**changes):
    fields = {
        "name": "mine",
        "source": "this test",
        "steps": lambda operator, p, nbytes: p - 1,
        "bytes_sent": lambda operator, p, nbytes: (p - 1) * nbytes,
        "all_reduce": to_everybody,
    }
    return hccljax.Algorithm(**{**fields, **changes})


def on_ranks(fn, x=X):
    return jax.vmap(fn, axis_name=AXIS)(x)


def test_it_runs_by_name():
    assert hccljax.register(mine()).name == "mine"
    assert "mine" in hccljax.algorithms()
    for op, total in (("sum", X.sum(0)), ("max", X.max(0)), ("mean", X.mean(0))):
        out = on_ranks(lambda row, op=op: hccljax.all_reduce(row, AXIS, op, algorithm="mine"))
        np.testing.assert_array_equal(out, np.broadcast_to(total, X.shape))


def test_it_runs_on_devices():
    hccljax.register(mine())
    out = hccljax.Communicator(5, executor="devices", algorithm="mine").all_reduce(X)
    np.testing.assert_array_equal(out, np.broadcast_to(X.sum(0), X.shape))


def test_its_gradient_is_that_of_psum():
    hccljax.register(mine())

    def loss(reduce):
        return lambda x: (on_ranks(lambda row: jnp.sin(reduce(row)) * row, x)).sum()

    ours = jax.grad(loss(lambda row: hccljax.all_reduce(row, AXIS, algorithm="mine")))(X)
    np.testing.assert_allclose(ours, jax.grad(loss(lambda row: jax.lax.psum(row, AXIS)))(X), rtol=1e-6)


def test_the_gradient_communicates_by_the_algorithm_too():
    hccljax.register(mine())

    def fn(row):
        return jax.grad(lambda x: (hccljax.all_reduce(x, AXIS, algorithm="mine") ** 2).sum())(row)

    assert count(fn, X[0], axis_sizes={AXIS: 5}).steps == 2 * 4


def test_it_explains_itself():
    hccljax.register(mine())
    decision = hccljax.explain("all_reduce", 100, 5, algorithm="mine")
    assert (decision.algorithm, decision.steps, decision.bytes_sent) == ("mine", 4, 400)


def test_hccl_algo_names_it(monkeypatch):
    hccljax.register(mine())
    monkeypatch.setenv("HCCL_ALGO", "level0:mine;level1:ring")
    assert hccljax.explain("all_reduce", 100, 6, topology="2x3").algorithm == "level0:mine;level1:ring"
    x = np.arange(6.0, dtype=np.float32)
    np.testing.assert_array_equal(on_ranks(lambda row: hccljax.all_reduce(row, AXIS, topology="2x3"), x), [15] * 6)


def test_a_record_runs_without_being_registered():
    out = on_ranks(lambda row: hccljax.all_reduce(row, AXIS, algorithm=mine(name="private")))
    np.testing.assert_array_equal(out, np.broadcast_to(X.sum(0), X.shape))
    assert "private" not in hccljax.algorithms()


def test_what_it_lacks_is_run_by_another_with_a_warning():
    hccljax.register(mine())
    with pytest.warns(hccljax.FallbackWarning, match="'mine' has no broadcast"):
        out = on_ranks(lambda row: hccljax.broadcast(row, AXIS, 2, algorithm="mine"))
    np.testing.assert_array_equal(out, np.broadcast_to(X[2], X.shape))


def test_two_kernels_are_composed_into_more(monkeypatch):
    ring = registered("ring")
    two = hccljax.register(
        mine(name="two", all_reduce=None, reduce_scatter=ring.reduce_scatter, all_gather=ring.all_gather)
    )
    able = [operator for operator in base.OPERATORS if two.supports(operator)]
    assert able == ["all_reduce", "all_gather", "reduce_scatter"]
    assert not two.has("all_reduce")
    out = on_ranks(lambda row: hccljax.all_reduce(row, AXIS, algorithm="two"))
    np.testing.assert_array_equal(out, np.broadcast_to(X.sum(0), X.shape))


def test_the_whole_table_of_compositions():
    ring = registered("ring")
    parts = {part: getattr(ring, part) for part in ("reduce_scatter", "all_gather", "scatter", "gather")}
    hccljax.register(mine(name="parts", all_reduce=None, **parts))
    out = on_ranks(
        lambda row: [
            hccljax.all_reduce(row, AXIS, algorithm="parts"),
            hccljax.broadcast(row, AXIS, 3, algorithm="parts"),
            hccljax.reduce(row, AXIS, root=4, algorithm="parts"),
        ]
    )
    np.testing.assert_array_equal(out[0], np.broadcast_to(X.sum(0), X.shape))
    np.testing.assert_array_equal(out[1], np.broadcast_to(X[3], X.shape))
    np.testing.assert_array_equal(out[2], np.where(np.arange(5)[:, None] == 4, X.sum(0), 0))


def test_a_rooted_kernel_is_given_the_root():
    def from_root(x, group, root):
        return group.mesh_gather(x)[root]

    hccljax.register(mine(name="by_gather", all_reduce=None, broadcast=from_root, rooted=True))
    out = on_ranks(lambda row: hccljax.broadcast(row, AXIS, 3, algorithm="by_gather"))
    np.testing.assert_array_equal(out, np.broadcast_to(X[3], X.shape))


def test_a_name_stands_for_one_algorithm():
    first = hccljax.register(mine())
    assert hccljax.register(first) is first
    with pytest.raises(hccljax.ArgumentError, match="'mine' is registered already"):
        hccljax.register(mine(source="another"))
    with pytest.raises(hccljax.ArgumentError, match="'ring' is registered already"):
        hccljax.register(mine(name="ring"))


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_bad_name(name):
    with pytest.raises(hccljax.ArgumentError, match="expected a non-empty str"):
        mine(name=name)


def test_a_record_without_kernels():
    with pytest.raises(hccljax.ArgumentError, match="has no kernel"):
        mine(all_reduce=None)


def test_an_unknown_name():
    with pytest.raises(hccljax.ArgumentError, match=r"'mien'.*ring"):
        on_ranks(lambda row: hccljax.all_reduce(row, AXIS, algorithm="mien"))
    with pytest.raises(hccljax.ArgumentError, match="unknown algorithm 'mien'"):
        registered("mien")


def test_registering_a_name_takes_effect_after_a_substitute_ran_for_it():
    del base._REGISTRY["NHR"]
    with pytest.warns(hccljax.FallbackWarning, match="'NHR' is not part of this version"):
        assert hccljax.explain("all_reduce", 100, 5, algorithm="NHR").algorithm != "NHR"
    hccljax.register(mine(name="NHR"))
    assert hccljax.explain("all_reduce", 100, 5, algorithm="NHR").algorithm == "NHR"


@pytest.mark.parametrize("name", ["hierarchical", "fullmesh", "null", "a;b", "a/b", "level0:x", "my ring"])
def test_a_name_that_hccl_algo_reads_otherwise_is_refused(name):
    with pytest.raises(hccljax.ArgumentError):
        hccljax.register(mine(name=name))


def own(**fields):
    return hccljax.Algorithm("own", "here", lambda *_: 1, lambda *_: 0, **fields)


@pytest.mark.parametrize(
    ("kernel", "gave"),
    [
        (lambda x, group, op: x.sum(), r"gave float32\[\]"),
        (lambda x, group, op: x.astype("int32"), r"gave int32\[3\]"),
        (lambda x, group, op: None, "gave None"),
        (lambda x, group, op: (x, x), r"gave \("),
        (lambda x, group, op: group.mesh_gather(x), r"gave float32\[4, 3\]"),
    ],
)
def test_a_kernel_that_gives_something_else_is_named(kernel, gave):
    with pytest.raises(hccljax.ArgumentError, match=rf"'own': its all_reduce of float32\[3\] on 4 ranks {gave}"):
        hccljax.Communicator(4, executor="virtual").all_reduce(
            np.ones((4, 3), np.float32), algorithm=own(all_reduce=kernel)
        )


def test_a_record_holds_functions():
    with pytest.raises(hccljax.ArgumentError, match="all_reduce='ring' of Algorithm 'own': expected a function"):
        own(all_reduce="ring")
    with pytest.raises(hccljax.ArgumentError, match="steps=3 of Algorithm 'own': expected a function"):
        hccljax.Algorithm("own", "here", 3, lambda *_: 0, all_reduce=lambda x, group, op: x)
