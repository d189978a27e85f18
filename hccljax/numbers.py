"""Numbers that a caller gives: whole ones and real ones, checked in one way everywhere."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from hccljax.errors import ArgumentError, shown

MOST_BYTES = 1 << 80
"""The longest message that is reckoned with; sums over many ranks and steps still are floats."""


def whole(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """A whole number as an int: of Python or NumPy, not a bool, and no float even if it is whole.

    Args:
      name: the argument, as the error says it.
      value: what was given.
      least, most: the smallest and the largest that there may be; None is no limit.

    Raises:
      ArgumentError: no whole number, or one out of these bounds.
    """
    found = None
    if not isinstance(value, (bool, np.bool_)):
        try:
            found = operator.index(value)
        except TypeError:  # no integer, or one that JAX does not know while it traces
            found = None
    if found is None or found < least or (most is not None and found > most):
        bounds = f"{least} or more" if most is None or most >= MOST_BYTES else f"{least} to {most}"
        bounds += ", and not that many" if found is not None and found > least and most == MOST_BYTES else ""
        raise ArgumentError(f"{name}={shown(value)}: expected an int, {bounds}")
    return found


def real(
    name: str,
    value: Any,
    least: float = 0.0,
    most: float = math.inf,
    *,
    above: bool = False,
    infinite: bool = False,
    unit: str = "",
) -> float:
    """A real number as a float: of Python or NumPy, not a bool, never NaN.

    Args:
      name: the argument, as the error says it.
      value: what was given.
      least: the smallest that it may be.
      most: the largest that it may be.
      above: True if ``least`` itself is too little.
      infinite: True if it may be infinite.
      unit: what the number counts, for the error.

    Raises:
      ArgumentError: no real number, or one out of these bounds.
    """
    found = _as_float(value)
    if not least <= found <= most or (above and found == least) or (found == math.inf and not infinite):
        bounds = f"above {least:g}" if above else f"{least:g} or more"
        kind = "a number" if infinite else "a finite number"
        bounds += f" and up to {most:g}" if math.isfinite(most) else ""
        raise ArgumentError(f"{name}={shown(value)}: expected {kind}, {bounds}{unit and f', in {unit}'}")
    return found


def _as_float(value: object) -> float:
    """The value as a float; not a number if it is none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf
