"""Which line of the user's code an equation of a jaxpr comes from."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from jax.extend import source_info_util
from jax.extend.core import JaxprEqn

_OWN = str(Path(__file__).parents[1]) + "/"
_FRAME = re.compile(r"(.*?):(\d+)(?::\d+)? \((.*)\)")


@dataclass(frozen=True)
class Source:
    """A line of code; as text, ``file:line in function``.

    Attributes:
      file: the path as Python gives it.
      line: counted from 1.
      function: the qualified name of the function around it.
    """

    file: str
    line: int
    function: str

    @property
    def short(self) -> str:
        """The line without the file's folder, and the function without those around it."""
        return f"{Path(self.file).name}:{self.line} in {self.function.rsplit('.', 1)[-1]}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function.rsplit('.', 1)[-1]}"


def source_of(equation: JaxprEqn) -> Source | None:
    """The innermost line outside JAX, the standard library and hccljax; None if there is none."""
    frames = source_info_util.summarize(equation.source_info, sys.maxsize).splitlines()
    for frame in reversed(frames):  # the innermost comes last
        match = _FRAME.fullmatch(frame)
        if match and not match[1].replace("\\", "/").startswith(_OWN.replace("\\", "/")):
            return Source(match[1], int(match[2]), match[3])
    return None


def at(source: Source | None) -> str:
    """The start of an error message: where it is."""
    return "" if source is None else f"{source}: "
