"""What a communicator keeps: programs that worked, for what they depend on and nothing else."""

import jax.numpy as jnp
import pytest

import hccljax
from hccljax import ArgumentError

P = 4


@pytest.fixture
def comm():
    return hccljax.Communicator(P, executor="virtual")


@pytest.mark.parametrize(
    ("operator", "shape", "option"),
    [("all_gather", (P, 2), "axis"), ("reduce_scatter", (P, 2, P), "scatter_dimension")],
)
def test_a_call_that_failed_does_not_spoil_the_next(comm, operator, shape, option):
    x = jnp.ones(shape)
    with pytest.raises(ArgumentError, match=rf"{option}=1\.0"):
        getattr(comm, operator)(x, **{option: 1.0})
    assert getattr(comm, operator)(x, **{option: 1}).shape[0] == P


def test_the_order_of_keywords_compiles_nothing_new(comm):
    x = jnp.ones((P, P))
    comm.reduce_scatter(x, tiled=True, algorithm="ring")
    comm.reduce_scatter(x, algorithm="ring", tiled=True)
    assert len(comm._compiled) == 1


def test_what_it_was_made_with_does_not_change(comm):
    for name, value in (("algorithm", "ring"), ("topology", "2x2")):
        with pytest.raises(AttributeError):
            setattr(comm, name, value)


def test_no_topology_in_a_call_is_the_communicators():
    comm = hccljax.Communicator(P, executor="virtual", topology="2x2", algorithm="level0:ring;level1:ring")
    assert comm.all_reduce(jnp.ones(P), topology=None)[0] == P  # else a FallbackWarning: level1 would not be there


def test_an_algorithm_registered_later_is_used(comm, monkeypatch):
    monkeypatch.setattr("hccljax.algorithm.base._REGISTRY", dict(hccljax.algorithm.base._REGISTRY))
    monkeypatch.setenv("HCCL_ALGO", "AHC")
    hccljax.algorithm.base._REGISTRY.pop("AHC", None)
    with pytest.warns(hccljax.FallbackWarning, match="'AHC' is not part of this version"):
        assert comm.all_reduce(jnp.ones(P))[0] == P
    hccljax.register(
        hccljax.Algorithm("AHC", "here", lambda *_: 0, lambda *_: 0, all_reduce=lambda x, group, op: 7 * x)
    )
    assert comm.all_reduce(jnp.ones(P))[0] == 7


def test_a_barrier_asks_nobody_for_an_algorithm(monkeypatch):
    monkeypatch.setenv("HCCL_ALGO", "pairwise")  # which has no all_reduce
    comm = hccljax.Communicator(P, executor="virtual", groups=[[0, 1], [2, 3]])
    assert (comm.barrier(jnp.arange(P)) == jnp.arange(P)).all()
    monkeypatch.setenv("HCCL_ALGO", "native")  # which has no groups
    assert (comm.barrier(jnp.arange(P)) == jnp.arange(P)).all()


def test_an_unknown_algorithm_is_refused_at_once():
    with pytest.raises(ArgumentError, match=r"algorithm='rign': expected one of .*Did you mean ring"):
        hccljax.Communicator(P, algorithm="rign")
