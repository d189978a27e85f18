"""The errors and warnings of hccljax; a message leads with HCCL's own code where it has one.

HcclError
├── ArgumentError      EI0003  a bad operator argument (also a ValueError)
│   └── DtypeError     EI0003  a dtype the operator has no meaning for (also a TypeError)
├── AxisError          EI0003  an axis name that is not mapped here (also a NameError)
├── RankTableError     EI0004, EI0014, EI0017  a bad rank table (also a ValueError); defined in hccljax.rank_table
├── SettingError       EI0001  a bad environment variable or HCCL_ALGO text (also a ValueError)
├── MismatchError      EI0005  processes that are about to run different collectives (also a ValueError)
├── PeerTimeoutError   EI0006  a process that has not come to a collective (also a TimeoutError)
├── UnsupportedError           an algorithm that has no such operator here (also a NotImplementedError)
├── UnreachableError           ranks with no working way between them (also a ConnectionError)
├── VerificationError          an algorithm that loses, doubles or misplaces data (also an ArithmeticError)
├── OutOfSyncError             parameters that are not the same on every rank (also a ValueError)
└── DerivativeError            a derivative that does not exist (also a NotImplementedError)

HcclWarning
├── FallbackWarning            another algorithm than the one asked for was used
└── InvariantOperandWarning    a replicated operand was summed once per rank
"""

from __future__ import annotations

import difflib
from collections.abc import Collection


def shown(value: object) -> str:
    """repr(value) for a message, cut in the middle where it is long."""
    try:
        text = repr(value)
    except Exception:  # a value whose repr fails still has to be named
        text = f"a {type(value).__name__}"
    return text if len(text) <= 120 else f"{text[:80]} … {text[-20:]} ({len(text)} characters)"


def nearest(word: object, known: Collection[str]) -> str:
    """``. Did you mean ...?`` with the known word nearest to the given one, or nothing."""
    # Compared without case, as a wrong case is the commonest slip; a long word is no slip of any known one.
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(word)[:40].lower(), lowered, n=1)
    return f". Did you mean {lowered[near[0]]}?" if near else ""


class HcclError(Exception):
    """Root of all errors raised by hccljax. ``code`` is HCCL's error code, or ``""`` where it has none."""

    code: str = ""

    def __init__(self, message: str):
        super().__init__(f"{self.code}: {message}" if self.code else message)


class ArgumentError(HcclError, ValueError):
    """A bad operator argument (HCCL code EI0003): rank, root, pair, shape, group or operator name."""

    code = "EI0003"


class DtypeError(ArgumentError, TypeError):
    """A dtype for which the operator has no meaning (HCCL code EI0003), such as the maximum of complex numbers."""


class AxisError(HcclError, NameError):
    """An axis name that no enclosing ``shard_map`` or ``vmap`` maps (HCCL code EI0003)."""

    code = "EI0003"


class SettingError(HcclError, ValueError):
    """A bad environment variable or HCCL_ALGO text (HCCL code EI0001)."""

    code = "EI0001"


class MismatchError(HcclError, ValueError):
    """Processes that are about to run different collectives (HCCL code EI0005); the message names who and what."""

    code = "EI0005"


class PeerTimeoutError(HcclError, TimeoutError):
    """A process that has not come to a collective which others wait for (HCCL code EI0006)."""

    code = "EI0006"


class UnsupportedError(HcclError, NotImplementedError):
    """The algorithm has no kernel for the operator, or not for this group, and was asked for strictly."""


class UnreachableError(HcclError, ConnectionError):
    """Two ranks of a topology between which no working way is left."""


class VerificationError(HcclError, ArithmeticError):
    """The algorithm is wrong: a contribution is missing, counted twice, combined wrongly, or in the wrong place."""


class OutOfSyncError(HcclError, ValueError):
    """Parameters that should be the same on every rank, and are not; the message names the leaves and the ranks."""


class DerivativeError(HcclError, NotImplementedError):
    """The operator has no derivative (the maximum and the minimum over ranks, as in ``jax.lax``)."""


class HcclWarning(UserWarning):
    """Root of all warnings of hccljax."""


class FallbackWarning(HcclWarning):
    """The algorithm that was asked for cannot run the operator here; another one does, and is named."""


class InvariantOperandWarning(HcclWarning):
    """A replicated operand is summed once per rank: the result is the operand times the number of ranks."""
