"""Rank tables as JSON, and from one format to another where the first one says what the other one needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from hccljax.errors import ArgumentError, shown
from hccljax.rank_table.problems import BAD_FIELD, BAD_VALUE, Problem, RankTableError
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
    writers = {"1.0": _version_1, "1.2": _version_1, "2.0": _version_2, "group_list": _grouped, "lab": _grouped}
    try:
        return json.dumps(writers[table.version](table), indent=indent, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        why = f"cannot be written as JSON: {error}; expected texts, finite numbers, lists and objects in its fields"
        raise RankTableError([Problem(BAD_VALUE, "", why)]) from None


def _status(table: RankTable) -> dict[str, Any]:
    status = table.others.get("status")
    return {} if status is None else {"status": status}


def _extra(table: RankTable) -> dict[str, Any]:
    return {key: value for key, value in table.others.items() if key != "status"}


def _version_1(table: RankTable) -> dict[str, Any]:
    about = table.parts.get("servers", {})
    servers = [
        {"server_id": ranks[0].server_id, **about.get(ranks[0].server_id, {}), "device": [_device(r) for r in ranks]}
        for ranks in table.servers
    ]
    found: dict[str, Any] = {
        "version": table.version,
        "status": "completed",
        "server_count": str(len(servers)),
        "server_list": servers,
        **table.others,
    }
    if table.pods:
        found["super_pod_list"] = [
            {
                "super_pod_id": pod,
                **table.parts.get("pods", {}).get(pod, {}),
                "server_list": [
                    {"server_id": ranks[0].server_id, **table.parts.get("pod_servers", {}).get(ranks[0].server_id, {})}
                    for ranks in servers_of_pod
                ],
            }
            for pod, servers_of_pod in groupby(table.servers, key=lambda ranks: ranks[0].super_pod_id)
        ]
    return found


def _device(rank: Rank) -> dict[str, Any]:
    found: dict[str, Any] = {"device_id": str(rank.device_id), "rank_id": str(rank.rank_id)}
    if rank.device_ip is not None:
        found["device_ip"] = rank.device_ip
    if rank.super_device_id is not None:
        found["super_device_id"] = rank.super_device_id
    return {**found, **rank.others}


def _grouped(table: RankTable) -> dict[str, Any]:
    """The group formats: the groups of the file that was read, else one with an instance for each server or rank."""
    known = table.parts.get("groups", ())
    ids = [rank for group in known for instance in group["instance_list"] for rank in instance["devices"]]
    # A table that was made anew from another's parts may have other ranks than its groups.
    groups = [_group(table, one) for one in (known if sorted(ids) == list(range(len(table))) else [_one_group(table)])]
    return {**_status(table), "group_count": str(len(groups)), "group_list": groups, **_extra(table)}


def _one_group(table: RankTable) -> dict[str, Any]:
    lab = table.version == "lab"
    instances = [
        {
            **({} if lab else {"pod_name": ranks[0].server_id}),
            "server_id": ranks[0].server_id,
            "devices": [rank.rank_id for rank in ranks],
        }
        for ranks in (((rank,) for rank in table.ranks) if lab else table.servers)
    ]
    return {"group_name": "", "instance_count": "0", "device_count": "0", "instance_list": instances}


def _group(table: RankTable, group: Mapping[str, Any]) -> dict[str, Any]:
    """A group as ``RankTable.parts`` has it, with its devices written out, and counted where counts stand in it."""
    instances = [_instance(table, instance) for instance in group["instance_list"]]
    counts = {
        "instance_count": str(len(instances)),
        "device_count": str(sum(len(instance["devices"]) for instance in instances)),
    }
    return {**group, **{key: counts[key] for key in counts if group.get(key)}, "instance_list": instances}


def _instance(table: RankTable, instance: Mapping[str, Any]) -> dict[str, Any]:
    ranks = [table.ranks[rank_id] for rank_id in instance["devices"]]
    first = {"rank_id": str(ranks[0].rank_id)} if table.version == "lab" else {}
    return {**first, **instance, "devices": [_group_device(rank) for rank in ranks]}


def _group_device(rank: Rank) -> dict[str, Any]:
    address = {} if rank.device_ip is None else {"device_ip": rank.device_ip}
    return {"device_id": str(rank.device_id), **address, **rank.others}


def _version_2(table: RankTable) -> dict[str, Any]:
    ranks = [{"rank_id": rank.rank_id, "device_id": rank.device_id, **rank.others} for rank in table.ranks]
    return {"version": "2.0", **_status(table), "rank_count": len(table), "rank_list": ranks, **_extra(table)}
