"""Gradients of all ranks reduced in buckets: few long messages instead of one for each leaf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hccljax.algorithm import Algorithm
from hccljax.collectives import all_reduce
from hccljax.collectives.leaf import as_array
from hccljax.errors import ArgumentError, shown
from hccljax.group import AxisName, Group, as_group
from hccljax.numbers import whole
from hccljax.topology import Topology, as_topology
from hccljax.training.buckets import plan
from hccljax.training.packing import after, leaf_of, packed, unpacked
from hccljax.training.sizing import bucket_size


def sync_gradients(
    grads: Any,
    axis_name: AxisName | Group,
    op: str = "mean",
    *,
    algorithm: str | Algorithm | None = None,
    topology: str | Topology | None = None,
    accumulate_dtype: Any = None,
    bucket_bytes: int | str | None = None,
    in_flight: int | None = None,
    skip_nonfinite: bool = False,
) -> Any:
    """The gradients of all ranks, reduced: leaf by leaf what ``all_reduce`` gives, in few long messages.

    Leaves of one dtype are packed into buckets, from the last leaf to the first, since a backward pass produces the
    gradients of the last layers first. Each bucket is reduced on its own and waits for its own leaves only: it is on
    its way while the rest of the backward pass still runs. Runs inside ``jax.shard_map`` or ``jax.vmap(axis_name=…)``,
    and differentiates, as ``all_reduce`` does. In a checked ``shard_map`` the parameters have to be typed as varying
    before ``jax.grad``: see ``as_varying``, and ``value_and_grad``, which does both.

    Args:
      grads: array(s) of this rank, of any shapes and dtypes. None, ``optax.MaskedNode`` and the float0 gradients of
        integers stay as they are.
      axis_name: a mapped axis name, a tuple of them, or a Group.
      op: ``"mean"`` or ``"sum"`` over the ranks.
      algorithm: as for ``all_reduce``; it is chosen for each bucket by its bytes.
      topology: as for ``all_reduce``.
      accumulate_dtype: as for ``all_reduce``.
      bucket_bytes: the most bytes of several leaves together; a leaf as long as that is sent alone, without a copy.
        None is HCCL_BUFFSIZE. ``"auto"`` is the shortest power of two of which, on this topology, at most a tenth of
        the predicted time is latency.
      in_flight: how many buckets may be underway at a time: another one is packed when the first of them is reduced,
        so that temporary memory holds no more of them. None is no limit: a bucket waits for its own leaves only.
      skip_nonfinite: True also says whether any reduced gradient is infinite or not a number, and makes all of them
        zeros if so. Every rank sees the same sums, so all agree without a further message.

    Returns:
      The tree, every leaf as ``all_reduce`` returns it: typed as replicated over the axis unless the Group is
      partitioned. With skip_nonfinite, (the tree, skipped), a bool scalar that is the same on all ranks of a
      communicator. The optimiser's step is still to be left out where it is True: zeros move Adam by its momentum.

    Raises:
      ArgumentError: op is neither, bucket_bytes does not hold one element, in_flight is less than 1, or algorithm or
        topology is unknown.
      AxisError: the axis is not mapped here.
      DtypeError: a dtype that has no sum, or an accumulate_dtype that does not hold a leaf's.

    Source: the buckets of PyTorch's DistributedDataParallel (Li et al. 2020).

    >>> grads = {"w": jnp.arange(4.0), "b": jnp.array([3.0, 5.0, 7.0, 9.0])}
    >>> jax.vmap(lambda grads: hccljax.sync_gradients(grads, "rank"), axis_name="rank")(grads)["b"]
    Array([6., 6., 6., 6.], dtype=float32)
    """
    checked_op(op)
    most = None if in_flight is None else whole("in_flight", in_flight, 1)
    group = as_group(axis_name)
    group.resolved  # noqa: B018  (raises for an unmapped axis)
    leaves, structure = jax.tree.flatten(grads)
    positions = [position for position, leaf in enumerate(leaves) if not _is_float0(leaf)]
    largest, tiers = group.classes[0], as_topology(topology)  # of groups that differ in size, the largest decides
    longest = bucket_size(bucket_bytes, largest.size, algorithm, tiers or largest.topology, not largest.covers)
    options = {"algorithm": algorithm, "topology": topology, "accumulate_dtype": accumulate_dtype}
    reduced = in_buckets([as_array(leaves[position]) for position in positions], group, op, longest, most, **options)
    for position, x in zip(positions, reduced, strict=True):
        leaves[position] = x
    out = jax.tree.unflatten(structure, leaves)
    if not skip_nonfinite:
        return out
    skipped = _any_nonfinite(reduced)
    return jax.tree.map(lambda x: x if _is_float0(x) else jnp.where(skipped, jnp.zeros_like(x), x), out), skipped


def in_buckets(
    arrays: Sequence[jax.Array], group: Group, op: str, longest: int, in_flight: int | None = None, **options: Any
) -> list[jax.Array]:
    """all_reduce of each array, in buckets of up to longest bytes; options are those of ``all_reduce``."""
    buckets = plan([leaf_of(x) for x in arrays], longest)
    own, ahead = [[arrays[i] for i in bucket] for bucket in buckets], in_flight or len(buckets)
    # Those underway are packed before the first one is unpacked: a rank that computes in program order does not let
    # one bucket wait for another.
    messages, sums = [packed(each) for each in own[:ahead]], []
    for k in range(len(own)):
        sums.append(all_reduce(messages[k], group, op, **options))
        if k + ahead < len(own):
            messages.append(packed(after(sums[k], own[k + ahead])))
    out = list(arrays)
    for bucket, total in zip(buckets, sums, strict=True):
        for i, x in zip(bucket, unpacked(total, [arrays[i].shape for i in bucket]), strict=True):
            out[i] = x
    return out


def checked_op(op: object) -> None:
    """Raises an ArgumentError unless op is one of the reductions of gradients."""
    if op not in ("mean", "sum"):
        raise ArgumentError(f"op={shown(op)}: expected 'mean' or 'sum', the reductions that a gradient has")


def _any_nonfinite(arrays: Iterable[jax.Array]) -> jax.Array:
    """Whether any element is infinite or not a number: bool scalar."""
    found = [~jnp.isfinite(x).all() for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.stack(found).any() if found else jnp.asarray(False)


def _is_float0(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == jax.dtypes.float0
