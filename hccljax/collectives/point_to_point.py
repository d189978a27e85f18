"""send_recv, batch_send_recv and barrier: messages between single ranks, and waiting for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hccljax.algorithm.tree import tree
from hccljax.collectives.classes import by_class
from hccljax.collectives.leaf import map_leaves, moving
from hccljax.collectives.prepare import Request, request
from hccljax.collectives.sharded import sharded_alike
from hccljax.collectives.typed import Run
from hccljax.errors import ArgumentError, shown
from hccljax.group import AxisName, Group, as_group
from hccljax.layout import Pairs
from hccljax.primitives.call import Direction, linear_call
from hccljax.primitives.replication import vary
from hccljax.reduction import reduction
from hccljax.shapes import Arrays

PairList = Iterable[Sequence[int]]


@dataclass(frozen=True)
class _Send:
    """One permute as a hashable function."""

    group: Group
    pattern: Pairs

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.group.permute(x, self.pattern.explicit, "send_recv")


def send_recv(x: Arrays, axis_name: AxisName | Group, pairs: PairList) -> Any:
    """Sends x from source to destination of each pair, as ``jax.lax.ppermute``; who receives nothing gets zeros.

    Args:
      x: array(s) of any shape and dtype.
      axis_name: a mapped axis name, a tuple of them (numbered in the order given, unlike ``lax.ppermute``, which
        follows the mesh), or a Group, whose communicators all use the same pairs: the ranks exist in every one.
      pairs: (source, destination) ranks; every rank is the source of one pair at most, and the destination of one.

    Returns:
      Array(s) of x's shape: the source's x on each destination, zeros elsewhere.

    Raises:
      ArgumentError: a rank that does not exist, or stands twice on the same side (EI0003).
      AxisError: the axis is not mapped here.

    Source: HCCL's Send and Recv.

    >>> jax.vmap(lambda x: hccljax.send_recv(x, "rank", [(0, 1)]), axis_name="rank")(jnp.array([5, 6]))
    Array([0, 5], dtype=int32)
    """
    group = as_group(axis_name)
    pattern = group.checked_pairs(pairs)
    there, back = _Send(group, pattern), _Send(group, pattern.inverse())

    def leaf(x: jax.Array) -> jax.Array:
        forward, transposed = Direction(there, group.axes), Direction(back, group.axes)
        return linear_call(vary(x, group.axes), forward, transposed, "send_recv")

    return map_leaves(moving(leaf), x)


def batch_send_recv(messages: Iterable[tuple[Arrays, PairList]], axis_name: AxisName | Group) -> list[Any]:
    """Several send_recv at once; they do not depend on each other, so they may travel at the same time.

    Args:
      messages: (x, pairs) for each, as for ``send_recv``; a rank may take part in any number of them.
      axis_name: a mapped axis name, a tuple of them, or a Group.

    Returns:
      What each message brought, a list in the order given.

    Raises:
      ArgumentError: an element is not (x, pairs), or its pairs are wrong; the message says which one (EI0003).
      AxisError: the axis is not mapped here.

    Source: HCCL's BatchSendRecv.

    >>> swap = lambda x: hccljax.batch_send_recv([(x, [(0, 1)]), (-x, [(1, 0)])], "rank")
    >>> jax.vmap(swap, axis_name="rank")(jnp.array([5, 6]))
    [Array([0, 5], dtype=int32), Array([-6,  0], dtype=int32)]
    """
    try:
        given = list(messages)
    except TypeError:
        raise ArgumentError(f"messages={shown(messages)}: expected a list of tuples (x, pairs)") from None
    results = []
    for number, message in enumerate(given):
        if not isinstance(message, tuple) or len(message) != 2:
            raise ArgumentError(f"messages[{number}]={shown(message)}: expected a tuple (x, pairs)")
        try:
            results.append(send_recv(message[0], axis_name, message[1]))
        except ArgumentError as error:
            raise ArgumentError(f"messages[{number}]: {str(error).removeprefix('EI0003: ')}") from error
    return results


@dataclass(frozen=True)
class _Wait:
    """x → x, once every rank has its own x. Nothing about it can be computed before the signal has arrived."""

    signal: Run

    def __call__(self, x: jax.Array) -> jax.Array:
        if not x.size:
            return x
        ready = jnp.int32(x.reshape(-1)[0] == jnp.zeros((), x.dtype))
        everybody = self.signal(jnp.maximum(ready, self.signal.group.rank))
        # The signal is never negative, which XLA cannot know of a number that comes from another device.
        return jnp.where(everybody >= 0, x, jnp.zeros_like(x))


def barrier(x: Arrays, axis_name: AxisName | Group) -> Any:
    """x unchanged, but no rank gets it before every rank has reached this point with its own x.

    A jitted program has no order but that of its data, so the barrier is tied to a value. The signal, four bytes, goes
    up and down a binomial tree, whatever algorithm is asked for elsewhere.

    Args:
      x: array(s) of any shape and dtype; one signal is sent for each leaf.
      axis_name: a mapped axis name, a tuple of them, or a Group.

    Returns:
      x.

    Raises:
      AxisError: the axis is not mapped here.

    Source: HCCL's Barrier.

    >>> jax.vmap(lambda x: hccljax.barrier(x, "rank"), axis_name="rank")(jnp.array([5, 6]))
    Array([5, 6], dtype=int32)
    """
    this = request(axis_name, None, None)

    def of_one_size(x: jax.Array, this: Request) -> jax.Array:
        wait = Direction(_Wait(Run("all_reduce", tree, this.group, reduction("max"))), this.group.axes)
        varied = vary(x, this.group.axes)
        return sharded_alike(lambda x: linear_call(x, wait, wait, "barrier"), varied, "barrier")

    return map_leaves(moving(lambda x: by_class(of_one_size, x, this)), x)
