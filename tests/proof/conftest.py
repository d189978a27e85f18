"""Records for proofs: ones of a test's own, and known ones with a fault put into them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from jax import lax

from hccljax.algorithm import Algorithm
from hccljax.reduction import Reduction


def record(name="own", **kernels):
    return Algorithm(name, "a test", steps=lambda *_: 0, bytes_sent=lambda *_: 0, **kernels)


class Faulty:
    """A Group whose n-th communication (as the kernel is traced) goes wrong."""

    def __init__(self, group, fault, at, calls=None):
        self._group, self._fault, self._at = group, fault, at
        self._calls = [0] if calls is None else calls

    def __getattr__(self, name):
        return getattr(self._group, name)

    def rotated(self, root):
        return Faulty(self._group.rotated(root), self._fault, self._at, self._calls)

    def _sent(self, x, pairs, usual):
        self._calls[0] += 1
        return self._fault(x, self._group, pairs, usual) if self._calls[0] == self._at + 1 else usual(x)

    def permute(self, x, pairs, label="permute"):
        pairs = list(pairs)
        return self._sent(x, pairs, lambda x: self._group.permute(x, pairs, label))

    def shift(self, x, k=1, label="shift"):
        p = self._group.size
        return self._sent(x, [(r, (r + k) % p) for r in range(p)], lambda x: self._group.shift(x, k, label))

    def exchange(self, x, mask, label="exchange"):
        pairs = [(r, r ^ mask) for r in range(self._group.size)]
        return self._sent(x, pairs, lambda x: self._group.exchange(x, mask, label))

    def mesh_exchange(self, blocks, label="exchange"):
        return self._sent(blocks, None, lambda blocks: self._group.mesh_exchange(blocks, label))

    def mesh_gather(self, block):
        return self._sent(block, None, self._group.mesh_gather)


def dropped(x, group, pairs, usual):
    """The step does not happen: everybody keeps what it had (in a full mesh: sees only its own)."""
    return x if pairs is not None else lax.full_like(usual(x), 0)


def to_the_next(x, group, pairs, usual):
    """Everything arrives one rank too far (in a full mesh: comes from there, too)."""
    if pairs is not None:
        return group.permute(x, [(s, (d + 1) % group.size) for s, d in pairs])
    return group.shift(usual(group.shift(x, 1)), 1)


def swapped_blocks(x, group, pairs, usual):
    """What arrives comes in reverse order; the order of one element cannot be wrong, so then nothing is sent."""
    out = usual(x)
    return lax.rev(out, tuple(range(out.ndim))) if out.size > 1 else dropped(x, group, pairs, usual)


def one_lost(x, group, pairs, usual):
    """One message is not sent: its receiver gets zeros."""
    if pairs is not None:
        return group.permute(x, pairs[:-1])
    return usual(x).at[1].set(0)


FAULTS = {fault.__name__: fault for fault in (dropped, to_the_next, swapped_blocks, one_lost)}


def faulty(algorithm, operator, fault, at):
    """(the algorithm's own kernel of operator with a fault in its at-th communication, how many it has)."""
    kernel, calls = getattr(algorithm, operator), [0]

    def wrong(x, group, *rest):
        calls[0] = 0
        return kernel(x, Faulty(group, fault, at, calls), *rest)

    return record(f"faulty {algorithm.name}", **{operator: wrong}), calls


def with_op(algorithm, operator, combine):
    """The algorithm's own kernel with another combination: combine(op) → op."""
    kernel = getattr(algorithm, operator)
    return record(
        f"faulty {algorithm.name}",
        **{operator: lambda x, group, op: kernel(x, group, Reduction(op.name, combine(op)))},
    )


@pytest.fixture(scope="session")
def proofs():
    """The names above, for test modules, which cannot import this one."""
    return SimpleNamespace(record=record, faulty=faulty, with_op=with_op, faults=FAULTS, Faulty=Faulty)
