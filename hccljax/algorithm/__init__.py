"""One file per collective algorithm; ``base`` holds the record they fill in and the registry."""

from hccljax.algorithm.base import Algorithm, algorithms, register, registered, run
from hccljax.algorithm.double_tree import double_tree
from hccljax.algorithm.halving_doubling import halving_doubling
from hccljax.algorithm.hierarchical import hierarchy
from hccljax.algorithm.mesh import mesh
from hccljax.algorithm.native import native
from hccljax.algorithm.pairwise import pairwise
from hccljax.algorithm.ring import ring
from hccljax.algorithm.tree import tree

__all__ = [
    "Algorithm",
    "algorithms",
    "double_tree",
    "halving_doubling",
    "hierarchy",
    "mesh",
    "native",
    "pairwise",
    "register",
    "registered",
    "ring",
    "run",
    "tree",
]
