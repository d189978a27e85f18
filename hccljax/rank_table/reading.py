"""read_rank_table: from a file, a text or an object to a RankTable, or to everything that is wrong with it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hccljax.errors import ArgumentError, shown
from hccljax.rank_table.problems import BAD_VALUE, Problem, RankTableError, unparsable
from hccljax.rank_table.table import RankTable

_DEEPEST = 100  # levels of nesting; a rank table has 8 at most


class _Object(dict[str, Any]):
    """A JSON object that remembers which keys it was given twice."""

    twice: tuple[str, ...] = ()


def read_rank_table(source: str | bytes | os.PathLike[str] | Mapping[str, Any]) -> RankTable:
    """Reads a rank table of any format that HCCL knows: 1.0, 1.2, 2.0, group_list and its lab form.

    Args:
      source: the path of a file; or the JSON itself: bytes, a text that starts with ``{``, or an object.

    Returns:
      A RankTable. Every check that HCCL makes has been made, and some that it does not.

    Raises:
      RankTableError: all problems of the file at once, each with HCCL's code and its JSON path.
      ArgumentError: source is none of these.

    >>> table = hccljax.read_rank_table(
    ...     {
    ...         "version": "1.0",
    ...         "status": "completed",
    ...         "server_count": "1",
    ...         "server_list": [{"server_id": "a", "device": [{"device_id": "0", "rank_id": "0"}]}],
    ...     }
    ... )
    >>> len(table), table.version
    (1, '1.0')
    """
    content = _parsed(_as_text(source) if isinstance(source, Mapping) else _text(source))
    if not isinstance(content, Mapping):
        raise unparsable(f"it holds {shown(content)}, expected a JSON object")
    if not content:
        raise unparsable("it is an empty object")
    from hccljax.rank_table.formats import table_of  # pydantic is loaded only where a table is read

    twice, deep = _looked_through(content)
    if deep:
        raise unparsable(f"{deep} is nested more than {_DEEPEST} levels deep")
    table, problems = table_of(content)
    if twice or problems or table is None:
        raise RankTableError([*twice, *problems])
    return table


def _as_text(source: Mapping[Any, Any]) -> str:
    """An object as JSON: what a table keeps of it is then what a file could say."""
    try:
        return json.dumps(source, default=_plain, allow_nan=False)
    except RecursionError:
        raise unparsable("it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise unparsable(f"it is no JSON object: {error}") from None


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{shown(value)} is neither a text, a number, a list nor an object")


def _text(source: object) -> str:
    """The text of a file, of bytes, or the text itself."""
    if isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("{"):
        return source.lstrip("\ufeff")
    if isinstance(source, (bytes, bytearray)):
        content = bytes(source)
    elif isinstance(source, (str, os.PathLike)):
        try:
            content = Path(source).read_bytes()
        except (OSError, ValueError) as error:
            raise unparsable(f"{shown(os.fspath(source))} cannot be read: {error}") from None
    else:
        raise ArgumentError(f"rank table {shown(source)}: expected a path, JSON text or bytes, or an object")
    if not content.strip(b"\0 \t\r\n"):
        raise unparsable("it is empty")
    try:
        return content.decode(json.detect_encoding(content)).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise unparsable(f"it is no text: {error}") from None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise unparsable("it is nested too deeply") from None
    except ValueError as error:
        raise unparsable(f"it is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        found.twice = tuple(dict.fromkeys(key for key in keys if keys.count(key) > 1)) if len(keys) < 1000 else ("…",)
    return found


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(f"{shown(text)} is larger than any number here")
    return float(text)


def _looked_through(content: Mapping[str, Any]) -> tuple[list[Problem], str]:
    """(a problem for each key given twice, the path of what is nested too deeply or "")."""
    problems: list[Problem] = []
    waiting: list[tuple[str, Any, int]] = [("", content, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > _DEEPEST:
            return problems, path[:60]
        if isinstance(value, Mapping):
            for key in getattr(value, "twice", ()):
                where = f"{path}.{_short(key)}".removeprefix(".")
                problems.append(Problem(BAD_VALUE, where, "this key is given twice; expected it once: delete one"))
            inside = [
                (f"{path}.{_short(key)}".removeprefix("."), inner) for key, inner in value.items() if _holds(inner)
            ]
        else:
            inside = [(f"{path}[{k}]", inner) for k, inner in enumerate(value) if _holds(inner)]
        waiting += [(where, inner, depth + 1) for where, inner in inside]
    return problems, ""


def _holds(value: object) -> bool:
    return isinstance(value, (Mapping, list))


def _short(key: object) -> str:
    """A key for a path: no longer than a name may be, and a text that can be printed."""
    text = str(key).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 80 else f"{text[:80]}…"
