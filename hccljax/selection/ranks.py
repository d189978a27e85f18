"""Policy ``ranks``: the algorithm by the number of ranks, HCCL's published rule and hccljax's default.

Source: the rule HCCL states for its automatic choice: ring up to 8 ranks, (double) tree up to 64, beyond that a ring
inside the servers and a tree between them. Ranks are counted in the group.
"""

from __future__ import annotations

from hccljax.topology import Topology

SMALL, MEDIUM = 8, 64
"""Up to 8 ranks are "one server", up to 64 "several servers"."""

SERVER = 8
"""NPUs of one server, assumed above 64 ranks where no topology says otherwise and 8 divides the ranks."""

DOUBLE_TREE_BYTES = 512 * 1024
"""From here on "tree" means the double tree.

At 32 ranks, α = 5 µs and 25 GB/s a binomial all_reduce takes 10(α + nβ), the double tree with S segments about
4(S + 4)(α + nβ/2S): they meet at nβ = 3.5 to 3.7 α, 440 to 460 KB.
"""

RING_BYTES = 256 * 1024
"""From here on broadcast and reduce of up to 8 ranks go by ring instead of by tree.

At 8 ranks the ring takes 14α + 1.75nβ and the binomial tree 3α + 3nβ: they meet at nβ = 8.8α, 240 KB on an HCCS link
(α = 1.5 µs, 18.3 GB/s).
"""

_TREE_LIKE = ("all_reduce", "broadcast", "reduce")


def tree_for(nbytes: int) -> str:
    """The tree that HCCL_ALGO and this policy mean: binomial where latency rules, double above."""
    return "double_tree" if nbytes >= DOUBLE_TREE_BYTES else "tree"


def flat(operator: str, p: int, nbytes: int) -> tuple[str, str]:
    """(algorithm, reason) for p ranks in one tier."""
    if operator == "all_to_all":
        return "pairwise", "all_to_all goes by pairwise exchange at any number of ranks"
    if p > SMALL:
        where = f"{SMALL + 1} to {MEDIUM} ranks" if p <= MEDIUM else f"more than {MEDIUM} ranks in one tier"
        if operator == "gather":
            return "H-D_R", f"gather of {where} goes by recursive halving and doubling"
        if operator not in _TREE_LIKE:
            return "NHR", f"{operator} of {where} goes by the nonuniform hierarchical ring"
        tree = tree_for(nbytes)
        size = "at least" if tree == "double_tree" else "below"
        return tree, f"{operator} of {where} goes by tree; {size} {DOUBLE_TREE_BYTES} bytes that is {tree}"
    if operator in ("broadcast", "reduce") and nbytes < RING_BYTES:
        return "tree", f"{operator} of up to {SMALL} ranks goes by tree below {RING_BYTES} bytes"
    return "ring", f"{operator} of up to {SMALL} ranks goes by ring"


def tiered(operator: str, level: int, nbytes: int) -> str:
    """The algorithm of one level of a hierarchy, for the nbytes that this level sees."""
    if operator == "all_to_all":
        return "pairwise"
    if level == 0:
        return "ring"
    if operator in _TREE_LIKE:
        return tree_for(nbytes)
    return "H-D_R" if operator == "gather" else "NHR"


def assumed(p: int) -> Topology:
    """The tiers of p ranks of which no topology is given: servers of 8 above 64 ranks if 8 divides them, else one."""
    return Topology((SERVER, p // SERVER) if p > MEDIUM and p % SERVER == 0 else (p,))
