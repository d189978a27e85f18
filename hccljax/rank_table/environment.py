"""RANK_TABLE_FILE, RANK_ID and RANK_SIZE: the table that HCCL would use, and which rank this process is."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hccljax.errors import SettingError, shown
from hccljax.rank_table.checks import LARGEST, whole
from hccljax.rank_table.reading import read_rank_table
from hccljax.rank_table.table import RankTable


def from_environment(environ: Mapping[str, str] = os.environ) -> tuple[RankTable | None, int | None]:
    """(the table of RANK_TABLE_FILE, this process's rank of RANK_ID); None for what is not set.

    Raises:
      SettingError: RANK_ID or RANK_SIZE is no number, or does not fit the table.
      RankTableError: the table has problems.
    """
    file, size, rank = (environ.get(name) for name in ("RANK_TABLE_FILE", "RANK_SIZE", "RANK_ID"))
    table = read_rank_table(file) if file else None
    ranks = _number("RANK_SIZE", size) if size else None
    own = _number("RANK_ID", rank) if rank else None
    if table is not None and ranks is not None and ranks != len(table):
        raise SettingError(f"RANK_SIZE is {ranks}, but the rank table has {len(table)} ranks; set it to {len(table)}")
    known = len(table) if table is not None else ranks
    if own is not None and known is not None and own >= known:
        raise SettingError(f"RANK_ID is {own}, of {known} ranks; expected 0 to {known - 1}")
    return table, own


def _number(name: str, text: str) -> int:
    known = whole(text)
    if known is None or known > LARGEST:
        raise SettingError(f"{name} is {shown(text)}; expected a whole number, 0 to {LARGEST}")
    return known
