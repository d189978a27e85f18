"""Policy ``cann``: HCCL's open-source selector for several servers, in op mode.

Source: the selection rule of HCCL for Atlas A2 (910B) and for the 910, its constants included. It decides what runs
between the servers; inside them A2 has a full mesh and the 910 a ring. A message is reckoned with up to the size of
HCCL's buffer.
"""

from __future__ import annotations

import math

LATENCY = 60e-6
"""Seconds that the selector counts for a step between servers, the launch of the operator included."""

BANDWIDTH, BANDWIDTH_OF_TWO = 20.0 * 2**30, 54.4 * 2**30
"""Bytes/s that it counts between servers, and where there are just two of them."""

PIPELINE_BYTES = 32 << 10
"""Bytes of one rank's block from which all_gather and reduce_scatter are pipelined."""

PIPELINE_BYTES_DETERMINISTIC = 256 << 10
"""The same for a reduce_scatter that has to be deterministic."""

PIPELINE_BYTES_ALL_REDUCE = 1 << 20
"""Bytes of one rank's part from which all_reduce is pipelined, if it need not be deterministic."""

FEW_SERVERS = 8
"""On the 910, fewer servers than these that are no power of two form a ring."""


def pipelined(operator: str, servers: int, cards: int, nbytes: int, deterministic: bool) -> str | None:
    """Why HCCL pipelines this message on A2, or None if it does not."""
    block = nbytes / (servers * cards)
    if cards == 1 or servers == 1:
        return None
    least = {"all_gather": PIPELINE_BYTES, "reduce_scatter": PIPELINE_BYTES}.get(operator)
    if operator == "reduce_scatter" and deterministic:
        least = PIPELINE_BYTES_DETERMINISTIC
    if operator == "all_reduce" and not deterministic:
        least = PIPELINE_BYTES_ALL_REDUCE
    if least is None or block < least:
        return None
    return f"{block:,.0f} bytes a rank are at least {least:,}, from where {operator} is pipelined"


def costs(operator: str, servers: int, cards: int, nbytes: int) -> dict[str, float]:
    """Seconds between servers by the selector's formulas, for each algorithm it knows, in its order of preference.

    Args:
      operator: reduce_scatter, all_gather, all_reduce, broadcast or reduce.
      servers, cards: servers, and ranks in each.
      nbytes: of one rank's message, all blocks.
    """
    m = servers
    bandwidth = BANDWIDTH_OF_TWO if m == 2 else BANDWIDTH
    share, k = (m - 1) / m, math.ceil(math.log2(m))
    power = m & (m - 1) == 0
    if operator in ("broadcast", "reduce"):
        t = nbytes / cards / bandwidth
        halving = (2 * k * LATENCY + 2 * share * t) if power else (
            (1 + 2 * (m.bit_length() - 1)) * LATENCY + (1 + 2 * share) * t
        )  # fmt: skip
        return {"ring": 2 * (m - 1) * LATENCY + 2 * share * t, "H-D_R": halving}
    t, phases = (nbytes / cards / bandwidth, 2) if operator == "all_reduce" else (nbytes / bandwidth, 1)
    return {
        "ring": phases * ((m - 1) * LATENCY + share * t),
        "NHR": phases * (k * LATENCY + share * t),
        "H-D_R": phases * (k * LATENCY + (share if power else (2 * m - 1) / m) * t),
    }


def level1(
    operator: str, servers: int, cards: int, nbytes: int, deterministic: bool = False, product: str = "A2"
) -> tuple[str, str]:
    """(algorithm between servers, reason); ``"pipeline"`` is that on all levels.

    Args:
      operator: such as ``"all_reduce"``.
      servers, cards: servers, and ranks in each.
      nbytes: of one rank's message, all blocks.
      deterministic: HCCL_DETERMINISTIC is true or strict.
      product: ``"A2"`` or ``"910"``.
    """
    if operator == "all_to_all":
        return "pairwise", "all_to_all goes pairwise"
    if product == "910":
        if servers & (servers - 1) and servers < FEW_SERVERS:
            return "ring", f"{servers} servers are fewer than {FEW_SERVERS} and no power of two"
        return "H-D_R", f"{servers} servers are a power of two, or at least {FEW_SERVERS}"
    piped = pipelined(operator, servers, cards, nbytes, deterministic)
    if piped is not None:
        return "pipeline", piped
    if operator in ("scatter", "gather"):
        return "NHR", f"the selector has no formula for {operator}; NHR is what HCCL has for scatter"
    found = costs(operator, servers, cards, nbytes)
    best = "ring"
    for name in found:  # a later one only if it is cheaper; formulas that are equal may differ by rounding
        if found[name] < found[best] * (1 - 1e-12):
            best = name
    figures = ", ".join(f"{name} {1e6 * seconds:,.0f} µs" for name, seconds in found.items())
    return best, f"least by HCCL's formulas for {servers} servers: {figures}"
