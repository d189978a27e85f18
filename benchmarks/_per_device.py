"""One operator of one algorithm as a per-device function, to be traced or compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hccljax.algorithm.base import registered, run
from hccljax.group import Group
from hccljax.reduction import reduction
from hccljax.schedule import Schedule, trace


class PerDevice:
    """One operator of one algorithm as a per-device function of one array."""

    def __init__(self, algorithm: str, operator: str, p: int):
        self.algorithm, self.operator, self.group = registered(algorithm), operator, Group("rank")
        if self.algorithm.over is not None:
            tiers = (p,) if p % 2 else (2, p // 2)
            self.algorithm, self.group = self.algorithm.over(tiers), Group("rank", levels=tiers)

    def __call__(self, x: jax.Array) -> jax.Array:
        return run(self.algorithm, self.operator, x, self.group, reduction("sum"), 0)

    def operand(self, p: int, nbytes: int, ranks: int = 1) -> jax.ShapeDtypeStruct:
        """One rank's operand of a message of nbytes, for that many ranks one after the other."""
        block = nbytes // p // 4
        shape = {"all_gather": (block,), "gather": (block,)}.get(self.operator, (p * block,))
        if self.operator in ("reduce_scatter", "scatter", "all_to_all"):
            shape = (p, block)
        return jax.ShapeDtypeStruct((ranks * shape[0], *shape[1:]), jnp.float32)

    def schedule(self, p: int, nbytes: int) -> Schedule:
        """What it communicates for a message of nbytes among p ranks."""
        return trace(self, self.operand(p, nbytes), axis_sizes={"rank": p})
