"""The formats of rank tables, as pydantic models, and which of them a file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictInt, StrictStr, ValidationError

from hccljax.errors import shown
from hccljax.rank_table.problems import BAD_FIELD, BAD_VALUE, Problem
from hccljax.rank_table.table import RankTable


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


def stated(model: BaseModel, *but: str) -> dict[str, Any]:
    """The fields that stand in the file, unknown ones too, as there; those named are left out."""
    return model.model_dump(exclude_unset=True, exclude=set(but))


class Device1(_Model):
    """A device of formats 1.0 and 1.2; all values are texts."""

    device_id: StrictStr
    rank_id: StrictStr
    device_ip: StrictStr | None = None
    device_port: StrictStr | None = None
    host_port: StrictStr | None = None
    super_device_id: StrictStr | None = None
    backup_device_ip: StrictStr | None = None
    backup_device_port: StrictStr | None = None


class Server1(_Model):
    """A server of formats 1.0 and 1.2."""

    server_id: StrictStr
    device: list[Device1]
    host_ip: StrictStr | None = None
    host_nic_ip: StrictStr | None = None


class PodServer(_Model):
    """A server of a super pod, by its id."""

    server_id: StrictStr


class Pod(_Model):
    """A super pod of format 1.2."""

    super_pod_id: StrictStr
    server_list: list[PodServer]


class Table1(_Model):
    """Formats 1.0 and 1.2; 1.2 adds super pods and does without server_count."""

    version: StrictStr
    status: StrictStr
    server_list: list[Server1]
    server_count: StrictStr | None = None
    super_pod_list: list[Pod] | None = None


class GroupDevice(_Model):
    """A device of the group_list formats."""

    device_id: StrictStr
    device_ip: StrictStr | None = None


class Instance(_Model):
    """A server of the group_list format, or one rank of its lab form."""

    devices: list[GroupDevice]
    server_id: StrictStr
    pod_name: StrictStr | None = None
    rank_id: StrictStr | None = None


class GroupOfInstances(_Model):
    """A group of the group_list formats."""

    instance_list: list[Instance]
    group_name: StrictStr | None = None
    instance_count: StrictStr | None = None
    device_count: StrictStr | None = None


class GroupTable(_Model):
    """The older format without a version."""

    group_list: list[GroupOfInstances]
    status: StrictStr | None = None
    group_count: StrictStr | None = None


class Address(_Model):
    """An address of format 2.0."""

    addr_type: StrictStr
    addr: StrictStr
    ports: list[StrictStr] | None = None
    plane_id: StrictStr | None = None


class NetLevel(_Model):
    """A level of the network that a rank of format 2.0 is in: level 0 is its server."""

    net_layer: StrictInt
    net_instance_id: StrictStr
    net_type: StrictStr | None = None
    net_attr: StrictStr | None = None
    rank_addr_list: list[Address] = []


class Rank2(_Model):
    """A rank of format 2.0; numbers are JSON numbers."""

    rank_id: StrictInt
    device_id: StrictInt
    level_list: list[NetLevel]
    local_id: StrictInt | None = None
    device_port: StrictInt | None = None
    host_port: StrictInt | None = None


class Table2(_Model):
    """Format 2.0."""

    version: StrictStr
    rank_count: StrictInt
    rank_list: list[Rank2]
    status: StrictStr | None = None


Found = tuple[RankTable | None, list[Problem]]


def table_of(content: Mapping[str, Any]) -> Found:
    """The table of a JSON object, or what is wrong with it."""
    from hccljax.rank_table.groups import of_groups
    from hccljax.rank_table.v1 import of_version_1
    from hccljax.rank_table.v2 import of_version_2

    split = [key for key in content if isinstance(key, str) and ("prefill" in key or "decode" in key)]
    if split:
        why = "lists of prefill and decode instances are no rank table; expected the table of one of these instances"
        return None, [Problem(BAD_VALUE, split[0], why)]
    version = content.get("version")
    if version in ("1.0", "1.2"):
        return _checked(Table1, content, of_version_1)
    if version == "2.0":
        return _checked(Table2, content, of_version_2)
    if version is None and "group_list" in content:
        return _checked(GroupTable, content, of_groups)
    if version is None:
        return None, [Problem(BAD_FIELD, "version", "is missing; expected '1.0', '1.2' or '2.0', or a group_list")]
    return None, [Problem(BAD_VALUE, "version", f"is {shown(version)}; expected '1.0', '1.2' or '2.0'")]


def _checked(model: type[BaseModel], content: Mapping[str, Any], build: Callable[[Any], Found]) -> Found:
    try:
        parsed = model.model_validate(content)
    except ValidationError as error:
        return None, [_problem(one) for one in error.errors(include_url=False, include_context=False)]
    return build(parsed)


def _problem(error: Any) -> Problem:
    path = ""
    for part in error["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    if error["type"] == "missing":
        return Problem(BAD_FIELD, path.removeprefix("."), "is missing; expected it here: add it")
    wanted = {
        "string_type": "a text: write it in quotes",
        "int_type": "a number without quotes",
        "list_type": "a list",
        "model_type": "an object",
        "dict_type": "an object",
    }.get(error["type"], str(error["msg"]))
    return Problem(BAD_FIELD, path.removeprefix("."), f"is {shown(error['input'])}; expected {wanted}")
