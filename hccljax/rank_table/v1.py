"""Formats 1.0 and 1.2: servers with their devices; 1.2 may name super pods."""

from __future__ import annotations

from hccljax.errors import shown
from hccljax.rank_table.checks import Placed, check_ranks, check_status, counted, name, number, port, unique
from hccljax.rank_table.formats import Device1, Found, Table1, stated
from hccljax.rank_table.problems import BAD_FIELD, BAD_VALUE, Problem
from hccljax.rank_table.table import Rank, RankTable

_OF_RANK = ("rank_id", "device_id", "device_ip", "super_device_id")
_PORTS = ("device_port", "host_port", "backup_device_port")


def of_version_1(table: Table1) -> Found:
    """The ranks of a table, or what is wrong with it."""
    problems: list[Problem] = []
    check_status(table.status, problems)
    if not table.server_list:
        problems.append(Problem(BAD_VALUE, "server_list", "is empty; expected a server at least"))
    if table.server_count is None and table.version == "1.0":
        problems.append(Problem(BAD_FIELD, "server_count", "is missing; expected the number of servers: add it"))
    counted(table.server_count, "server_count", len(table.server_list), "servers", problems)
    unique([server.server_id for server in table.server_list], "server_list", "server_id", problems)
    pods = _pods(table, problems)
    placed = []
    for s, server in enumerate(table.server_list):
        name(server.server_id, f"server_list[{s}].server_id", problems)
        if not server.device:
            problems.append(Problem(BAD_VALUE, f"server_list[{s}].device", "is empty; expected a device at least"))
        for d, device in enumerate(server.device):
            path = f"server_list[{s}].device[{d}]"
            placed.append(Placed(_rank(device, server.server_id, pods, path, problems), path))
    one_pod = table.super_pod_list is not None and len(table.super_pod_list) == 1
    check_ranks(placed, problems, len(table.server_list) > 1 and not one_pod)
    _check_pods(placed, pods, problems)
    if problems:
        return None, problems
    ranks = tuple(sorted((one.rank for one in placed), key=lambda rank: rank.rank_id))
    parts = {
        "servers": {server.server_id: stated(server, "device", "server_id") for server in table.server_list},
        "pods": {pod.super_pod_id: stated(pod, "super_pod_id", "server_list") for pod in table.super_pod_list or ()},
        "pod_servers": {
            server.server_id: stated(server, "server_id")
            for pod in table.super_pod_list or ()
            for server in pod.server_list
        },
    }
    return RankTable(table.version, ranks, {"status": table.status, **(table.model_extra or {})}, parts), []


def _rank(device: Device1, server: str, pods: dict[str, str], path: str, problems: list[Problem]) -> Rank:
    for field in _PORTS:
        port(getattr(device, field), f"{path}.{field}", problems)
    return Rank(
        number(device.rank_id, f"{path}.rank_id", problems),
        server,
        number(device.device_id, f"{path}.device_id", problems),
        device.device_ip or None,
        pods.get(server),
        device.super_device_id,
        stated(device, *_OF_RANK),
    )


def _pods(table: Table1, problems: list[Problem]) -> dict[str, str]:
    """The super pod of each server, by the servers' ids."""
    pods: dict[str, str] = {}
    known = {server.server_id for server in table.server_list}
    listed = table.super_pod_list or []
    unique([pod.super_pod_id for pod in listed], "super_pod_list", "super_pod_id", problems)
    for p, pod in enumerate(listed):
        path = f"super_pod_list[{p}]"
        name(pod.super_pod_id, f"{path}.super_pod_id", problems, 127)
        if not pod.server_list:
            problems.append(Problem(BAD_VALUE, f"{path}.server_list", "is empty; expected a server at least"))
        for s, server in enumerate(pod.server_list):
            where = f"{path}.server_list[{s}].server_id"
            if server.server_id not in known:
                problems.append(
                    Problem(BAD_VALUE, where, f"is {shown(server.server_id)}; server_list has no such server")
                )
            elif server.server_id in pods:
                problems.append(Problem(BAD_VALUE, where, f"is {shown(server.server_id)}, which is in a pod already"))
            pods.setdefault(server.server_id, pod.super_pod_id)
    if listed:
        for s, one in enumerate(table.server_list):
            if one.server_id not in pods:
                problems.append(
                    Problem(
                        BAD_VALUE, f"server_list[{s}].server_id", f"{shown(one.server_id)} is in no super pod: add it"
                    )
                )
    return pods


def _check_pods(placed: list[Placed], pods: dict[str, str], problems: list[Problem]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for one in placed if pods else []:
        path, device, pod = f"{one.path}.super_device_id", one.rank.super_device_id, one.rank.super_pod_id
        if device is None:
            problems.append(Problem(BAD_FIELD, path, "is missing; devices of a super pod need one: add it"))
        elif pod is not None and (pod, device) in seen:
            problems.append(
                Problem(BAD_VALUE, path, f"is {shown(device)}, as {seen[pod, device]}; expected each once in a pod")
            )
        if device is not None and pod is not None:
            seen.setdefault((pod, device), path)
    by_pod = [one.rank.super_pod_id for one in sorted(placed, key=lambda one: one.rank.rank_id)] if pods else []
    runs = sum(1 for k, pod in enumerate(by_pod) if k == 0 or pod != by_pod[k - 1])
    if runs > len(set(by_pod)):
        why = "ranks of a pod are among those of another; expected a pod's ranks one after the other"
        problems.append(Problem(BAD_VALUE, "super_pod_list", why))
