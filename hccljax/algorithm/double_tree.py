"""Double tree: two complementary binary trees, each carrying half of the message, cut into segments that pipeline.

Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
For even p every rank is an inner node of exactly one tree, so that everybody sends and receives all the time; for odd
p only rank 0 is an inner node of both. ``double_tree_plan`` says who is whose parent and when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import jax
import numpy as np
from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import block_at, choose, join_blocks, look_up, repeat, split_blocks, with_block
from hccljax.algorithm.double_tree_plan import Edge, Flow, Plan, plan
from hccljax.group import Group
from hccljax.reduction import Reduction
from hccljax.shapes import Message

SEGMENT_BYTES = 1 << 19
"""Bytes of one segment: a longer one fills the pipeline too slowly, a shorter one pays too many steps."""

MOST_SEGMENTS = 32

Combine = Callable[[jax.Array, jax.Array], jax.Array]
Tick = jax.Array | np.int32
Arrival = tuple[np.ndarray, jax.Array]
State = tuple[list[jax.Array], jax.Array]


def segments(nbytes: int) -> int:
    """Segments that each half of a message of nbytes is cut into."""
    return min(max(1, nbytes // 2 // SEGMENT_BYTES), MOST_SEGMENTS)


def all_reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x […] → x […]: up both trees, then down both."""
    trees = plan(group.size)
    return join_blocks(_down(_up(_cut(x), group, trees, op), group, trees), x.shape)


def reduce(x: Message, group: Group, op: Reduction) -> Message:
    """x → the reduction on rank 0; the second tree's root hands its half over at the end."""
    trees = plan(group.size)
    half = _up(_cut(x), group, trees, op)
    other = group.permute(half, [(trees.second_root, 0)], "double_tree_hand_over")
    return join_blocks(lax.concatenate([half, other], 0), x.shape)


def broadcast(x: Message, group: Group) -> Message:
    """x of rank 0 → x everywhere; the second tree's root gets its half first."""
    trees = plan(group.size)
    halves = _cut(x)
    first, second = halves[: len(halves) // 2], halves[len(halves) // 2 :]
    received = group.permute(second, [(0, trees.second_root)], "double_tree_hand_over")
    half = choose(group.rank == trees.second_root, received, first)
    return join_blocks(_down(half, group, trees), x.shape)


def _cut(x: jax.Array) -> jax.Array:
    """x → [2 · segments, length]: the first tree's segments, then the second's."""
    return split_blocks(x, 2 * segments(x.size * x.dtype.itemsize))


def _up(halves: jax.Array, group: Group, trees: Plan, op: Reduction) -> jax.Array:
    """halves [2 · segments, …] → [segments, …]: its own tree's reduced half on each root, anything elsewhere."""
    count = halves.shape[0] // 2
    rooted = np.zeros(group.size, np.int32)
    rooted[trees.second_root] = 1
    out = lax.empty((count, *halves.shape[1:]), halves.dtype)
    return _pass(halves, out, group, Pass(trees, trees.up, op, count, "double_tree_reduce", count), {0: rooted})


def _down(half: jax.Array, group: Group, trees: Plan) -> jax.Array:
    """half [segments, …] of each root → [2 · segments, …] everywhere."""
    count = half.shape[0]
    out = lax.empty((2 * count, *half.shape[1:]), half.dtype)
    both = {tree * count: np.full(group.size, tree, np.int32) for tree in (0, 1)}
    return _pass(half, out, group, Pass(trees, trees.down, _replace, count, "double_tree_broadcast"), both)


def _replace(old: jax.Array, received: jax.Array) -> jax.Array:
    return received


@dataclass(frozen=True)
class Pass:
    """One direction through both trees.

    Attributes:
      trees, flow: who sends to whom, and when: at tick t the edges of depth d carry segment t - flow.starts[d].
      combine: (own segment, received one) → the one that travels on.
      count: segments of each half.
      label: what its steps are called.
      rows_of_tree: rows of the source that belong to one tree; 0 if every root's source is the half of its own tree.
    """

    trees: Plan
    flow: Flow
    combine: Combine
    count: int
    label: str
    rows_of_tree: int = 0

    @property
    def ticks(self) -> range:
        """As many as the trees are deep, plus one for each further segment."""
        return range(self.count + self.trees.depth - 1)


def _pass(source: jax.Array, out: jax.Array, group: Group, this: Pass, kept: dict[int, np.ndarray]) -> jax.Array:
    """Runs all ticks and returns out, with each kept stream's segments at its row and the rows after it.

    A stream is one tree for each rank, [p]. A rank sends one stream in each round; the segment it sends at tick t + 1
    is its own combined with what arrived at tick t. So only moving segments are carried: if the loop read back what it
    has written, XLA would copy the whole message at every tick (32 MB, 8 devices: 1,737 ms).
    """

    def value(t: Tick, stream: np.ndarray, arrived: list[Arrival]) -> jax.Array:
        row = lax.clamp(np.int32(0), _segment(t, stream, group, this.flow), np.int32(this.count - 1))
        own = block_at(source, row + look_up(stream * np.int32(this.rows_of_tree), group.rank))
        for trees, received in arrived:
            own = choose(look_up(trees == stream, group.rank), this.combine(own, received), own)
        return own

    def after(t: Tick, out: jax.Array, arrived: list[Arrival], draining: bool = False) -> State:
        for row, stream in kept.items():
            segment = _segment(t, stream, group, this.flow)
            place = lax.clamp(np.int32(0), segment, np.int32(this.count - 1)) + np.int32(row)
            fresh = value(t, stream, arrived)
            # What is written before the first segment is overwritten by it; after the last one, nothing may be.
            if draining:
                fresh = choose(segment < this.count, fresh, block_at(out, place))
            out = with_block(out, fresh, place)
        return [value(t, _sent(edges, group.size), arrived) for edges in this.flow.rounds], out

    def tick(t: Tick, state: State, depths: tuple[int, ...], draining: bool) -> State:
        moving, out = state
        return after(t, out, _arrivals(moving, group, this, depths), draining)

    due = [[t - this.flow.starts[d] for d in range(1, this.trees.depth + 1)] for t in this.ticks]
    active = [tuple(d for d, segment in enumerate(row, 1) if 0 <= segment < this.count) for row in due]
    state = after(np.int32(-1), out, [])
    for depths, run in groupby(this.ticks, key=lambda t: active[t]):
        span = list(run)
        step = partial(tick, depths=depths, draining=max(due[span[0]]) >= this.count)
        state = repeat(len(span), step, state, span[0]) if len(span) > 1 else step(np.int32(span[0]), state)
    return state[1]


def _segment(t: Tick, stream: np.ndarray, group: Group, flow: Flow) -> jax.Array:
    """The segment of the rank's stream that is complete after tick t, to be sent at the next."""
    first_tick = flow.first_tick[stream, np.arange(group.size)]
    return t + np.int32(1) - look_up(first_tick, group.rank)


def _sent(edges: tuple[Edge, ...], p: int) -> np.ndarray:
    """The tree whose segment each rank sends in a round, [p]; ranks that send nothing have tree 0."""
    stream = np.zeros(p, np.int32)
    for edge in edges:
        stream[edge.source] = edge.tree
    return stream


def _arrivals(moving: list[jax.Array], group: Group, this: Pass, depths: tuple[int, ...]) -> list[Arrival]:
    """One tick's messages: for each round the tree whose segment each rank receives (-1: none), and the segment."""
    arrived = []
    for segment, edges in zip(moving, this.flow.rounds, strict=True):
        due = [edge for edge in edges if edge.depth in depths]
        if due:
            trees = np.full(group.size, -1, np.int32)
            trees[[edge.destination for edge in due]] = [edge.tree for edge in due]
            pairs = [(edge.source, edge.destination) for edge in due]
            arrived.append((trees, group.permute(segment, pairs, this.label)))
    return arrived


def steps(operator: str, p: int, nbytes: int) -> int:
    """Ticks: as many as the trees are deep, plus one for each further segment; one more step to hand a half over."""
    one_way = plan(p).depth + segments(nbytes) - 1
    return 2 * one_way if operator == "all_reduce" else one_way + 1


def bytes_sent(operator: str, p: int, nbytes: int) -> int:
    """Half a message over each edge; the busiest rank is found by counting its edges."""
    trees = plan(p)
    up, down = trees.up.edges_from(p), trees.down.edges_from(p)
    sent = {"all_reduce": up + down, "reduce": up, "broadcast": down}[operator].copy()
    if operator != "all_reduce":
        sent[trees.second_root if operator == "reduce" else 0] += 1
    return int(sent.max()) * -(-nbytes // 2)


double_tree = register(
    Algorithm(
        name="double_tree",
        source="Sanders, Speck and Träff 2009; HCCL's tree for long messages",
        steps=steps,
        bytes_sent=bytes_sent,
        all_reduce=all_reduce,
        broadcast=broadcast,
        reduce=reduce,
        regimes=(4 * SEGMENT_BYTES, 8 * SEGMENT_BYTES),  # two segments a half, and four
        order="a parent's own share, then its children's in the order of the rounds; the halves follow their own trees",
    )
)
