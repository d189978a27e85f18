"""Saying what was decided: a warning for every fallback, and HCCL's entry log for whoever asks for it."""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import replace

from hccljax.errors import FallbackWarning
from hccljax.selection.decision import Decision

logger = logging.getLogger("hccljax")

_logged: set[Decision] = set()


def outside() -> int:
    """The stack level of the first caller outside hccljax and JAX, for warnings that point at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("hccljax", "jax"):
        frame, level = frame.f_back, level + 1
    return level


def warn_of_fallback(decision: Decision) -> None:
    """A FallbackWarning if something else runs than was asked for."""
    if decision.fallback:
        text = f"{decision.operator} of {decision.ranks} ranks: {decision.fallback}"
        warnings.warn(text, FallbackWarning, stacklevel=outside())


def log_entry(decision: Decision) -> None:
    """One line for every new decision (HCCL_ENTRY_LOG_ENABLE=1), on stderr unless the program has set up logging."""
    key = replace(decision, record=None)
    if key in _logged:
        return
    _logged.add(key)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    logger.info("%s", " | ".join(line.strip() for line in str(decision).splitlines()))
