"""Rank tables as JSON, and from one format to another where the first one says what the other one needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from hccljax.errors import ArgumentError, shown
from hccljax.rank_table.problems import BAD_FIELD, Problem, RankTableError
from hccljax.rank_table.table import Rank, RankTable

TARGETS = ("1.0", "1.2", "group_list")
_ADDRESSED = ("1.0", "group_list")


def converted(table: RankTable, version: str) -> RankTable:
    """The table in another format; what that has no place for is left out."""
    if version == table.version:
        return table
    if version not in TARGETS:
        raise ArgumentError(
            f"to({shown(version)}): expected one of {', '.join(TARGETS)}; a 2.0 table needs the ports and planes of "
            f"every address, which no other format has"
        )
    if version in _ADDRESSED and len(table.servers) > 1:
        missing = [rank.rank_id for rank in table.ranks if rank.device_ip is None]
        if missing:
            why = f"has no device_ip, which format {version} needs on several servers"
            raise RankTableError([Problem(BAD_FIELD, "", f"rank {rank} {why}") for rank in missing])
    pods = version == "1.2" and all(rank.super_device_id is not None for rank in table.ranks)
    kept = ("device_port", "host_port") if version != "group_list" else ()
    ranks = tuple(
        replace(
            rank,
            super_pod_id=rank.super_pod_id if pods else None,
            super_device_id=rank.super_device_id if pods else None,
            others={key: str(rank.others[key]) for key in kept if key in rank.others},
        )
        for rank in table.ranks
    )
    return RankTable(version, ranks, {"status": "completed"})


def as_json(table: RankTable, indent: int | None = 2) -> str:
    """The text of a file."""
    writers = {"1.0": _version_1, "1.2": _version_1, "2.0": _version_2, "group_list": _groups, "lab": _lab}
    return json.dumps(writers[table.version](table), indent=indent)


def _extra(table: RankTable, *known: str) -> dict[str, Any]:
    return {key: value for key, value in table.others.items() if key not in known and value is not None}


def _version_1(table: RankTable) -> dict[str, Any]:
    about: Mapping[str, Any] = table.others.get("servers", {})
    servers = [
        {"server_id": ranks[0].server_id, **about.get(ranks[0].server_id, {}), "device": [_device(r) for r in ranks]}
        for ranks in table.servers
    ]
    found: dict[str, Any] = {
        "version": table.version,
        "status": table.others.get("status") or "completed",
        "server_count": str(len(servers)),
        "server_list": servers,
        **_extra(table, "status", "servers"),
    }
    if table.pods:
        first = [ranks[0] for ranks in table.servers]
        found["super_pod_list"] = [
            {"super_pod_id": pod, "server_list": [{"server_id": rank.server_id} for rank in ranks]}
            for pod, ranks in groupby(first, key=lambda rank: rank.super_pod_id)
        ]
    return found


def _device(rank: Rank) -> dict[str, Any]:
    found: dict[str, Any] = {"device_id": str(rank.device_id), "rank_id": str(rank.rank_id)}
    if rank.device_ip is not None:
        found["device_ip"] = rank.device_ip
    if rank.super_device_id is not None:
        found["super_device_id"] = rank.super_device_id
    return {**found, **rank.others}


def _group_device(rank: Rank) -> dict[str, Any]:
    address = {} if rank.device_ip is None else {"device_ip": rank.device_ip}
    others = {key: value for key, value in rank.others.items() if key != "pod_name"}
    return {"device_id": str(rank.device_id), **address, **others}


def _groups(table: RankTable) -> dict[str, Any]:
    return _one_group(
        table,
        [
            {
                "pod_name": str(ranks[0].others.get("pod_name", ranks[0].server_id)),
                "server_id": ranks[0].server_id,
                "devices": [_group_device(rank) for rank in ranks],
            }
            for ranks in table.servers
        ],
    )


def _lab(table: RankTable) -> dict[str, Any]:
    return _one_group(
        table,
        [
            {"rank_id": str(rank.rank_id), "server_id": rank.server_id, "devices": [_group_device(rank)]}
            for rank in table.ranks
        ],
    )


def _one_group(table: RankTable, instances: list[dict[str, Any]]) -> dict[str, Any]:
    group = {
        "group_name": (table.others.get("groups") or [""])[0] or "",
        "instance_count": str(len(instances)),
        "device_count": str(len(table)),
        "instance_list": instances,
    }
    return {"status": "completed", "group_count": "1", "group_list": [group], **_extra(table, "status", "groups")}


def _version_2(table: RankTable) -> dict[str, Any]:
    ranks = [{"rank_id": rank.rank_id, "device_id": rank.device_id, **rank.others} for rank in table.ranks]
    return {"version": "2.0", "rank_count": len(table), "rank_list": ranks, **_extra(table)}
