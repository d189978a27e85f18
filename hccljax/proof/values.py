"""What the interpreter computes with: data, whose provenance is followed, and known values, which are plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hccljax.errors import UnsupportedError

AXIS = "rank"
"""The axis name that kernels run over while they are proved."""


@dataclass(frozen=True)
class Data:
    """Values whose provenance is followed: codes [ranks, …], the last axis counted in grains."""

    codes: np.ndarray


Value = Data | np.ndarray


def unprovable(what: str) -> UnsupportedError:
    """The error for a kernel that cannot be followed."""
    return UnsupportedError(
        f"the kernel {what}, which verify cannot follow; expected a kernel that moves data (slices, reshapes, "
        f"selections, permutes), combines it with the op it is given, and takes indices and conditions from "
        f"group.rank and constants"
    )
