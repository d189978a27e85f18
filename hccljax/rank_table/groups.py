"""The older format without a version: groups of instances; in its lab form every rank is an instance of its own."""

from __future__ import annotations

from typing import Any

from hccljax.rank_table.checks import Placed, check_ranks, check_status, counted, name, number
from hccljax.rank_table.formats import Found, GroupTable, stated
from hccljax.rank_table.problems import BAD_FIELD, BAD_VALUE, Problem
from hccljax.rank_table.table import Rank, RankTable


def of_groups(table: GroupTable) -> Found:
    """The ranks of a table, by order or (lab form) by their rank_id; or what is wrong with it."""
    problems: list[Problem] = []
    check_status(table.status, problems)
    if not table.group_list:
        problems.append(Problem(BAD_VALUE, "group_list", "is empty; expected a group at least"))
    counted(table.group_count, "group_count", len(table.group_list), "groups", problems)
    instances = [
        (f"group_list[{g}].instance_list[{i}]", instance)
        for g, group in enumerate(table.group_list)
        for i, instance in enumerate(group.instance_list)
    ]
    for g, group in enumerate(table.group_list):
        path, devices = f"group_list[{g}]", sum(len(instance.devices) for instance in group.instance_list)
        if not group.instance_list:
            problems.append(Problem(BAD_VALUE, f"{path}.instance_list", "is empty; expected an instance at least"))
        counted(group.instance_count, f"{path}.instance_count", len(group.instance_list), "instances", problems)
        counted(group.device_count, f"{path}.device_count", devices, "devices", problems)
    lab = any(instance.rank_id is not None for _, instance in instances)
    placed: list[Placed] = []
    for path, instance in instances:
        name(instance.server_id, f"{path}.server_id", problems)
        if not instance.devices:
            problems.append(Problem(BAD_VALUE, f"{path}.devices", "is empty; expected a device at least"))
        if lab and instance.rank_id is None:
            problems.append(Problem(BAD_FIELD, f"{path}.rank_id", "is missing; other instances have one: add it"))
        first = number(instance.rank_id, f"{path}.rank_id", problems) if instance.rank_id is not None else len(placed)
        for d, device in enumerate(instance.devices):
            where = f"{path}.devices[{d}]"
            rank = Rank(
                first + d if first >= 0 else -1,
                instance.server_id,
                number(device.device_id, f"{where}.device_id", problems),
                device.device_ip or None,
                others=stated(device, "device_id", "device_ip"),
            )
            names = ("rank_id", f"devices[{d}].device_id", f"devices[{d}].device_ip")
            placed.append(Placed(rank, path, names))
    check_ranks(placed, problems, len({instance.server_id for _, instance in instances}) > 1)
    if problems:
        return None, problems
    ranks = tuple(sorted((one.rank for one in placed), key=lambda rank: rank.rank_id))
    others = {"status": table.status, **(table.model_extra or {})}
    return RankTable("lab" if lab else "group_list", ranks, others, {"groups": _groups(table, placed)}), []


def _groups(table: GroupTable, placed: list[Placed]) -> list[dict[str, Any]]:
    """The groups and their instances as they stand in the file, an instance with the ids of its ranks."""
    ids = iter([one.rank.rank_id for one in placed])
    return [
        {
            **stated(group, "instance_list"),
            "instance_list": [
                {**stated(instance, "devices", "rank_id"), "devices": [next(ids) for _ in instance.devices]}
                for instance in group.instance_list
            ],
        }
        for group in table.group_list
    ]
