"""Problems: everything that is wrong with a rank table, collected before any of it is reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hccljax.errors import HcclError

SHOWN = 20

UNPARSABLE, BAD_VALUE, BAD_FIELD = "EI0004", "EI0014", "EI0017"
"""HCCL's codes: the file cannot be parsed; a value is wrong; a field is missing or of another type."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a rank table.

    Attributes:
      code: HCCL's error code.
      path: where in the file, such as ``server_list[0].device[3].device_ip``; "" is the whole of it.
      text: what was given, what was expected, and the fix.
    """

    code: str
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.path or 'the file'}: {self.text}"


class RankTableError(HcclError, ValueError):
    """A rank table that cannot be used; ``problems`` has everything that is wrong with it (EI0004, EI0014, EI0017).

    Attributes:
      problems: in the order of the file.
    """

    def __init__(self, problems: Iterable[Problem]):
        """The error for these problems; its text shows the first 20."""
        self.problems = tuple(problems)
        count = len(self.problems)
        if count == 1:
            super().__init__(str(self.problems[0]))
            return
        lines = [f"{count} problems in the rank table:", *(f"  {problem}" for problem in self.problems[:SHOWN])]
        lines += [f"  … {count - SHOWN} more"] if count > SHOWN else []
        super().__init__("\n".join(lines))


def unparsable(why: str) -> RankTableError:
    """The error for what is no JSON object at all."""
    return RankTableError([Problem(UNPARSABLE, "", f"Failed to parse the ranktable file: {why}")])
