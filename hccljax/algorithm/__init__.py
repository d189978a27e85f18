"""One file per collective algorithm; ``base`` holds the record they fill in and the registry."""

from hccljax.algorithm import (
    ahc,
    bruck,
    double_ring,
    double_tree,
    halving_doubling,
    mesh,
    native,
    nb,
    nhr,
    pairwise,
    pipeline,
    ring,
    star,
    tree,
)
from hccljax.algorithm.base import Algorithm, algorithms, register, registered, run
from hccljax.algorithm.hierarchical import hierarchy

# Importing a module registers its algorithm.
BUILT_IN = (
    ring, tree, double_tree, double_ring, halving_doubling, nhr, nb, mesh, star, pipeline, ahc, pairwise, bruck, native,
)  # fmt: skip

__all__ = ["Algorithm", "algorithms", "hierarchy", "register", "registered", "run"]
