"""Checks that all formats of rank tables share."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hccljax.errors import shown
from hccljax.rank_table.problems import BAD_FIELD, BAD_VALUE, Problem
from hccljax.rank_table.table import Rank

LARGEST = 2**31 - 1
"""The largest number of a rank or a device."""

_MISSING_SHOWN = 5


@dataclass(frozen=True)
class Placed:
    """A rank and where it stands in the file.

    Attributes:
      rank: the rank.
      path: of its device.
      names: the fields of its id, its device and its address, as the format calls them.
    """

    rank: Rank
    path: str
    names: tuple[str, str, str] = ("rank_id", "device_id", "device_ip")


def whole(text: str) -> int | None:
    """A text of digits as a number of up to 10 digits; None if it is something else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def number(value: str | int | None, path: str, problems: list[Problem], most: int = LARGEST, least: int = 0) -> int:
    """A number, or a text that is one; a problem is noted, and -1 is the answer, if it is none or out of range."""
    known = whole(value or "") if value is None or isinstance(value, str) else value
    if known is None or not least <= known <= most:
        problems.append(Problem(BAD_VALUE, path, f"is {shown(value)}; expected a whole number, {least} to {most}"))
        return -1
    return known


def port(value: str | int | None, path: str, problems: list[Problem]) -> None:
    """Notes a problem if a port is given and none that exists."""
    if value is not None:
        number(value, path, problems, 65535, 1)


def counted(value: str | int | None, path: str, there: int, what: str, problems: list[Problem]) -> None:
    """Notes a problem if a count is given and is not that of what is there."""
    if value is not None and (whole(value) if isinstance(value, str) else value) != there:
        problems.append(Problem(BAD_VALUE, path, f"is {shown(value)}, but {there} {what} are listed; expected {there}"))


def check_status(status: str | None, problems: list[Problem]) -> None:
    """Notes a problem if a table says that it is not ready."""
    if status not in (None, "completed"):
        why = " (it is still being written)" if status == "initializing" else ""
        problems.append(Problem(BAD_VALUE, "status", f"is {shown(status)}{why}; expected 'completed'"))


def name(value: str, path: str, problems: list[Problem], longest: int = 64) -> None:
    """Notes a problem if an id is empty or too long."""
    if not 1 <= len(value) <= longest:
        problems.append(Problem(BAD_VALUE, path, f"has {len(value)} characters; expected 1 to {longest}"))


def check_ranks(placed: Sequence[Placed], problems: list[Problem], addresses_needed: bool) -> None:
    """Ids 0 to n - 1, devices and addresses used once, ranks of a server together."""
    _check_ids(placed, problems)
    _check_devices(placed, problems)
    _check_addresses(placed, problems, addresses_needed)
    _check_together(placed, problems)


def _check_ids(placed: Sequence[Placed], problems: list[Problem]) -> None:
    n, first = len(placed), dict[int, str]()
    for one in placed:
        path, rank_id = f"{one.path}.{one.names[0]}", one.rank.rank_id
        if rank_id < 0:
            continue  # noted as no number
        if rank_id >= n:
            problems.append(Problem(BAD_VALUE, path, f"is {rank_id}, of {n} ranks; expected 0 to {n - 1}, each once"))
        elif rank_id in first:
            problems.append(Problem(BAD_VALUE, path, f"is {rank_id}, as {first[rank_id]}; expected each id once"))
        first.setdefault(rank_id, path)
    missing = [rank for rank in range(n) if rank not in first]
    if missing and not any(one.rank.rank_id < 0 for one in placed):
        some = ", ".join(map(str, missing[:_MISSING_SHOWN])) + (", …" if len(missing) > _MISSING_SHOWN else "")
        problems.append(Problem(BAD_VALUE, "", f"no rank has the id {some}; expected 0 to {n - 1}, each once"))


def _check_devices(placed: Sequence[Placed], problems: list[Problem]) -> None:
    seen: dict[tuple[str, int], str] = {}
    for one in placed:
        path, key = f"{one.path}.{one.names[1]}", (one.rank.server_id, one.rank.device_id)
        if one.rank.device_id >= 0 and key in seen:
            problems.append(
                Problem(BAD_VALUE, path, f"is {key[1]}, as {seen[key]}; expected each device of a server once")
            )
        seen.setdefault(key, path)


def _check_addresses(placed: Sequence[Placed], problems: list[Problem], needed: bool) -> None:
    seen: dict[object, str] = {}
    families: dict[int, str] = {}
    for one in placed:
        path, text = f"{one.path}.{one.names[2]}", one.rank.device_ip
        if text is None:
            if needed:
                problems.append(Problem(BAD_FIELD, path, "is missing; ranks on several servers need one: add it"))
            continue
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            problems.append(Problem(BAD_VALUE, path, f"is {shown(text)}; expected an IPv4 or IPv6 address"))
            continue
        if address in seen:
            problems.append(Problem(BAD_VALUE, path, f"is {text}, as {seen[address]}; expected each address once"))
        seen.setdefault(address, path)
        families.setdefault(address.version, path)
    if len(families) > 1:
        where = max(families.values())
        which = 4 if families[4] == where else 6
        problems.append(Problem(BAD_VALUE, where, f"is IPv{which}, others are not; expected one family"))


def _check_together(placed: Sequence[Placed], problems: list[Problem]) -> None:
    if sorted(one.rank.rank_id for one in placed) != list(range(len(placed))):
        return  # noted by _check_ids
    ranks: dict[str, list[int]] = defaultdict(list)
    for one in placed:
        ranks[one.rank.server_id].append(one.rank.rank_id)
    for server, ids in ranks.items():
        if max(ids) - min(ids) >= len(ids):
            why = (
                f"server {shown(server)} has ranks between {min(ids)} and {max(ids)}, and others are among them; "
                f"expected the ranks of a server one after the other"
            )
            problems.append(Problem(BAD_VALUE, "", why))


def unique(values: Sequence[str], path: str, field: str, problems: list[Problem]) -> None:
    """Notes a problem for each value of a list's field that comes again."""
    seen: Counter[str] = Counter()
    for k, value in enumerate(values):
        seen[value] += 1
        if seen[value] > 1:
            problems.append(
                Problem(BAD_VALUE, f"{path}[{k}].{field}", f"is {shown(value)} again; expected each of them once")
            )
