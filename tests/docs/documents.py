"""Reads Markdown documents, runs their blocks in order, and says what each printed and what the document shows.

A ``python`` block runs in the scope of those before it; the ``hccljax`` lines of a ``bash`` block run as commands. The
``text`` block after either holds what was printed, a line of ``…`` standing for any number of lines. A block with a
title is a file.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import hccljax
from hccljax.cli import main

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NOT_RUN = ("hccljax demo",)
"""Commands that take too long to run with every page; they have tests of their own."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is ("" for none), its text, and where that is in the document."""

    language: str
    title: str
    text: str
    start: int
    end: int

    @property
    def runs(self) -> bool:
        return self.language in ("python", "bash") and not self.title


@dataclass(frozen=True)
class Ran:
    """A block that ran: what it printed, and the block that shows it, if there is one."""

    block: Block
    printed: str
    shown: Block | None

    @property
    def promised(self) -> list[str]:
        return promised(self.block.text) if self.block.language == "python" else []


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found = _BLOCK.finditer(path.read_text())
    return [Block(one[1], one[2] or "", one[3], one.start(3), one.end(3)) for one in found]


def promised(code: str) -> list[str]:
    """What the comments behind print calls promise: the text up to a colon."""
    comments = [line.partition("#")[2] for line in code.splitlines() if line.startswith(("print(", ")"))]
    return [comment.split(": ")[0].strip() for comment in comments if comment]


def as_shown(printed: str, shown: str) -> bool:
    """Whether a text block shows what was printed."""
    parts = ["" if line.strip() == "…" else line for line in shown.splitlines()]
    pattern = "".join(r"(.*\n)*" if line == "" else re.escape(line) + r"\n" for line in parts)
    exact = "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"
    return re.fullmatch(pattern, exact) is not None if "…\n" in shown else shown == exact


def run(path: Path, folder: Path) -> Iterator[Ran]:
    """Runs the blocks of a document in order, files and commands in a folder."""
    all_blocks, scope = blocks(path), {"__name__": "example"}
    for block, after in zip(all_blocks, [*all_blocks[1:], None], strict=True):
        shown = after if after is not None and after.language == "text" and not after.title else None
        if block.title:
            (folder / block.title).write_text(block.text)
        if block.runs:
            with contextlib.chdir(folder):
                printed = _python(block.text, scope, shown) if block.language == "python" else _commands(block.text)
            yield Ran(block, printed, shown)


def _python(code: str, scope: dict[str, object], shown: Block | None) -> str:
    """What a block prints; a warning of hccljax, and an error that the document shows, as Python prints them."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("always", hccljax.errors.HcclWarning)
        warnings.showwarning = lambda message, kind, *_: print(f"{kind.__name__}: {message}")
        try:
            exec(compile(code, "example.py", "exec"), scope)
        except Exception as error:
            if shown is None:
                raise
            kind = type(error)
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            out.write(f"{module}{kind.__qualname__}: {error}\n")
    return out.getvalue()


def _commands(text: str) -> str:
    """What the hccljax lines of a block print, errors included."""
    out = io.StringIO()
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        command = words[len(variables) :]
        if command[:1] == ["hccljax"] and " ".join(command[:2]) not in NOT_RUN:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(out),
                mock.patch.dict(os.environ, {"COLUMNS": "100", **variables}),
                mock.patch.object(warnings, "showwarning"),
            ):
                main(command[1:])
    return out.getvalue()
