"""What users type: sizes with units, operators in HCCL's words or hccljax's, ``module:name``."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from hccljax.algorithm.base import OPERATORS, VARIABLE
from hccljax.errors import ArgumentError, nearest, shown

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
"""Powers of two, as hccl_test, nccl-tests and HCCL_BUFFSIZE count."""

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?) ?([KMGT]?)(I?B)?", re.IGNORECASE)


def size(text: str) -> int:
    """Bytes of ``"64MB"``, ``"64M"`` or ``"64MiB"`` (all 64 · 2^20) and of ``"512B"``.

    Raises:
      ArgumentError: another text, or a number without a unit.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ArgumentError(f"size {shown(text)}: expected a number with B, KB, MB, GB or TB, such as 64MB")
    number, prefix, unit = found.groups()
    if not prefix and not unit:
        raise ArgumentError(f"size {shown(text)} has no unit: write {number}B for bytes, or {number}MB")
    scaled = float(number) * 2 ** UNITS[prefix.upper()] if "." in number else int(number) << UNITS[prefix.upper()]
    if scaled != int(scaled):
        raise ArgumentError(f"size {shown(text)} is {scaled:g} bytes; expected a whole number of them")
    return int(scaled)


def sizes(text: str) -> list[int]:
    """Powers of two from the first to the last size of ``"1KB:1GB"``, and the last one."""
    first, colon, last = text.partition(":")
    if not colon:
        raise ArgumentError(f"range {shown(text)}: expected two sizes with a colon between them, such as 1KB:1GB")
    low, high = size(first), size(last)
    if not 0 < low <= high:
        raise ArgumentError(f"range {shown(text)}: expected it from small to large, above 0; write {last}:{first}")
    found = [low << k for k in range((high // low).bit_length())]
    return found if found[-1] == high else [*found, high]


def operator(text: str) -> str:
    """``"allreduce"``, ``"AllReduce"`` or ``"all_reduce"`` → ``"all_reduce"``.

    Raises:
      ArgumentError: no operator.
    """
    known = {name.replace("_", ""): name for name in (*OPERATORS, *VARIABLE)}
    word = text.lower().replace("_", "").replace("-", "")
    if word not in known:
        raise ArgumentError(f"operator {shown(text)}: expected one of {', '.join(known)}{nearest(word, known)}")
    return known[word]


def named(text: str) -> Any:
    """The object that ``"module:name"`` names; modules are looked for in the current directory, too.

    Raises:
      ArgumentError: no such module or name.
    """
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise ArgumentError(f"{shown(text)}: expected module:name, such as mymodel:step")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise ArgumentError(f"{shown(text)}: there is no module {module!r} here or among the packages") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ArgumentError(f"{shown(text)}: module {module!r} has no {name!r}{nearest(name, dir(found))}")
        found = getattr(found, part)
    return found
