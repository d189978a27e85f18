"""H-D_R, recursive halving and doubling: partners at distance p/2, p/4, … swap halves, then collect them again.

Source: Rabenseifner, "Optimization of collective reduction operations" (2004); HCCL's H-D_R.
If p is not a power of two, each odd rank below 2(p - p') first joins the even rank before it (p' is the largest power
of two below p). Every such pair acts as one *member*, member i is rank 2i (a pair) or i + p - p' (a single rank), and
owns two blocks: the rows that the members halve are therefore two blocks long, the second one padding for singles.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import choose, join_blocks, look_up, split_blocks
from hccljax.group import Group
from hccljax.layout import Pair
from hccljax.reduction import Reduction
from hccljax.shapes import Block, Blocks, Message


@dataclass(frozen=True)
class Members:
    """The p' members among p ranks."""

    p: int

    @property
    def levels(self) -> int:
        """log2 p'."""
        return self.p.bit_length() - 1

    @property
    def count(self) -> int:
        """p', the largest power of two up to p."""
        return 1 << self.levels

    @property
    def extra(self) -> int:
        """Ranks that have joined another one: p - p'."""
        return self.p - self.count

    @property
    def ranks(self) -> list[int]:
        """The rank that acts for each member."""
        return [2 * i if i < self.extra else i + self.extra for i in range(self.count)]

    def member(self, group: Group) -> jax.Array:
        """The member this rank belongs to: int32 scalar."""
        if not self.extra:
            return group.rank
        table = [r // 2 if r < 2 * self.extra else r - self.extra for r in range(self.p)]
        return look_up(np.array(table, np.int32), group.rank)

    def pairs(self, moves: list[Pair]) -> list[Pair]:
        """Moves between members as pairs of ranks."""
        ranks = self.ranks
        return [(ranks[i], ranks[j]) for i, j in moves]

    def swap(self, x: jax.Array, group: Group, mask: int, label: str) -> jax.Array:
        """x exchanged between members i and i XOR mask."""
        if not self.extra:
            return group.exchange(x, mask, label)
        return group.permute(x, self.pairs([(i, i ^ mask) for i in range(self.count)]), label)

    def join(self, x: jax.Array, group: Group) -> tuple[jax.Array, jax.Array]:
        """(what the joining rank sends, True on the ranks that receive it); only if there are extra ranks."""
        received = group.permute(x, [(2 * i + 1, 2 * i) for i in range(self.extra)], "halving_join_reduce")
        return received, (group.rank < 2 * self.extra) & (group.rank & 1 == 0)

    def give_back(self, x: jax.Array, own: jax.Array, group: Group) -> jax.Array:
        """x of the even rank on the odd rank that joined it, own everywhere else."""
        received = group.permute(x, [(2 * i, 2 * i + 1) for i in range(self.extra)], "doubling_give_back")
        return choose((group.rank < 2 * self.extra) & (group.rank & 1 == 1), received, own)


def halve(rows: jax.Array, group: Group, op: Reduction, members: Members) -> jax.Array:
    """rows [p', …] → row […] of this member, reduced."""
    member = members.member(group)
    for s in reversed(range(members.levels)):
        mask = 1 << s
        low, high = rows[:mask], rows[mask:]
        upper = member & mask != 0
        received = members.swap(choose(upper, low, high), group, mask, "halving_reduce_scatter")
        rows = op(choose(upper, high, low), received)
    return rows[0]


def double(row: jax.Array, group: Group, members: Members) -> jax.Array:
    """row […] of this member → [p', …]."""
    member, rows = members.member(group), row[None]
    for s in range(members.levels):
        mask = 1 << s
        received = members.swap(rows, group, mask, "doubling_all_gather")
        upper = member & mask != 0
        rows = lax.concatenate([choose(upper, received, rows), choose(upper, rows, received)], 0)
    return rows


def spread(rows: jax.Array, group: Group, members: Members) -> jax.Array:
    """rows [p', …] of member 0 → row […] of this member: a binomial scatter that halves what it sends."""
    member = members.member(group)
    for s in reversed(range(members.levels)):
        mask = 1 << s
        moves = [(i, i + mask) for i in range(0, members.count, 2 * mask)]
        received = group.permute(rows[mask:], members.pairs(moves), "halving_scatter")
        rows = choose(member & mask != 0, received, rows[:mask])
    return rows[0]


def collect(row: jax.Array, group: Group, members: Members) -> jax.Array:
    """row […] → [p', …] on member 0: ``spread`` backwards."""
    rows = row[None]
    for s in range(members.levels):
        mask = 1 << s
        moves = [(i + mask, i) for i in range(0, members.count, 2 * mask)]
        received = group.permute(rows, members.pairs(moves), "doubling_gather")
        rows = lax.concatenate([rows, received], 0)
    return rows


def to_rows(blocks: jax.Array, members: Members) -> jax.Array:
    """blocks [p, …] → [p', …], or [p', 2, …] if members own up to two blocks."""
    if not members.extra:
        return blocks
    paired = blocks[: 2 * members.extra].reshape(members.extra, 2, *blocks.shape[1:])
    single = blocks[2 * members.extra :][:, None]
    return lax.concatenate([paired, lax.concatenate([single, jnp.zeros_like(single)], 1)], 0)


def to_blocks(rows: jax.Array, members: Members) -> jax.Array:
    """The inverse of ``to_rows``."""
    if not members.extra:
        return rows
    paired = rows[: members.extra].reshape(2 * members.extra, *rows.shape[2:])
    return lax.concatenate([paired, rows[members.extra :, 0]], 0)


def _joined(x: jax.Array, group: Group, op: Reduction, members: Members) -> jax.Array:
    if not members.extra:
        return x
    received, receives = members.join(x, group)
    return choose(receives, op(x, received), x)


def reduce_scatter(blocks: Blocks, group: Group, op: Reduction) -> Block:
    """blocks [p, …] → block […]."""
    members = Members(group.size)
    row = halve(to_rows(_joined(blocks, group, op, members), members), group, op, members)
    return members.give_back(row[1], row[0], group) if members.extra else row


def all_gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …]."""
    members = Members(group.size)
    if not members.extra:
        return double(block, group, members)
    received, _ = members.join(block, group)
    blocks = to_blocks(double(jnp.stack([block, received]), group, members), members)
    return members.give_back(blocks, blocks, group)


def all_reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […], cut into p' rows whatever p is."""
    members = Members(group.size)
    rows = split_blocks(_joined(x, group, op, members), members.count)
    x = join_blocks(double(halve(rows, group, op, members), group, members), x.shape)
    return members.give_back(x, x, group) if members.extra else x


def broadcast(x: Message, group: Group) -> Message:
    """x of rank 0 → x everywhere: spread, then double."""
    members = Members(group.size)
    row = spread(split_blocks(x, members.count), group, members)
    x = join_blocks(double(row, group, members), x.shape)
    return members.give_back(x, x, group) if members.extra else x


def reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x → the reduction on rank 0: halve, then collect."""
    members = Members(group.size)
    rows = split_blocks(_joined(x, group, op, members), members.count)
    return join_blocks(collect(halve(rows, group, op, members), group, members), x.shape)


def scatter(blocks: Blocks, group: Group) -> Block:
    """blocks [p, …] of rank 0 → block […]."""
    members = Members(group.size)
    row = spread(to_rows(blocks, members), group, members)
    return members.give_back(row[1], row[0], group) if members.extra else row


def gather(block: Block, group: Group) -> Blocks:
    """block […] → [p, …] on rank 0."""
    members = Members(group.size)
    if not members.extra:
        return collect(block, group, members)
    received, _ = members.join(block, group)
    return to_blocks(collect(jnp.stack([block, received]), group, members), members)


def steps(operator: str, p: int, nbytes: int) -> int:
    """log2 p' steps to halve and as many to double, one more to join and one to give back where the operator does."""
    members = Members(p)
    phases = 2 if operator in ("all_reduce", "broadcast", "reduce") else 1
    around = {"all_reduce": 2, "reduce_scatter": 2, "all_gather": 2}.get(operator, 1)
    return phases * members.levels + (around if members.extra else 0)


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """What the busiest rank sends: p' - 1 rows to halve or to double; a row is two blocks where ranks have joined."""
    members, paired = Members(p), Members(p).extra > 0
    rows = members.count - 1
    block, row = -(-nbytes // p), -(-nbytes // members.count)
    if operator in ("all_reduce", "broadcast"):
        return 2 * rows * row + (nbytes if paired else 0)
    if operator == "reduce":  # the member halfway up halves, then sends half the rows; a joining rank sends everything
        return max((rows + members.count // 2) * row, nbytes if paired else 0)
    if not paired:
        return block * (members.count // 2 if operator == "gather" else rows)
    return block * {"all_gather": 2 * rows + p, "gather": members.count}.get(operator, 2 * rows + 1)


halving_doubling = register(
    Algorithm(
        name="H-D_R",
        source="Rabenseifner 2004; HCCL's H-D_R",
        steps=steps,
        bytes_sent=bytes_sent,
        reduce_scatter=reduce_scatter,
        all_gather=all_gather,
        all_reduce=all_reduce,
        broadcast=broadcast,
        reduce=reduce,
        scatter=scatter,
        gather=gather,
        order="joined pairs first, then members at distance p'/2, p'/4, …, the one that keeps the half on the left",
    )
)
