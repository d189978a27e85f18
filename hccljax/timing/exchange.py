"""Closed forms on tiers of the algorithms in which every rank talks to every other: their traces have p² messages.

All ranks start together and do the same. A message crosses the outermost level at which two ranks differ; on a switch
a rank's messages across it queue at its port, on a full mesh each has a link. Over several levels, mesh and pairwise go
by rounds, to the next rank, to the next but one, …: in every round some message crosses the outermost level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hccljax.algorithm.base import COMPOSED
from hccljax.topology import Topology

EXCHANGES = ("mesh", "star", "pairwise")

LARGEST = 256
"""Up to here they are simulated like all others: 256 ranks on two tiers take 50 ms."""


def exchange_seconds(name: str, operator: str, p: int, sizes: Sequence[int], topology: Topology) -> np.ndarray:
    """Seconds that mesh, star or pairwise takes on all p ranks of a topology for messages of several sizes: [sizes]."""
    n = np.asarray(sizes, float)
    if operator in COMPOSED and name == "mesh":
        return sum((exchange_seconds(name, part, p, sizes, topology) for part in COMPOSED[operator]), np.zeros(len(n)))
    nbytes = n if name == "star" and operator in ("broadcast", "reduce") else n / p
    queues, steps = np.zeros_like(n), np.zeros_like(n)
    reached = 1
    for level in topology.levels:
        beyond = reached * (level.size - 1)  # ranks whose outermost difference is here
        reached *= level.size
        if not beyond:
            continue
        one = level.latency + nbytes / level.rate
        ports = {"switch": 1, "full_mesh": level.size - 1, "ring": min(2, level.size - 1)}[level.links]
        queues = np.maximum(queues, math.ceil(beyond / ports) * one)
        # At each step of pairwise some message crosses the outermost level, or takes longer inside.
        steps = (p - 1) * np.maximum(steps / max(p - 1, 1), one)
    several = sum(level.size > 1 for level in topology.levels) > 1
    return steps if name == "pairwise" or (name == "mesh" and several) else queues
