"""Double tree: two complementary binary trees, each carrying half of the message, cut into segments that pipeline.

Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
For even p every rank is an inner node of exactly one tree, so that everybody sends and receives all the time; for odd
p only rank 0 is an inner node of both. ``double_tree_plan`` says who is whose parent and when.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby

import jax
import numpy as np
from jax import lax

from hccljax.algorithm.base import Algorithm, register
from hccljax.algorithm.blocks import block_at, choose, join_blocks, look_up, repeat, split_blocks, with_block
from hccljax.algorithm.double_tree_plan import Flow, Plan, plan
from hccljax.group import Group
from hccljax.reduction import Reduction

SEGMENT_BYTES = 1 << 20
"""Bytes of one segment: a longer one fills the pipeline too slowly, a shorter one pays too many steps."""

MOST_SEGMENTS = 16

Combine = Callable[[jax.Array, jax.Array], jax.Array]
Moving = tuple[jax.Array, jax.Array]
State = tuple[Moving, jax.Array]


def segments(nbytes: int) -> int:
    """Segments that each half of a message of nbytes is cut into."""
    return min(max(1, nbytes // 2 // SEGMENT_BYTES), MOST_SEGMENTS)


def all_reduce(x: jax.Array, group: Group, op: Reduction) -> jax.Array:
    """x […] → x […]: up both trees, then down both."""
    trees = plan(group.size)
    halves = _cut(x)
    halves = _pass(_pass(halves, group, trees, trees.up, op), group, trees, trees.down, _replace)
    return join_blocks(halves, x.shape)


def reduce(x: jax.Array, group: Group, op: Reduction) -> jax.Array:
    """x → the reduction on rank 0; the second tree's root hands its half over at the end."""
    trees = plan(group.size)
    halves = _hand_over(_pass(_cut(x), group, trees, trees.up, op), group, trees.second_root, 0)
    return join_blocks(halves, x.shape)


def broadcast(x: jax.Array, group: Group) -> jax.Array:
    """x of rank 0 → x everywhere; the second tree's root gets its half first."""
    trees = plan(group.size)
    halves = _pass(_hand_over(_cut(x), group, 0, trees.second_root), group, trees, trees.down, _replace)
    return join_blocks(halves, x.shape)


def _cut(x: jax.Array) -> jax.Array:
    """x → [2 · segments, length]: the first tree's segments, then the second's."""
    return split_blocks(x, 2 * segments(x.size * x.dtype.itemsize))


def _replace(old: jax.Array, received: jax.Array) -> jax.Array:
    return received


def _hand_over(halves: jax.Array, group: Group, source: int, destination: int) -> jax.Array:
    """The second half, as ``source`` has it, on ``destination`` too."""
    first, second = halves[: len(halves) // 2], halves[len(halves) // 2 :]
    received = group.permute(second, [(source, destination)], "double_tree_hand_over")
    return lax.concatenate([first, choose(group.rank == destination, received, second)], 0)


def _pass(halves: jax.Array, group: Group, trees: Plan, flow: Flow, combine: Combine) -> jax.Array:
    """Moves every segment through both trees, up or down.

    At tick t the edges of depth d carry segment t - flow.starts[d]. What a rank sends at tick t + 1 is its own segment
    combined with what arrived at tick t, so that only two moving segments are carried: reading back what the loop has
    written would make XLA copy the whole message at every tick (32 MB, 8 devices: 1,737 ms instead of 250).
    """
    count = halves.shape[0] // 2
    due = [look_up(table, group.rank) for table in flow.first_tick]

    def tick(t: jax.Array, carry: State, depths: tuple[int, ...]) -> State:
        moving, out = carry
        arrived = _send(moving, group, flow, depths)
        fresh = []
        for tree in (0, 1):
            segment = t + np.int32(1) - due[tree]
            row = lax.clamp(np.int32(0), segment, np.int32(count - 1)) + np.int32(tree * count)
            value = block_at(halves, row)
            for trees_received, received in arrived:
                value = choose(look_up(trees_received == tree, group.rank), combine(value, received), value)
            # A rank that is done keeps writing its last segment, the same every time.
            fresh.append(choose(segment < count, value, moving[tree]))
            out = with_block(out, fresh[tree], row)
        return (fresh[0], fresh[1]), out

    first = (halves[0], halves[count])
    out = lax.empty(halves.shape, halves.dtype).at[0].set(first[0]).at[count].set(first[1])
    state: State = (first, out)
    ticks = range(count + trees.depth - 1)
    active = [tuple(d for d in range(1, trees.depth + 1) if 0 <= t - flow.starts[d] < count) for t in ticks]
    for depths, run in groupby(ticks, key=lambda t: active[t]):
        span = list(run)
        step = partial(tick, depths=depths)
        state = repeat(len(span), step, state, span[0]) if len(span) > 1 else step(np.int32(span[0]), state)
    return state[1]


def _send(
    moving: Moving, group: Group, flow: Flow, depths: tuple[int, ...]
) -> list[tuple[np.ndarray, jax.Array]]:
    """One tick's messages: for each round, the tree whose segment each rank receives (-1: none), and the segment."""
    arrived = []
    for one in flow.rounds:
        edges = [edge for edge in one if edge.depth in depths]
        if not edges:
            continue
        sent, received = np.zeros(group.size, bool), np.full(group.size, -1)
        for edge in edges:
            sent[edge.source] = edge.tree == 1
            received[edge.destination] = edge.tree
        segment = choose(look_up(sent, group.rank), moving[1], moving[0])
        pairs = [(edge.source, edge.destination) for edge in edges]
        arrived.append((received, group.permute(segment, pairs, "double_tree")))
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
        order="a parent's own share, then its children's in the order of the rounds; the halves follow their own trees",
    )
)
