"""Saying what was decided: a warning for every fallback, and HCCL's entry log for whoever asks for it."""

from __future__ import annotations

import logging
import sys
import warnings
from functools import lru_cache

from hccljax.errors import FallbackWarning
from hccljax.selection.decision import Decision
from hccljax.selection.settings import Settings

logger = logging.getLogger("hccljax")


def outside() -> int:
    """The stack level of the first caller outside hccljax and JAX, for warnings that point at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("hccljax", "jax"):
        frame, level = frame.f_back, level + 1
    return level


def announce(decision: Decision, settings: Settings) -> None:
    """What a collective says of the decision it is about to run."""
    warn_of_fallback(decision)
    if settings.entry_log:
        _log(str(decision))


def warn_of_fallback(decision: Decision) -> None:
    """A FallbackWarning if something else runs than was asked for."""
    if decision.fallback:
        warn(f"{decision.operator} of {decision.ranks} ranks: {decision.fallback}")


def warn(text: str) -> None:
    """A FallbackWarning that points at the user's line."""
    warnings.warn(text, FallbackWarning, stacklevel=outside())


@lru_cache(maxsize=4096)
def _log(text: str) -> None:
    """One line for every new decision (HCCL_ENTRY_LOG_ENABLE=1), on stderr unless the program has set up logging."""
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    logger.info("%s", " | ".join(line.strip() for line in text.splitlines()))
