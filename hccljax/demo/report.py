"""What the demo shows: a progress bar while it trains, then the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hccljax.demo.network import Params


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      algorithm: what reduced the gradients.
      steps: communication steps of one all-reduce, None for the reference.
      accuracy: the share of test digits that are right.
      difference: the largest absolute difference of a parameter from the reference's, None for the reference.
      seconds: the median time of a step.
    """

    algorithm: str
    steps: int | None
    accuracy: float
    difference: float | None
    seconds: float


def largest_difference(params: Params, reference: Params) -> float:
    """The largest absolute difference of two sets of parameters."""
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(reference), strict=True)
    return max(float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()) for a, b in pairs)


def progress(console: Console) -> Progress:
    """A bar for each run; nothing at all where the output is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def table(rows: Sequence[Row], nbytes: int) -> Table:
    """The rows as a table; the steps are those of an all-reduce of nbytes."""
    out = Table(
        box=box.SIMPLE_HEAD,
        caption=f"steps: communication steps of one all-reduce of {nbytes:,} bytes\n"
        f"difference: the largest of any parameter from the {rows[0].algorithm} run",
        caption_justify="left",
    )
    out.add_column("gradients by", no_wrap=True)
    for heading in ("steps", "test accuracy", "difference", "ms per step"):
        out.add_column(heading, justify="right")
    for row in rows:
        out.add_row(
            row.algorithm,
            "-" if row.steps is None else str(row.steps),
            f"{row.accuracy:.2%}",
            "reference" if row.difference is None else f"{row.difference:.1e}",
            f"{row.seconds * 1e3:.2f}",
        )
    return out
