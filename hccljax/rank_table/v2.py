"""Format 2.0 (950): ranks with the levels of the network that they are in; level 0 is the server."""

from __future__ import annotations

from hccljax.rank_table.checks import Placed, check_ranks, check_status, counted, number, port
from hccljax.rank_table.formats import Found, NetLevel, Rank2, Table2, stated
from hccljax.rank_table.problems import BAD_VALUE, Problem
from hccljax.rank_table.table import Rank, RankTable


def of_version_2(table: Table2) -> Found:
    """The ranks of a table, or what is wrong with it."""
    problems: list[Problem] = []
    check_status(table.status, problems)
    if not table.rank_list:
        problems.append(Problem(BAD_VALUE, "rank_list", "is empty; expected a rank at least"))
    counted(table.rank_count, "rank_count", len(table.rank_list), "ranks", problems)
    placed = [_placed(rank, f"rank_list[{k}]", problems) for k, rank in enumerate(table.rank_list)]
    check_ranks(placed, problems, addresses_needed=False)
    _check_pods(placed, problems)
    if problems:
        return None, problems
    ranks = tuple(sorted((one.rank for one in placed), key=lambda rank: rank.rank_id))
    return RankTable("2.0", ranks, {"status": table.status, **(table.model_extra or {})}), []


def _placed(rank: Rank2, path: str, problems: list[Problem]) -> Placed:
    levels: dict[int, NetLevel] = {}
    for k, level in enumerate(rank.level_list):
        if level.net_layer in levels:
            where = f"{path}.level_list[{k}].net_layer"
            problems.append(Problem(BAD_VALUE, where, f"is {level.net_layer} again; expected each layer once"))
        levels.setdefault(level.net_layer, level)
    if 0 not in levels:
        problems.append(Problem(BAD_VALUE, f"{path}.level_list", "has no net_layer 0; expected that of the server"))
    for field in ("device_port", "host_port"):
        port(getattr(rank, field), f"{path}.{field}", problems)
    rank_id, device = (number(getattr(rank, field), f"{path}.{field}", problems) for field in ("rank_id", "device_id"))
    outer = [level for layer, level in sorted(levels.items()) if layer > 0]
    addresses = [one.addr for level in outer for one in level.rank_addr_list if one.addr_type.upper().startswith("IP")]
    # With three layers the middle one is the super pod; with two it is the network between all servers.
    pod = outer[0].net_instance_id if len(outer) > 1 else None
    server = levels[0].net_instance_id if 0 in levels else ""
    others = stated(rank, "rank_id", "device_id")
    return Placed(
        Rank(rank_id, server, device, addresses[0] if addresses else None, pod, None, others),
        path,
        ("rank_id", "device_id", "level_list"),
    )


def _check_pods(placed: list[Placed], problems: list[Problem]) -> None:
    pods: dict[str, str | None] = {}
    for one in placed:
        pod = pods.setdefault(one.rank.server_id, one.rank.super_pod_id)
        if pod != one.rank.super_pod_id:
            why = f"puts the server into {one.rank.super_pod_id!r}, other ranks of it are in {pod!r}; expected one"
            problems.append(Problem(BAD_VALUE, f"{one.path}.level_list", why))
