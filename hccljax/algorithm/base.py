"""The Algorithm record, the registry, and the one table that composes the kernels an algorithm does not have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from hccljax.algorithm.blocks import join_blocks, split_blocks
from hccljax.errors import ArgumentError, UnsupportedError, shown
from hccljax.group import Group
from hccljax.reduction import MEAN, Reduction

OPERATORS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "scatter", "gather", "all_to_all",
)  # fmt: skip
"""The operators an algorithm can have kernels for."""

VARIABLE = {
    "all_gather_v": "all_gather",
    "reduce_scatter_v": "reduce_scatter",
    "all_to_all_v": "all_to_all",
    "all_to_all_vc": "all_to_all",
}
"""The operators whose blocks differ in size, and the operator whose kernels run them."""

SHAPE_KEEPING = ("all_reduce", "broadcast", "reduce")
"""Those whose arrays have the same shape whatever the number of ranks."""

REDUCING = ("all_reduce", "reduce_scatter", "reduce", "reduce_scatter_v")
"""Those that combine the ranks' arrays."""

TAKES_BLOCKS = ("reduce_scatter", "scatter", "all_to_all")
GIVES_BLOCKS = ("all_gather", "gather", "all_to_all")
"""Those whose operand, and those whose result, is [p, …]."""

ROOTED = ("broadcast", "reduce", "scatter", "gather")
"""Those that have a root."""

Kernel = Callable[..., jax.Array]
Formula = Callable[[str, int, int], int]


class Cost(NamedTuple):
    """The longest chain of dependent communications, and the most bytes that one rank sends."""

    steps: int
    bytes_sent: int


@dataclass(frozen=True)
class Algorithm:
    """A collective algorithm: its kernels, what they cost, and where they come from.

    Kernels are plain JAX functions of one array over a Group of p ranks. Blocks are in rank order.

    Attributes:
      name: what ``algorithm=`` and HCCL_ALGO call it.
      source: the paper or rule it comes from.
      steps: (operator, p, bytes of the message on one rank) → the longest chain of dependent communications.
      bytes_sent: the same arguments → the most bytes that one rank sends, where blocks come out even.
      reduce_scatter: (blocks [p, …], group, op) → block […]; block r ends on rank r.
      all_gather: (block […], group) → blocks [p, …].
      all_reduce: (x […], group, op) → x […].
      broadcast: (x […], group) → rank 0's x on every rank.
      reduce: (x […], group, op) → the reduced x on rank 0, anything elsewhere.
      scatter: (blocks [p, …] of rank 0, group) → block r on rank r.
      gather: (block […], group) → blocks [p, …] on rank 0, anything elsewhere.
      all_to_all: (blocks [p, …], group) → blocks [p, …]; block i comes from rank i.
      rooted: True if the rooted kernels above take ``root`` as a further argument; else they are written for root 0
        and run on ``group.rotated(root)``.
      order: the order in which contributions meet, in one sentence.
      over: sizes of the tiers, level 0 first → the same algorithm, its formulas for a group with those tiers. For one
        that works over all tiers at once (its kernels see them as ``group.level(0)`` and ``group.above()``); None for
        one to which all ranks are alike. The record itself is that for one flat server.
      over_servers: ranks of each server, which need not be equal, in rank order → the same algorithm for those servers.
        For one with ``over`` that can also do that; None for one whose servers have to be alike.
      regimes: bytes of one rank's message above which the kernels work in another way, if they tell sizes apart:
        ``hccljax.verify`` proves a message beyond each of them.
    """

    name: str
    source: str
    steps: Formula
    bytes_sent: Formula
    reduce_scatter: Kernel | None = None
    all_gather: Kernel | None = None
    all_reduce: Kernel | None = None
    broadcast: Kernel | None = None
    reduce: Kernel | None = None
    scatter: Kernel | None = None
    gather: Kernel | None = None
    all_to_all: Kernel | None = None
    rooted: bool = False
    order: str = ""
    over: Callable[[tuple[int, ...]], Algorithm] | None = None
    over_servers: Callable[[tuple[int, ...]], Algorithm] | None = None
    regimes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError(f"Algorithm name {shown(self.name)}: expected a non-empty str")
        for name in ("steps", "bytes_sent", *OPERATORS):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name not in OPERATORS):
                raise ArgumentError(f"{name}={shown(value)} of Algorithm {self.name!r}: expected a function")
        if not any(self.has(operator) for operator in OPERATORS):
            raise ArgumentError(
                f"Algorithm {self.name!r} has no kernel; expected at least one of {', '.join(OPERATORS)}"
            )

    def has(self, operator: str) -> bool:
        """True if the algorithm has a kernel of its own for operator."""
        return getattr(self, operator) is not None

    def supports(self, operator: str) -> bool:
        """True if operator can run, with a kernel of its own or composed of others."""
        return self.has(operator) or (operator in COMPOSED and all(self.has(part) for part in COMPOSED[operator]))

    def reduction_order(self, p: int, nbytes: int | None = None) -> tuple[Any, ...]:
        """The order in which the contributions of p ranks meet, as it is seen when the kernel runs.

        Returns:
          For each of p parts of the message nested pairs of ranks: ``((0, 1), 2)`` is (x0 + x1) + x2.
        """
        from hccljax.algorithm.order import reduction_order  # it runs kernels, as this module says how to

        return reduction_order(self, p, nbytes)

    def cost(self, operator: str, p: int, nbytes: int) -> Cost:
        """What the formulas say; one rank sends nothing, and a V form costs what the operator does that it runs."""
        if p == 1:
            return Cost(0, 0)
        operator = VARIABLE.get(operator, operator)
        return Cost(self.steps(operator, p, nbytes), self.bytes_sent(operator, p, nbytes))

    def __repr__(self) -> str:
        return f"Algorithm({self.name!r})"


COMPOSED = {
    "all_reduce": ("reduce_scatter", "all_gather"),
    "broadcast": ("scatter", "all_gather"),
    "reduce": ("reduce_scatter", "gather"),
}
"""Operators as the composition of two others; the message is cut into p blocks in between."""


def run(
    algorithm: Algorithm, operator: str, x: jax.Array, group: Group, op: Reduction | None = None, root: int = 0
) -> jax.Array:
    """Runs one operator of an algorithm on one array: its own kernel, or the composition of two.

    Shapes are those of the kernels (see ``Algorithm``). Results of reduce and gather are defined on the root only.
    """
    if group.size == 1:
        return _alone(operator, x)
    if algorithm.has(operator):
        return _checked(algorithm, operator, x, group.size, op, _own(algorithm, operator, x, group, op, root))
    if algorithm.supports(operator):
        return composed(algorithm, operator, x, group, op, root)
    raise unsupported(algorithm, operator)


def composed(
    algorithm: Algorithm, operator: str, x: jax.Array, group: Group, op: Reduction | None = None, root: int = 0
) -> jax.Array:
    """x through the two operators that COMPOSED names, whether or not the algorithm has a kernel of its own.

    A kernel that has another form for some sizes calls this for the others.
    """
    first, second = COMPOSED[operator]
    mine = run(algorithm, first, split_blocks(x, group.size), group, op, root)
    return join_blocks(run(algorithm, second, mine, group, root=root), x.shape)


def _own(algorithm: Algorithm, operator: str, x: jax.Array, group: Group, op: Reduction | None, root: int) -> jax.Array:
    """x through the algorithm's own kernel."""
    kernel = getattr(algorithm, operator)
    arguments = (op,) if operator in REDUCING else ()
    if operator not in ROOTED:
        return kernel(x, group, *arguments)
    if algorithm.rooted:
        return kernel(x, group, *arguments, root)
    if operator == "scatter":
        x = rolled(x, -root)
    out = kernel(x, group.rotated(root), *arguments)
    return rolled(out, root) if operator == "gather" else out


def _checked(
    algorithm: Algorithm, operator: str, x: jax.Array, p: int, op: Reduction | None, out: jax.Array
) -> jax.Array:
    """out, once it has the shape and the dtype that the operator gives."""
    shape = dimensions_after(operator, x.shape, p)
    if not isinstance(out, jax.Array) or out.shape != shape or (out.dtype != x.dtype and op is not MEAN):
        found = f"{out.dtype}{list(out.shape)}" if isinstance(out, jax.Array) else shown(out)
        raise ArgumentError(
            f"algorithm {algorithm.name!r}: its {operator} of {x.dtype}{list(x.shape)} on {p} ranks gave {found}; "
            f"expected {x.dtype}{list(shape)}"
        )
    return out


def dimensions_after(operator: str, before: tuple[Any, ...], blocks: Any) -> tuple[Any, ...]:
    """One entry for each dimension of an operator's result, from those of its operand and that of the p blocks."""
    if operator in TAKES_BLOCKS:
        before = before[1:]
    return (blocks, *before) if operator in GIVES_BLOCKS else before


def rolled(blocks: jax.Array, k: int) -> jax.Array:
    """blocks [p, …] moved by a static k: block i goes to i + k (mod p)."""
    k %= blocks.shape[0]
    if k == 0:
        return blocks
    return jax.lax.concatenate([blocks[-k:], blocks[:-k]], 0)


def _alone(operator: str, x: jax.Array) -> jax.Array:
    if operator in ("reduce_scatter", "scatter"):
        return x[0]
    return x[None] if operator in ("all_gather", "gather") else x


def unsupported(algorithm: Algorithm, operator: str, why: str | None = None) -> UnsupportedError:
    """The error for an operator that an algorithm does not have, or why it cannot be had here."""
    able = [name for name, other in _REGISTRY.items() if other.supports(operator) and name != algorithm.name]
    why = why or f"has no {operator}"
    return UnsupportedError(
        f"algorithm {algorithm.name!r} {why}; expected one of {', '.join(able)}, or no algorithm= at all"
    )


RESERVED = ("hierarchical", "fastest", "fullmesh", "NA", "null")
"""Words that ``algorithm=`` and HCCL_ALGO understand in another way."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_REGISTRY: dict[str, Algorithm] = {}
_REPLACED: list[Algorithm] = []


def register(algorithm: Algorithm, *, replace: bool = False) -> Algorithm:
    """Makes an algorithm known under its name, for ``algorithm=`` and HCCL_ALGO; returns it.

    From then on it is a candidate of ``algorithm="fastest"``, too: prove it first, with ``hccljax.verify``.

    Args:
      algorithm: the record.
      replace: True takes the place of an algorithm of that name that was registered before, as a notebook cell does
        that runs twice; not of hccljax's own.

    Raises:
      ArgumentError: another algorithm has the name already, or HCCL_ALGO could not say it.
    """
    if not isinstance(algorithm, Algorithm):
        raise ArgumentError(f"register got {shown(algorithm)}: expected an hccljax.Algorithm")
    if algorithm.name in RESERVED or not _NAME.fullmatch(algorithm.name):
        raise ArgumentError(
            f"an algorithm cannot be registered as {shown(algorithm.name)}, which HCCL_ALGO reads otherwise; expected "
            f"letters, digits, '_', '-' and '.', and none of {', '.join(RESERVED)}: choose another name"
        )
    known = _REGISTRY.get(algorithm.name)
    if known == algorithm:
        return algorithm
    own = known is not None and _is_own(known)
    if known is not None and (own or not replace):
        fix = "choose another name" if own else "choose another name, or pass replace=True"
        raise ArgumentError(f"an algorithm named {algorithm.name!r} is registered already: {fix}")
    if known is not None:
        _REPLACED.append(known)
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def _is_own(algorithm: Algorithm) -> bool:
    """True for those that hccljax brings along."""
    kernels = [getattr(algorithm, operator) for operator in OPERATORS]
    return any(getattr(kernel, "__module__", "").startswith("hccljax.algorithm") for kernel in kernels)


def registered(name: str) -> Algorithm:
    """The algorithm of that name."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise ArgumentError(f"unknown algorithm {shown(name)}; expected one of {', '.join(algorithms())}") from None


def registered_so_far() -> int:
    """How often an algorithm was registered: it grows when a name comes to mean something, or something else."""
    return len(_REGISTRY) + len(_REPLACED)


def algorithms() -> tuple[str, ...]:
    """The names of all registered algorithms, in the order they were registered."""
    return tuple(_REGISTRY)
