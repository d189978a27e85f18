"""Groups whose communicators differ in size: a collective runs once for each size, and each rank keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
from jax import lax

from hccljax.collectives.prepare import Request
from hccljax.errors import ArgumentError
from hccljax.partition import Uneven, sizes_text


def by_class(collective: Callable[[jax.Array, Request], jax.Array], x: jax.Array, this: Request) -> jax.Array:
    """collective(x, request) of this rank's communicator; collective keeps the shape of x, whatever the group's size.

    The runs for the sizes do not depend on each other. A run's result on ranks outside its class is thrown away, and
    their cotangent in it is zero.
    """
    first, *others = this.group.classes
    if not others:
        return collective(x, this)
    out = collective(x, replace(this, group=first))
    for group in others:
        out = lax.select(group.is_member, collective(x, replace(this, group=group)), out)
    return out


def one_size(this: Request, operator: str) -> Request:
    """The request, once its communicators are known to have one size: the operator's arrays have a block a rank."""
    layout = this.group.layout
    if isinstance(layout, Uneven):
        raise ArgumentError(
            f"{operator} over communicators of {sizes_text(layout)} ranks: its arrays have one block for each rank of "
            f"a communicator, but one program, with one shape, runs on all ranks; expected communicators of one size, "
            f"or all_reduce, broadcast, reduce, send_recv or barrier (an all_reduce of zeros [largest, …] with x at "
            f"group.rank gathers each communicator)"
        )
    return this
