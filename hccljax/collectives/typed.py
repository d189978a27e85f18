"""From a kernel to a result with jax.lax's replication types and gradients.

Every linear collective becomes one linear call whose transpose is another collective with the same algorithm:

    all_reduce sum ↔ itself        all_gather ↔ reduce_scatter sum      broadcast ↔ reduce sum
    scatter ↔ gather               all_to_all ↔ itself                  send_recv ↔ the pairs turned round

Over an axis whose replication types are checked, a replicated result has a replicated cotangent, and what would be a
sum over ranks is a cast: there the transposes of all_reduce, broadcast and a replicated all_gather send nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.algorithm import Algorithm, registered, run
from hccljax.algorithm.blocks import block_at, choose
from hccljax.collectives.sharded import sharded_alike
from hccljax.errors import DerivativeError
from hccljax.group import Group
from hccljax.primitives.call import Direction, linear_call, reduce_call
from hccljax.primitives.compat import checked_axes, is_checked, is_manual
from hccljax.primitives.replication import invariant, vary
from hccljax.primitives.weak import weakly
from hccljax.reduction import MEAN, Reduction, reduction
from hccljax.selection.notice import warn
from hccljax.selection.substitute import lack, substituted

TRANSPOSED = {
    "all_reduce": "all_reduce",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "broadcast": "reduce",
    "reduce": "broadcast",
    "scatter": "gather",
    "gather": "scatter",
    "all_to_all": "all_to_all",
}
REPLICATED = ("all_reduce", "broadcast", "all_gather")


def able(algorithm: Algorithm, operator: str, asked: bool) -> Algorithm:
    """The algorithm if it has what a derivative needs, else its substitute, said aloud if somebody asked for it."""
    record, fallback = substituted(operator, algorithm, partial(lack, operator))
    if fallback and asked:
        warn(f"{operator}, for a derivative: {fallback}")
    return record


@dataclass(frozen=True)
class Run:
    """One operator of an algorithm as a function of one array: zeros where a rooted result is not defined.

    asked is True if the program or its settings named the algorithm, and not the policy.
    """

    operator: str
    algorithm: Algorithm
    group: Group
    op: Reduction | None = None
    root: int = 0
    promised: tuple[str, ...] = ()
    asked: bool = False

    def __call__(self, x: jax.Array) -> jax.Array:
        """The operator's result, shaped as the kernels' (see ``Algorithm``)."""
        x = vary(x, self.group.axes)
        # The algorithm was chosen for the operator; only a derivative may need another one, which it may lack.
        out = run(able(self.algorithm, self.operator, self.asked), self.operator, x, self.group, self.op, self.root)
        if self.operator in ("reduce", "gather"):
            out = choose(self.group.rank == self.root, out, jnp.zeros_like(out))
        return invariant(out, self.promised)

    def __repr__(self) -> str:
        op = f" {self.op.name}" if self.op else ""
        return f"{self.operator}{op} by {self.algorithm.name}"

    def transposed(self, unchecked: Group | None) -> Cotangent | Run | Divided:
        """The transpose; unchecked is the group over the axes that are not checked, None if all are."""
        if self.op is MEAN:
            return Divided(replace(self, op=reduction("sum")).transposed(unchecked), self.group.size)
        if self.promised:
            return Cotangent(self, unchecked)
        operator = TRANSPOSED[self.operator]
        op = reduction("sum") if operator in ("all_reduce", "reduce_scatter", "reduce") else None
        return replace(self, operator=operator, op=op)


@dataclass(frozen=True)
class Cotangent:
    """The transpose of a run whose result is promised to be replicated over checked axes.

    Over those axes its cotangent is replicated too: nothing is sent. Over the others (mapped by vmap at the same time)
    cotangents are summed.
    """

    of: Run
    unchecked: Group | None

    def __call__(self, cotangent: jax.Array) -> jax.Array:
        """The cotangent of the operand."""
        if self.unchecked is not None:
            cotangent = vary(cotangent, self.unchecked.axes)
            cotangent = run(registered("ring"), "all_reduce", cotangent, self.unchecked, reduction("sum"))
        cotangent = vary(cotangent, self.of.group.axes)
        rank = self.of.group.rank
        if self.of.operator == "all_gather":
            return block_at(cotangent, rank)
        if self.of.operator == "broadcast":
            return choose(rank == self.of.root, cotangent, jnp.zeros_like(cotangent))
        return cotangent

    def __repr__(self) -> str:
        return f"transpose of {self.of!r}"


@dataclass(frozen=True)
class Divided:
    """The transpose of a mean: that of the sum, of the cotangent divided by p."""

    of: Cotangent | Run | Divided
    p: int

    def __call__(self, cotangent: jax.Array) -> jax.Array:
        """The cotangent of the operand."""
        return self.of(cotangent / self.p)

    def __repr__(self) -> str:
        return f"{self.of!r}, of 1/{self.p}"


def linear(x: jax.Array, this: Run, replicated: bool = True) -> jax.Array:
    """this(x) as a linear call. replicated=False leaves a result that is the same everywhere typed as varying."""
    group = this.group
    checked = checked_axes(group.axes)
    same = group.is_whole and this.operator in REPLICATED
    if same and replicated:
        this = replace(this, promised=checked)
    rest = tuple(axis for axis in group.axes if axis not in checked)
    back = this.transposed(Group(rest) if rest else None)
    everywhere = frozenset(group.axes)
    back_runs = back.of if isinstance(back, Divided) else back
    back_same = group.is_whole and isinstance(back_runs, Run) and back_runs.operator in REPLICATED
    forward = Direction(this, group.axes, everywhere if same else frozenset())
    backward = Direction(back, group.axes, everywhere if back_same else frozenset())

    def call(x: jax.Array) -> jax.Array:
        return linear_call(x, forward, backward, this.operator)

    return weak_as(sharded_alike(call, vary(x, group.axes), this.operator), x, this)


def weak_as(out: jax.Array, x: jax.Array, this: Run) -> jax.Array:
    """out, weakly typed where jax.lax leaves x's weak type: everywhere but in an unchecked reduction of a shard_map."""
    if not jax.typeof(x).weak_type or out.dtype != x.dtype:
        return out
    unchecked = any(is_manual(axis) and not is_checked(axis) for axis in this.group.axes)
    return lax.convert_element_type(out, out.dtype) if this.op and unchecked else weakly(out)


def extremum(x: jax.Array, this: Run) -> jax.Array:
    """this(x) for max and min, which have no derivative in jax.lax either; zero tangents pass."""
    return _reduced(x, this, _NoDerivative(this.operator, this.op.name if this.op else ""))


def product(x: jax.Array, this: Run, spread: Run, total: Run, dtype: str | None = None) -> jax.Array:
    """this(x) for prod. The derivative multiplies each tangent by the product of the other ranks' values.

    Args:
      x: the operand.
      this: the product.
      spread: an all_gather over the same group, which brings the other ranks' values (p times the memory of x).
      total: the same operator as this, with op sum.
      dtype: what products of the other ranks' values are taken, weighted and added in; None is x's own.
    """
    return _reduced(x, this, _ProductRule(this, spread, total, dtype))


def _reduced(x: jax.Array, this: Run, derivative: _NoDerivative | _ProductRule) -> jax.Array:
    same = this.group.is_whole and this.operator in REPLICATED
    this = replace(this, promised=checked_axes(this.group.axes)) if same else this
    forward = Direction(this, this.group.axes, frozenset(this.group.axes) if same else frozenset())
    name = f"{this.operator}_{this.op.name if this.op else ''}"

    def call(x: jax.Array) -> jax.Array:
        return reduce_call(x, forward, derivative, name)

    return weak_as(sharded_alike(call, vary(x, this.group.axes), this.operator), x, this)


@dataclass(frozen=True)
class _NoDerivative:
    operator: str
    op: str

    def __call__(self, x: jax.Array, tangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        raise DerivativeError(
            f"{self.operator} with op={self.op!r} has no derivative (as jax.lax.p{self.op}); "
            f"wrap its operand in jax.lax.stop_gradient if no gradient should pass"
        )


@dataclass(frozen=True)
class _ProductRule:
    this: Run
    spread: Run
    total: Run
    dtype: str | None

    def __call__(self, x: jax.Array, tangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = linear(x, self.spread, replicated=False)
        if self.dtype is not None:
            values, tangent = (lax.convert_element_type(one, self.dtype) for one in (values, tangent))
        own = jnp.arange(values.shape[0], dtype=jnp.int32) == self.this.group.rank
        own = lax.broadcast_in_dim(own, values.shape, (0,))
        others = jnp.prod(jnp.where(own, jnp.ones_like(values), values), axis=0, dtype=values.dtype)
        out = linear(others * tangent, self.total)
        return product(x, self.this, self.spread, self.total, self.dtype), lax.convert_element_type(out, x.dtype)
