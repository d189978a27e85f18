"""The shapes of kernels, as annotations: ``Blocks`` is one block for each of p ranks, ``Message`` any array."""

from jax import Array
from jaxtyping import ArrayLike, PyTree, Shaped

Block = Shaped[Array, "*block"]
Blocks = Shaped[Array, "p *block"]
Message = Shaped[Array, "*shape"]

Arrays = PyTree[ArrayLike]
"""What the collectives take: a pytree of arrays and numbers."""

__all__ = ["Arrays", "Block", "Blocks", "Message"]
