"""Processes that are about to run different collectives are told so; here they are threads with their own store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import hccljax
from hccljax.agreement import Agreement


class Shared:
    """A store in memory; get waits at most a moment, whatever the setting."""

    def __init__(self, patience=5.0):
        self.values, self.changed, self.patience = {}, threading.Condition(), patience

    def put(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key, seconds):
        assert seconds == 120
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, self.patience):
                raise TimeoutError(key)
            return self.values[key]


RANKS = {0: [0, 1], 1: [2, 3], 3: [4]}
SAME = ("key", "Communicator(5 ranks, devices)", "all_reduce", ("sum",), {"algorithm": "ring"}, np.zeros((5, 4)))


def each(calls, store=None):
    """What the check of each process raises: calls[i] are the arguments of process i's checks, in order."""
    store = store or Shared()

    def run(process, arguments):
        agreement = Agreement("world/1", RANKS, process, store)
        for one in arguments:
            try:
                agreement.check(*one)
            except hccljax.HcclError as error:
                return error
        return None

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, RANKS, calls))


def but(**changes):
    """SAME with something else."""
    names = ("key", "communicator", "operator", "arguments", "options", "x")
    return tuple(changes.get(name, value) for name, value in zip(names, SAME, strict=True))


def test_those_who_agree_go_on():
    assert each([[SAME, but(operator="broadcast", key="other")]] * 3) == [None] * 3


def test_a_program_that_was_agreed_on_is_not_asked_for_again():
    store = Shared()
    assert each([[SAME] * 3] * 3, store) == [None] * 3
    assert sorted(store.values) == [f"hccljax/world/1/1/{process}" for process in RANKS]


@pytest.mark.parametrize(
    ("changes", "parameter", "theirs"),
    [
        ({"operator": "broadcast"}, "operator", "'broadcast'"),
        ({"arguments": ("max",)}, "arguments", "'max'"),
        ({"options": {"algorithm": "tree"}}, "options", "algorithm='tree'"),
        ({"x": np.zeros((5, 3))}, "arrays", "[5, 3]"),
        ({"x": np.zeros((5, 4), np.float16)}, "arrays", "float16[5, 4]"),
        ({"x": [np.zeros((5, 4))]}, "structure", "PyTreeDef([*])"),
        ({"communicator": "Communicator(5 ranks, groups)"}, "communicator", "groups"),
    ],
)
def test_each_says_who_differs_and_in_what(changes, parameter, theirs):
    errors = each([[SAME], [SAME], [but(**changes)]])
    for error in errors:
        assert type(error) is hccljax.MismatchError
        assert str(error).startswith("EI0005: ")
        assert f"{parameter} differs" in str(error)
        assert "process 3 (rank 4)" in str(error)
        assert theirs in str(error)
        assert "expected the same on all processes" in str(error)
    assert "process 0 (ranks 0, 1)" in str(errors[0])


def test_another_setting_is_another_program(monkeypatch):
    store = Shared()
    first = Agreement("world/1", {0: [0], 1: [1]}, 0, store)
    second = Agreement("world/1", {0: [0], 1: [1]}, 1, store)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(first.check, *SAME)
        while not store.values:
            pass
        monkeypatch.setenv("HCCL_ALGO", "tree")
        with pytest.raises(hccljax.MismatchError, match="settings differs"):
            second.check(*SAME)
        with pytest.raises(hccljax.MismatchError, match="settings differs"):
            waits.result()


def test_who_does_not_come_is_named():
    first, second, third = each([[SAME], [SAME], []], Shared(patience=0.05))
    assert third is None
    for error in (first, second):
        assert type(error) is hccljax.PeerTimeoutError
        assert isinstance(error, TimeoutError)
        assert str(error).startswith("EI0006: process 3 (rank 4) has not come to new program 1")
        assert "120 s (HCCL_CONNECT_TIMEOUT)" in str(error)


def test_a_wrong_timeout_is_refused(monkeypatch):
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "5")
    with pytest.raises(hccljax.SettingError, match=r"HCCL_CONNECT_TIMEOUT='5': expected .*120 to 7200"):
        Agreement("world/1", RANKS, 0, Shared()).check(*SAME)


def test_what_is_traced_belongs_to_the_callers_program():
    store = Shared()
    agreement = Agreement("world/1", RANKS, 0, store)

    def traced(x):
        agreement.check("key", "c", "all_reduce", (), {}, x)
        return x

    jax.jit(traced)(np.zeros(3))
    assert not store.values


def test_one_process_has_nothing_to_agree_on():
    assert Agreement.of(jax.devices()) is None
    assert hccljax.Communicator(4)._agreement is None
