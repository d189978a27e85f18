"""Which gradients travel together: leaves of a tree → buckets. Plain numbers; JAX is not needed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from hccljax.errors import ArgumentError


@dataclass(frozen=True)
class Leaf:
    """What the plan needs to know of an array.

    Attributes:
      kind: leaves share a bucket only with leaves of the same kind (dtype, replication type); None shares with nobody.
      nbytes: of the whole array.
      itemsize: bytes of one element.
    """

    kind: Hashable
    nbytes: int
    itemsize: int


def plan(leaves: Sequence[Leaf], bucket_bytes: int) -> tuple[tuple[int, ...], ...]:
    """The positions of the leaves in each bucket, buckets and positions in the order in which backward is done.

    Backward passes produce the gradients of the last layers first, so leaves are taken from the last to the first.
    One bucket of each kind is open at a time: it takes leaves until the next one would make it longer than
    bucket_bytes. A leaf of bucket_bytes or more is a bucket by itself, and leaves the open one open, so that the small
    leaves between large ones still find each other. A bucket has its place by its last leaf: then it is complete.

    Args:
      leaves: in the order of the tree.
      bucket_bytes: the most bytes of several leaves together.

    Raises:
      ArgumentError: bucket_bytes does not hold one element of a leaf.

    >>> plan([Leaf("float32", 4 * n, 4) for n in (10, 100, 10, 10)], 80)
    ((3, 2), (1,), (0,))
    """
    widest = max((leaf.itemsize for leaf in leaves), default=0)
    if bucket_bytes < widest:
        raise ArgumentError(
            f"bucket_bytes={bucket_bytes}: expected {widest} or more, the bytes of one element of the widest dtype here"
        )
    filled: list[list[int]] = []
    opened: dict[Hashable, tuple[list[int], int]] = {}
    for position in reversed(range(len(leaves))):
        leaf = leaves[position]
        if leaf.kind is None or leaf.nbytes >= bucket_bytes:
            filled.append([position])
            continue
        bucket, held = opened.get(leaf.kind, ([], 0))
        if held + leaf.nbytes > bucket_bytes:
            filled.append(bucket)
            bucket, held = [], 0
        bucket.append(position)
        opened[leaf.kind] = bucket, held + leaf.nbytes
    filled += [bucket for bucket, _ in opened.values()]
    return tuple(map(tuple, sorted(filled, key=lambda bucket: -bucket[-1])))
