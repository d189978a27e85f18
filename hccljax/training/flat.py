"""A pytree of parameters as few flat arrays that p ranks divide among them: what ZeRO shards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hccljax.errors import ArgumentError, shown
from hccljax.numbers import whole
from hccljax.training.buckets import Leaf, plan
from hccljax.training.sizing import bucket_size


@dataclass(frozen=True)
class FlatLayout:
    """Where each leaf of a pytree lies in flat buckets, each padded to a multiple of the ranks. See ``flat_layout``.

    Attributes:
      structure: of the pytree.
      leaves: shape and dtype of each leaf.
      buckets: the positions of the leaves in each bucket; those of one bucket have one dtype.
      ranks: p, among which a bucket is divided.
    """

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]
    buckets: tuple[tuple[int, ...], ...]
    ranks: int

    @property
    def shards(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shape and dtype of what one rank holds of each bucket: [elements / p, rounded up]."""
        return tuple(
            jax.ShapeDtypeStruct((-(-self._elements(bucket) // self.ranks),), self.leaves[bucket[0]][1])
            for bucket in self.buckets
        )

    def flatten(self, tree: Any) -> tuple[jax.Array, ...]:
        """The tree as buckets [p × elements of a shard], padded with zeros.

        Raises:
          ArgumentError: structure, shapes or dtypes are not those of this layout.
        """
        leaves, structure = jax.tree.flatten(tree)
        found = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        if structure != self.structure or found != self.leaves:
            raise ArgumentError(f"{_text(structure, found)}: expected what the layout was made for, {self}")
        return tuple(self._filled([jnp.asarray(leaves[i]) for i in bucket]) for bucket in self.buckets)

    def unflatten(self, buckets: tuple[jax.Array, ...]) -> Any:
        """The inverse of ``flatten``.

        Raises:
          ArgumentError: these are not this layout's buckets.
        """
        self._check(buckets, self.ranks, "whole buckets")
        out: list[Any] = [None] * len(self.leaves)
        for bucket, flat in zip(self.buckets, buckets, strict=True):
            start = 0
            for i in bucket:
                shape = self.leaves[i][0]
                end = start + math.prod(shape)
                out[i] = lax.reshape(lax.slice(flat, (start,), (end,)), shape)
                start = end
        return jax.tree.unflatten(self.structure, out)

    def check_shards(self, shards: Any) -> None:
        """Raises an ArgumentError unless shards are what one rank holds."""
        self._check(shards, 1, "the shards of one rank")

    def _check(self, arrays: Any, times: int, what: str) -> None:
        expected = [((times * one.shape[0],), one.dtype) for one in self.shards]
        leaves = list(arrays) if isinstance(arrays, (tuple, list)) else None
        found = None if leaves is None else [(jnp.shape(x), jnp.result_type(x)) for x in leaves]
        if found != expected:
            given = shown(arrays) if found is None else _several(found)
            raise ArgumentError(
                f"{given}: expected {what} of this layout for {self.ranks} ranks, a tuple of {_several(expected)}"
            )

    def _elements(self, bucket: tuple[int, ...]) -> int:
        return sum(math.prod(self.leaves[i][0]) for i in bucket)

    def _filled(self, arrays: list[jax.Array]) -> jax.Array:
        flat = lax.concatenate([lax.reshape(x, (x.size,)) for x in arrays], 0)
        missing = -flat.size % self.ranks
        return lax.pad(flat, lax.full_like(flat, 0, shape=()), [(0, missing, 0)]) if missing else flat

    def __str__(self) -> str:
        return _text(self.structure, self.leaves)


def flat_layout(params: Any, ranks: int, *, bucket_bytes: int | None = None) -> FlatLayout:
    """How parameters are laid out in flat buckets for ZeRO: leaves of one dtype together, the last leaves first.

    A bucket is gathered, and its gradients are scattered, by one collective: short ones start earlier in the backward
    pass, long ones pay less latency.

    Args:
      params: array(s) or ShapeDtypeStructs of floating or complex dtypes.
      ranks: p, among which each bucket is divided.
      bucket_bytes: the most bytes of several leaves together; None is HCCL_BUFFSIZE.

    Raises:
      ArgumentError: a leaf is no such array, ranks is less than 1, or bucket_bytes does not hold one element.

    Source: FlatParameter of PyTorch's FSDP (Zhao et al. 2023).

    >>> layout = hccljax.training.flat_layout({"w": jnp.ones((3, 2)), "b": jnp.ones(3)}, 4)
    >>> [shard.shape for shard in layout.shards]
    [(3,)]
    """
    p = whole("ranks", ranks, 1)
    leaves, structure = jax.tree.flatten(params)
    described = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    for shape, dtype in described:
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise ArgumentError(
                f"a leaf {dtype}{list(shape)}: expected floating or complex dtypes, which have gradients; keep "
                f"integers, booleans and keys apart (equinox.partition, flax.nnx.split)"
            )
    sized = [Leaf(dtype, math.prod(shape) * dtype.itemsize, dtype.itemsize) for shape, dtype in described]
    return FlatLayout(structure, described, plan(sized, bucket_size(bucket_bytes, p, None)), p)


def _several(arrays: Any) -> str:
    return "(" + ", ".join(f"{dtype}{list(shape)}" for shape, dtype in arrays) + ")"


def _text(structure: Any, leaves: Any) -> str:
    return shown(jax.tree.unflatten(structure, [f"{dtype}{list(shape)}" for shape, dtype in leaves]))
