"""Draws what each algorithm sends, from its traced schedule: python docs/figures/draw.py

A line for each rank, time from left to right; an arrow for each message, from when it starts to when it has arrived, as
thick as it is long. A message takes 1 unit and what its bytes take: 4 units for a whole message inside a server, and
twice as much of both between servers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import hccljax
from hccljax import Level, Topology

HERE = Path(__file__).parent
RANKS, NBYTES = 8, 1 << 20
ROW, UNIT, LEFT, TOP = 26, 30, 64, 18
REDUCES, MOVES, GREY = "#d1495b", "#2e86ab", "#8a8a8a"


def all_reduce(algorithm: str, tiers: str | None = None) -> Callable[[Any], Any]:
    return lambda x: hccljax.all_reduce(x, "rank", algorithm=algorithm, topology=tiers)


def all_to_all(algorithm: str) -> Callable[[Any], Any]:
    return lambda x: hccljax.all_to_all(x, "rank", 0, 0, tiled=True, algorithm=algorithm)


def broadcast(x: Any) -> Any:
    return hccljax.broadcast(x, "rank", algorithm="star")


FIGURES: dict[str, tuple[Callable[[Any], Any], str]] = {
    **{
        name: (all_reduce(name), "8")
        for name in ("ring", "double_ring", "tree", "double_tree", "H-D_R", "NHR", "NB", "mesh")
    },
    "star": (broadcast, "8"),
    "pipeline": (all_reduce("pipeline", "2x4"), "2x4"),
    "NHR_pipeline": (all_reduce("NHR_pipeline", "2x4"), "2x4"),
    "AHC": (all_reduce("AHC", "5+3"), "5+3"),
    "pairwise": (all_to_all("pairwise"), "8"),
    "bruck": (all_to_all("bruck"), "8"),
    "hierarchy": (all_reduce("level0:ring;level1:tree", "2x4"), "2x4"),
}
"""Name of the file → what is drawn: a collective, and the servers."""

FULL_MESH = ("mesh", "star")
"""Those that are made for a link between every pair of ranks, drawn so on one server."""


def topology(name: str, servers: str) -> Topology:
    """Links on which a whole message takes 1 + 4 units inside a server, and 2 + 8 between servers."""
    tiers = hccljax.as_topology(servers)
    inside = max(tiers.servers or tiers.sizes[:1])
    level = Level("inside", inside, "switch", NBYTES / 4, 1.0)
    if "x" in servers or "+" in servers or name in FULL_MESH:
        level = Level("inside", inside, "full_mesh", NBYTES / 4, 1.0)
    count = len(tiers.servers) if tiers.servers else RANKS // inside
    between = Level("between", count, "switch", NBYTES / 8, 2.0)
    return Topology(tiers.sizes, tiers.servers, (level, between) if count > 1 else (level,))


def figure(name: str) -> str:
    """The picture of one algorithm, as SVG."""
    collective, servers = FIGURES[name]
    schedule = hccljax.trace(collective, jax.ShapeDtypeStruct((NBYTES // 4,), "float32"), axis_sizes={"rank": RANKS})
    timeline = hccljax.simulate(schedule, topology(name, servers)).timeline()
    width, height = LEFT + UNIT * timeline.seconds + 24, TOP + ROW * (RANKS - 1) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'font-family="sans-serif" font-size="11" fill="{GREY}">',
        *_arrowheads(),
    ]
    for rank in range(RANKS):
        y = TOP + ROW * rank
        lines.append(f'<text x="6" y="{y + 4}">rank {rank}</text>')
        lines.append(f'<path d="M{LEFT} {y}H{width - 12:.0f}" stroke="{GREY}" stroke-opacity="0.35"/>')
    for edge in _edges_of_servers(servers):
        y = TOP + ROW * edge - ROW / 2
        lines.append(f'<path d="M6 {y:.0f}H{width - 12:.0f}" stroke="{GREY}" stroke-dasharray="2 4"/>')
    for k in range(len(timeline)):
        message = timeline[k]
        kind = "reduces" if message.event.reduces else "moves"
        x1, x2 = (LEFT + UNIT * t for t in (message.start, message.end))
        y1, y2 = (TOP + ROW * r for r in (message.source, message.destination))
        thick = 0.8 + 3.2 * message.nbytes / NBYTES
        lines.append(
            f'<path d="M{x1:.1f} {y1}L{x2:.1f} {y2}" stroke="{REDUCES if kind == "reduces" else MOVES}" '
            f'stroke-width="{thick:.2f}" stroke-opacity="0.85" marker-end="url(#{kind})"/>'
        )
    lines.append(f'<text x="{LEFT}" y="{height - 5:.0f}">time →</text></svg>')
    return "\n".join(lines) + "\n"


def _arrowheads() -> list[str]:
    return [
        f'<marker id="{kind}" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L6 3L0 6Z" fill="{colour}"/></marker>'
        for kind, colour in (("reduces", REDUCES), ("moves", MOVES))
    ]


def _edges_of_servers(servers: str) -> list[int]:
    """The first rank of every server but the first."""
    tiers = hccljax.as_topology(servers)
    sizes = tiers.servers or tiers.sizes[:1] * (RANKS // tiers.sizes[0])
    return [sum(sizes[:k]) for k in range(1, len(sizes))]


def main() -> None:
    for name in FIGURES:
        (HERE / f"{name}.svg").write_text(figure(name))
        print(HERE / f"{name}.svg")


if __name__ == "__main__":
    main()
