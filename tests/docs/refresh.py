"""Writes what the blocks of documents print into the text blocks behind them: python tests/docs/refresh.py [FILE …]"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
PAGES = Path(__file__).parents[2] / "docs"


def refreshed(path: Path, folder: Path) -> str:
    """The document with every text block that no longer shows what is printed replaced."""
    import documents

    text, moved = path.read_text(), 0
    for ran in documents.run(path, folder):
        if ran.shown is None or documents.as_shown(ran.printed, ran.shown.text):
            continue
        printed = "".join(f"{line.rstrip()}\n" for line in ran.printed.splitlines())
        text = text[: ran.shown.start + moved] + printed + text[ran.shown.end + moved :]
        moved += len(printed) - len(ran.shown.text)
    return text


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or sorted(PAGES.rglob("*.md")):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            text = refreshed(path, Path(folder))
        changed = text != path.read_text()
        path.write_text(text)
        print(f"{path}: {'refreshed' if changed else 'as it was'}, {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
