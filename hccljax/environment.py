"""The environment variables as collectives see them: those of the process, or others laid over them for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from hccljax.errors import SettingError, shown

_VARIABLES: ContextVar[Mapping[str, str]] = ContextVar("variables", default=os.environ)


def variables() -> Mapping[str, str]:
    """The variables at this moment."""
    return _VARIABLES.get()


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Collectives called inside read these variables over those of the process; an empty text unsets one.

    Raises:
      SettingError: changes are no mapping of names to texts.
    """
    if not isinstance(changes, Mapping) or not all(isinstance(one, str) for pair in changes.items() for one in pair):
        raise SettingError(f"settings {shown(changes)}: expected names and texts, such as {{'HCCL_ALGO': 'ring'}}")
    token = _VARIABLES.set({**_VARIABLES.get(), **changes})
    try:
        yield
    finally:
        _VARIABLES.reset(token)


def fingerprint() -> str:
    """The variables that collectives may read, as one text: equal texts, equal settings."""
    found = _VARIABLES.get()
    return ";".join(f"{name}={found[name]!r}" for name in sorted(found) if name.startswith("HCCL"))
