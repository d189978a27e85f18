"""One file per collective algorithm; ``base`` holds the record they fill in and the registry."""

# Importing a module registers its algorithm; this is the order in which they are listed.
# isort: off
from hccljax.algorithm import (  # noqa: F401
    ring, double_ring, tree, double_tree, halving_doubling, nhr, nb, mesh, star, pipeline, nhr_pipeline, ahc, pairwise,
    bruck, native,
)  # fmt: skip

# isort: on
from hccljax.algorithm.base import Algorithm, algorithms, register, registered, run
from hccljax.algorithm.hierarchical import hierarchy

__all__ = ["Algorithm", "algorithms", "hierarchy", "register", "registered", "run"]
