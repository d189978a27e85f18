"""The command line: ``hccljax explain``, ``simulate``, ``topo``, ``check``, ``verify``, ``info`` and ``demo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

NEEDED = {"typer": "typer", "click": "typer", "rich": "rich"}
"""Modules that hccljax does without and its command line does not, and the packages that have them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status is 0, 1 if it found something wrong, 2 if it could not do what was asked."""
    try:
        from hccljax.cli.app import run
    except ModuleNotFoundError as error:
        package = NEEDED.get((error.name or "").split(".")[0])
        if package is None:
            raise
        print(f"The command line needs {package}, which is not installed: pip install 'hccljax[cli]'", file=sys.stderr)
        return 2
    return run(arguments)
