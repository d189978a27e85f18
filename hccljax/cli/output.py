"""What a command says: a text for people or JSON for programs, and its exit status."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def say(text: str) -> None:
    """A text as it stands: no markup, no wrapping, no colour."""
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(text)


def say_json(content: Any) -> None:
    """JSON that any parser takes: figures that are not finite are null."""
    print(json.dumps(plain(content), indent=2, allow_nan=False))


def say_table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table: the first column to the left, figures to the right; narrow terminals fold what is long."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for k, name in enumerate(head):
        table.add_column(name, justify="right" if k else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False, emoji=False).print(table)


def plain(content: Any) -> Any:
    """Dataclasses, tuples and NumPy scalars as what JSON has; fields that are functions or records are left out."""
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        shown = [one.name for one in dataclasses.fields(content) if one.repr]
        return {name: plain(getattr(content, name)) for name in shown}
    if isinstance(content, dict):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [plain(value) for value in content]
    if hasattr(content, "item"):
        content = content.item()
    return None if isinstance(content, float) and not math.isfinite(content) else content
