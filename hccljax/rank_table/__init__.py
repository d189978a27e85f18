"""Rank tables: the files in which HCCL is told which ranks sit on which devices of which servers."""

from hccljax.rank_table.environment import from_environment
from hccljax.rank_table.problems import Problem, RankTableError
from hccljax.rank_table.reading import read_rank_table
from hccljax.rank_table.table import Rank, RankTable

__all__ = ["Problem", "Rank", "RankTable", "RankTableError", "from_environment", "read_rank_table"]
