"""Pipeline parallelism: each rank of an axis holds one stage of a model, and micro-batches go from rank to rank.

All ranks run the same program, tick by tick: what a rank computes in a tick in which it has no micro-batch is thrown
away. So stages may communicate over other axes (tensor parallel), and nothing depends on a rank-dependent branch,
around which a collective would never return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.collectives import all_reduce, send_recv
from hccljax.collectives.classes import one_size
from hccljax.collectives.prepare import request
from hccljax.errors import ArgumentError
from hccljax.group import AxisName, Group
from hccljax.primitives.compat import checked_axes, varying
from hccljax.primitives.replication import vary
from hccljax.training.gradients import as_varying
from hccljax.training.regions import broadcast_from

Stage = Callable[[Any, jax.Array], jax.Array]


def gpipe(
    stage_fn: Stage,
    params: Any,
    microbatches: Any,
    axis_name: AxisName | Group,
    *,
    embed_fn: Callable[[Any, Any], jax.Array] | None = None,
    remat: bool = True,
) -> jax.Array:
    """The output of p stages for m micro-batches, in m + p - 1 ticks; differentiable, backward in as many.

    Every rank gets the outputs, computes the same loss from them, and that loss counts once: its gradients with respect
    to params are those of this rank's stage.

    Args:
      stage_fn: (params, x) → y of x's shape and dtype: this rank's stage. Structures and shapes are the same on every
        rank.
      params: of this rank's stage.
      microbatches: array(s) [m, …], the same on every rank.
      axis_name: a mapped axis name, a tuple of them, or a Group; the stages are its ranks in order.
      embed_fn: (params, microbatch) → x, what the first stage does before ``stage_fn``; its parameters are part of
        params on every rank, and have zero gradients on all but the first. None if micro-batches are x.
      remat: True keeps only the inputs of the stages for the backward pass, and computes the rest again.

    Returns:
      [m, …], the last stage's outputs, on every rank, typed as replicated over the axis.

    Raises:
      ArgumentError: micro-batches disagree in m, there are none, or a stage changes its shape.
      AxisError: the axis is not mapped here.

    Source: Huang et al. 2019. ``pipeline_schedule("gpipe", p, m)`` draws it.
    """
    line = _line(axis_name, stage_fn, embed_fn, None, microbatches, None)
    params = as_varying(params, line.group)
    run = jax.checkpoint(line.forward) if remat else line.forward

    def tick(received: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = run(params, received, line.micro(microbatches, t - line.rank))
        return line.send(out, 1), out

    ticks = jnp.arange(line.m + line.p - 1, dtype=jnp.int32)
    _, outs = lax.scan(tick, line.start(params, microbatches), ticks)
    return broadcast_from(outs[line.p - 1 :], line.group, line.p - 1)


def one_f_one_b(
    stage_fn: Stage,
    loss_fn: Callable[[Any, jax.Array, Any], jax.Array],
    params: Any,
    microbatches: Any,
    targets: Any,
    axis_name: AxisName | Group,
    *,
    embed_fn: Callable[[Any, Any], jax.Array] | None = None,
) -> tuple[jax.Array, Any]:
    """(loss, gradients) of p stages for m micro-batches by 1F1B: in GPipe's time, with memory that m does not change.

    Once the pipeline is full, each tick takes one micro-batch forward and another one backward. A stage keeps the
    inputs of at most 2p - 1 micro-batches, and computes the rest of a backward pass again from its input. It takes
    p - 1 ticks of forward passes, m of both, and p - 1 of backward passes.

    Args:
      stage_fn: as for ``gpipe``.
      loss_fn: (params, y, target) → scalar, what the last stage does after ``stage_fn``; its parameters have zero
        gradients on all other ranks.
      params: of this rank's stage.
      microbatches: array(s) [m, …], the same on every rank.
      targets: array(s) [m, …], the same on every rank.
      axis_name: a mapped axis name, a tuple of them, or a Group; the stages are its ranks in order.
      embed_fn: as for ``gpipe``.

    Returns:
      The mean of the losses, on every rank, typed as replicated over the axis, and its gradients with respect to this
      rank's params. In a checked ``shard_map``, pass params through ``as_varying`` for further axes (of data) before,
      else JAX sums the gradients over those in every tick.

    Raises:
      ArgumentError: micro-batches or targets disagree in m, there are none, or a stage changes its shape.
      AxisError: the axis is not mapped here.

    Source: Narayanan et al. 2021. ``pipeline_schedule("1f1b", p, m)`` draws it.
    """
    line = _line(axis_name, stage_fn, embed_fn, loss_fn, microbatches, targets)
    params = as_varying(params, line.group)
    start = line.start(params, microbatches)
    kept = min(line.m, 2 * line.p - 1)

    def forward(state: _State, t: jax.Array) -> _State:
        i = t - line.rank
        inside = line.inside(i)
        slot = jnp.clip(i, 0, line.m - 1) % kept
        old = lax.dynamic_index_in_dim(state.inputs, slot, 0, keepdims=False)
        inputs = lax.dynamic_update_index_in_dim(state.inputs, jnp.where(inside, state.received, old), slot, 0)
        out = line.forward(params, state.received, line.micro(microbatches, i))
        return state.but(inputs=inputs, received=line.send(out, 1))

    def backward(state: _State, t: jax.Array) -> _State:
        j = t - 2 * (line.p - 1) + line.rank
        inside, last = line.inside(j), line.rank == line.p - 1
        x = lax.dynamic_index_in_dim(state.inputs, jnp.clip(j, 0, line.m - 1) % kept, 0, keepdims=False)
        micro, target = line.micro(microbatches, j), line.micro(targets, j)
        (out, loss), pull = jax.vjp(lambda params, x: line.with_loss(params, x, micro, target), params, x)
        share = jnp.where(inside & last, jnp.ones_like(loss) / line.m, jnp.zeros_like(loss))
        back = jnp.where(inside & ~last, state.cotangent, jnp.zeros_like(out))
        grads, cotangent = pull((back, share))
        return state.but(
            cotangent=line.send(jnp.where(inside, cotangent, jnp.zeros_like(cotangent)), -1),
            grads=jax.tree.map(lambda total, g: jnp.where(inside, total + g, total), state.grads, grads),
            loss=jnp.where(inside & last, state.loss + loss / line.m, state.loss),
        )

    state = line.initial(params, start, kept, microbatches, targets)
    state = _scan(forward, state, 0, line.p - 1)
    state = _scan(lambda state, t: backward(forward(state, t), t), state, line.p - 1, line.m + line.p - 1)
    state = _scan(backward, state, line.m + line.p - 1, line.m + 2 * (line.p - 1))
    return all_reduce(as_varying(state.loss, line.group), line.group), state.grads


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _State:
    """What a rank carries from tick to tick of 1F1B.

    Attributes:
      received: […], what the stage before has sent.
      cotangent: […], what the stage behind has sent.
      inputs: [kept, …], a ring of stage inputs whose backward pass is to come.
      grads: of params, summed so far.
      loss: summed so far, on the last rank.
    """

    received: jax.Array
    cotangent: jax.Array
    inputs: jax.Array
    grads: Any
    loss: jax.Array

    def but(self, **changes: Any) -> _State:
        return _State(**{**vars(self), **changes})


@dataclass(frozen=True)
class _Line:
    """The stages of a pipeline, as one rank sees them."""

    group: Group
    stage: Stage
    embed: Callable[[Any, Any], jax.Array] | None
    loss: Callable[[Any, jax.Array, Any], jax.Array] | None
    m: int

    @property
    def p(self) -> int:
        return self.group.size

    @property
    def rank(self) -> jax.Array:
        return self.group.rank

    def inside(self, i: jax.Array) -> jax.Array:
        return (i >= 0) & (i < self.m)

    def micro(self, tree: Any, i: jax.Array) -> Any:
        """Micro-batch i, or the nearest one that exists."""
        i = jnp.clip(i, 0, self.m - 1)
        return jax.tree.map(lambda x: lax.dynamic_index_in_dim(jnp.asarray(x), i, 0, keepdims=False), tree)

    def send(self, x: jax.Array, step: int) -> jax.Array:
        """x to the next rank (step 1) or to the one before (step -1)."""
        pairs = [(r, r + step) for r in range(self.p) if 0 <= r + step < self.p]
        return send_recv(x, self.group, pairs)

    def forward(self, params: Any, received: jax.Array, micro: Any) -> jax.Array:
        """This rank's stage of a micro-batch: of what was received, or on the first rank of the micro-batch itself."""
        first = micro if self.embed is None else self.embed(params, micro)
        x = jnp.where(self.rank == 0, vary(first, tuple(varying(received))), received)
        return self.stage(params, x)

    def with_loss(self, params: Any, received: jax.Array, micro: Any, target: Any) -> tuple[jax.Array, jax.Array]:
        out = self.forward(params, received, micro)
        return out, self.loss(params, out, target)  # type: ignore[misc]

    def start(self, params: Any, microbatches: Any) -> jax.Array:
        """Zeros of the shape and of the type that go from stage to stage."""
        micro = self.micro(microbatches, self.rank * 0)
        x = micro if self.embed is None else self.embed(params, micro)
        if not isinstance(x, jax.Array):
            raise ArgumentError("micro-batches of several arrays: expected one array, or embed_fn to make one of them")
        axes = varying(x) | set(checked_axes(self.group.axes))
        while True:  # a stage may make its result vary over more axes; what is carried does from the start
            zeros = vary(jnp.zeros(x.shape, x.dtype), tuple(axes))
            out = self.stage(params, zeros)
            if (out.shape, out.dtype) != (x.shape, x.dtype):
                raise ArgumentError(
                    f"a stage makes {out.dtype}{list(out.shape)} of {x.dtype}{list(x.shape)}: expected the same shape "
                    f"and dtype, since the next stage takes it; embed_fn and loss_fn may change them"
                )
            if varying(out) <= axes:
                return zeros
            axes = axes | varying(out)

    def initial(self, params: Any, start: jax.Array, kept: int, microbatches: Any, targets: Any) -> _State:
        """The state before the first tick."""
        i = self.rank * 0
        loss = self.with_loss(params, start, self.micro(microbatches, i), self.micro(targets, i))[1]
        if loss.shape or not jnp.issubdtype(loss.dtype, jnp.floating):
            raise ArgumentError(f"loss_fn makes {loss.dtype}{list(loss.shape)}: expected a floating scalar")
        inputs = vary(jnp.zeros((kept, *start.shape), start.dtype), tuple(varying(start)))
        grads = jax.tree.map(lambda x: jnp.zeros_like(x), params)
        axes = tuple(varying(loss) | set(checked_axes(self.group.axes)))
        return _State(start, jnp.zeros_like(start), inputs, grads, vary(jnp.zeros((), loss.dtype), axes))


def _line(axis_name: AxisName | Group, stage: Stage, embed: Any, loss: Any, microbatches: Any, targets: Any) -> _Line:
    group = one_size(request(axis_name, None, None), "a pipeline").group
    leading = {jnp.shape(x)[:1] for x in jax.tree.leaves((microbatches, targets))}
    if len(leading) != 1 or leading == {()} or leading == {(0,)}:
        found = sorted(leading, key=str)
        raise ArgumentError(
            f"micro-batches and targets with leading dimensions {found}: expected one m, 1 or more, for all of them"
        )
    return _Line(group, stage, embed, loss, leading.pop()[0])


def _scan(body: Callable[[_State, jax.Array], _State], state: _State, start: int, end: int) -> _State:
    """body for each tick from start to end - 1."""
    ticks = jnp.arange(start, end, dtype=jnp.int32)
    return lax.scan(lambda state, t: (body(state, t), None), state, ticks)[0] if end > start else state
