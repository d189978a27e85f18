"""RankTable: what all formats of rank tables say, ranks in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from hccljax.topology import Topology


@dataclass(frozen=True)
class Rank:
    """One rank.

    Attributes:
      rank_id: 0 to n - 1.
      server_id: the server that it is in.
      device_id: the device, in its server.
      device_ip: the device's address in the network between servers; None if the table has none.
      super_pod_id: the super pod of its server; None without pods.
      super_device_id: the device's number in its super pod; None without pods.
      others: further fields of its device, as they stand in the file.
    """

    rank_id: int
    server_id: str
    device_id: int
    device_ip: str | None = None
    super_pod_id: str | None = None
    super_device_id: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class RankTable:
    """A rank table, whatever its format.

    Attributes:
      version: ``"1.0"``, ``"1.2"``, ``"2.0"``, ``"group_list"`` or ``"lab"``.
      ranks: in the order of their ids.
      others: further fields of the file, by name.
      parts: further fields of what the file is made of: of ``"servers"``, ``"pods"`` and the ``"pod_servers"`` in them,
        each by its id; or the ``"groups"`` in the order of the file, each with its ``instance_list``, in which
        ``devices`` are the ids of the instance's ranks.
    """

    version: str
    ranks: tuple[Rank, ...]
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)
    parts: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    @cached_property
    def servers(self) -> tuple[tuple[Rank, ...], ...]:
        """The ranks of each server, servers in rank order."""
        return tuple(tuple(ranks) for _, ranks in groupby(self.ranks, key=lambda rank: rank.server_id))

    @cached_property
    def pods(self) -> tuple[int, ...]:
        """Servers of each super pod, in rank order; () without pods."""
        if any(rank.super_pod_id is None for rank in self.ranks):
            return ()
        first = [server[0].super_pod_id for server in self.servers]
        return tuple(len(list(servers)) for _, servers in groupby(first))

    @property
    def topology(self) -> Topology:
        """The tiers: servers, and super pods where all are alike. ``hccljax.with_figures`` gives them a preset's links.

        Pods of unequal size make no tier (see ``even_pods``): the servers are then all in one.
        """
        sizes = tuple(len(server) for server in self.servers)
        if len(set(sizes)) > 1 or not self.even_pods or len(self.pods) < 2:
            return Topology(servers=sizes)
        return Topology((sizes[0], self.pods[0], len(self.pods)))

    @property
    def even_pods(self) -> bool:
        """True if all super pods have as many servers, or there are none."""
        return len(set(self.pods)) < 2

    def to(self, version: str) -> RankTable:
        """The table in another format; what that has no place for is left out, and further fields are.

        Args:
          version: ``"1.0"``, ``"1.2"`` or ``"group_list"``; also the table's own.

        Raises:
          RankTableError: this table does not say what that format needs.
        """
        from hccljax.rank_table.writing import converted  # it builds tables, and so imports this module

        return converted(self, version)

    def to_json(self, indent: int | None = 2) -> str:
        """The table as the text of a file of its format; read again, it is an equal table.

        Raises:
          RankTableError: it holds what no file can, such as an infinite number.
        """
        from hccljax.rank_table.writing import as_json

        return as_json(self, indent)

    def __str__(self) -> str:
        pods = f", {len(self.pods)} super pods" if self.pods else ""
        return f"rank table {self.version}: {len(self)} ranks on {self.topology}, {len(self.servers)} servers{pods}"
