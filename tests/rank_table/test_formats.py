"""What is read from tables of each format, and written back."""

import dataclasses
import json
import subprocess
import sys

import pytest

from hccljax.errors import ArgumentError, SettingError
from hccljax.rank_table import RankTable, from_environment, read_rank_table
from hccljax.rank_table.problems import RankTableError
from hccljax.topology import Topology

from_builder = pytest.mark.parametrize(
    ("name", "version", "sizes"),
    [
        ("1.0", "1.0", (4, 2)),
        ("1.2", "1.2", (2, 2, 2)),
        ("1.2 plain", "1.2", (4, 2)),
        ("group_list", "group_list", (4, 2)),
        ("lab", "lab", (2, 2)),
        ("2.0", "2.0", (4, 2)),
        ("2.0 pods", "2.0", (2, 2, 2)),
    ],
)


@from_builder
def test_every_format(tables, name, version, sizes):
    table = read_rank_table(tables[name]())
    assert (table.version, table.topology) == (version, Topology(sizes))
    assert [rank.rank_id for rank in table.ranks] == list(range(len(table)))
    per_server = sizes[0]
    for rank in table.ranks:
        assert (rank.server_id, rank.device_id) == (f"node-{rank.rank_id // per_server}", rank.rank_id % per_server)
        assert rank.device_ip == f"192.168.{rank.rank_id // per_server}.{rank.device_id + 1}"


@from_builder
def test_written_and_read_again(tables, name, version, sizes):
    table = read_rank_table(tables[name]())
    assert read_rank_table(table.to_json()) == table
    assert json.loads(table.to_json()) == tables[name]()


def test_further_fields_and_groups_are_written_again(changed):
    version_1 = changed("1.2", {
        ("comment",): {"by": None, "servers": ["x"]},
        ("servers",): "a field of the file",
        ("server_list", 0, "rack"): 3,
        ("server_list", 0, "device", 1, "pod_name"): None,
        ("super_pod_list", 0, "room"): "north",
        ("super_pod_list", 0, "server_list", 1, "slot"): [1, 2.5],
    })  # fmt: skip
    groups = changed("group_list", {
        ("groups",): "a field of the file",
        ("status",): ...,
        ("group_list", 0, "instance_list", 1): ...,
        ("group_list", 0, "instance_count"): "1",
        ("group_list", 0, "device_count"): "4",
        ("group_list", 0, "instance_list", 0, "devices", 0, "pod_name"): "of the device",
        ("group_list", 0, "instance_list", 0, "ip"): "10.0.0.1",
        ("group_count",): "2",
    })  # fmt: skip
    second = {"server_id": "b", "devices": [{"device_id": "0", "device_ip": "10.0.0.2"}], "pod_name": None}
    groups["group_list"].append({"group_name": "others", "why": "spare", "instance_list": [second]})
    version_2 = changed("2.0", {
        ("comment",): None,
        ("rank_list", 0, "level_list", 0, "rack"): {"row": None},
        ("rank_list", 1, "level_list", 1, "rank_addr_list", 0, "ports"): None,
    })  # fmt: skip
    for content in (version_1, groups, version_2):
        table = read_rank_table(content)
        assert json.loads(table.to_json()) == content
        assert read_rank_table(table.to_json()) == table


def test_lab_instances_in_any_order_with_several_devices(changed):
    at = lambda k: ("group_list", 0, "instance_list", k)  # noqa: E731
    table = changed("lab", {
        (*at(0), "rank_id"): "2",
        (*at(2), "rank_id"): "0",
        (*at(2), "devices"): [{"device_id": str(d), "device_ip": f"10.0.0.{d + 1}"} for d in range(2)],
        ("group_list", 0, "instance_list", 3): ...,
        (*at(1), "rank_id"): "3",
        ("group_list", 0, "instance_count"): "3",
    })  # fmt: skip
    found = read_rank_table(table)
    assert [rank.server_id for rank in found.ranks] == ["node-1", "node-1", "node-0", "node-0"]
    assert read_rank_table(found.to_json()) == found
    fewer = dataclasses.replace(found, ranks=found.ranks[:2])
    assert read_rank_table(fewer.to_json()).ranks == fewer.ranks


def test_what_no_file_can_hold(tables):
    table = read_rank_table(tables["1.0"]())
    for value in (float("inf"), {1, 2}, b"x"):
        with pytest.raises(RankTableError, match="cannot be written as JSON"):
            dataclasses.replace(table, others={"status": "completed", "comment": value}).to_json()
        with pytest.raises(RankTableError, match="EI0004 the file: Failed to parse the ranktable file"):
            read_rank_table({**tables["1.0"](), "comment": value})


@pytest.mark.parametrize("name", ["1.0", "1.2", "1.2 plain", "group_list", "lab", "2.0", "2.0 pods"])
@pytest.mark.parametrize("target", ["1.0", "1.2", "group_list"])
def test_conversion(tables, name, target):
    table = read_rank_table(tables[name]())
    other = read_rank_table(table.to(target).to_json())
    assert other.version == target
    facts = lambda t: [(r.rank_id, r.server_id, r.device_id, r.device_ip) for r in t.ranks]  # noqa: E731
    assert facts(other) == facts(table)
    if name == "1.2":
        assert other.pods == (table.pods if target == "1.2" else ())


def test_what_cannot_be_converted(tables, changed):
    table = read_rank_table(tables["1.0"]())
    with pytest.raises(ArgumentError, match=r"needs the ports and planes"):
        table.to("2.0")
    assert table.to("1.0") is table
    bare = changed("2.0", {("rank_list", k, "level_list", 1, "rank_addr_list"): [] for k in range(8)})
    with pytest.raises(RankTableError, match=r"rank 0 has no device_ip, which format 1\.0 needs"):
        read_rank_table(bare).to("1.0")
    assert read_rank_table(bare).to("1.2").topology == Topology((4, 2))


def test_sources(tables, tmp_path):
    text = json.dumps(tables["1.0"]())
    (tmp_path / "table.json").write_text(text)
    expected = read_rank_table(tables["1.0"]())
    for source in (tmp_path / "table.json", str(tmp_path / "table.json"), text, f"\n {text}", text.encode(),
                   text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode()):  # fmt: skip
        assert read_rank_table(source).ranks == expected.ranks


def test_unequal_servers_and_pods(tables, changed):
    shorter = changed("1.0", {("server_list", 1, "device", 3): ...})
    assert read_rank_table(shorter).topology == Topology(servers=(4, 3))
    table = changed("1.2", {
        ("super_pod_list", 0, "server_list"): [{"server_id": "node-0"}],
        ("super_pod_list", 1, "server_list"): [{"server_id": f"node-{s}"} for s in (1, 2, 3)],
        **{("server_list", s, "device", d, "super_device_id"): str(s * 2 + d) for s in range(4) for d in range(2)},
    })  # fmt: skip
    uneven = read_rank_table(table)
    assert (uneven.pods, uneven.even_pods, uneven.topology) == ((1, 3), False, Topology((2, 4)))


def test_ranks_in_another_order_in_the_file(changed):
    first = ("server_list", 0, "device")
    swapped = changed("1.0", {(*first, 0, "rank_id"): "1", (*first, 1, "rank_id"): "0"})
    assert [rank.device_id for rank in read_rank_table(swapped).ranks[:3]] == [1, 0, 2]


def test_a_super_pod_needs_no_addresses(tables):
    table = tables["1.2"]()
    table["super_pod_list"] = [{"super_pod_id": "only", "server_list": [{"server_id": f"node-{s}"} for s in range(4)]}]
    for server in table["server_list"]:
        for device in server["device"]:
            del device["device_ip"]
    assert read_rank_table(table).topology == Topology((2, 4))


def test_text(tables):
    assert str(read_rank_table(tables["1.2"]())) == "rank table 1.2: 8 ranks on 2x2x2, 4 servers, 2 super pods"


def test_from_the_environment(tables, tmp_path):
    (tmp_path / "table.json").write_text(json.dumps(tables["1.0"]()))
    file = str(tmp_path / "table.json")
    assert from_environment({}) == (None, None)
    table, rank = from_environment({"RANK_TABLE_FILE": file, "RANK_ID": "3", "RANK_SIZE": "8"})
    assert isinstance(table, RankTable)
    assert rank == 3
    for wrong in ({"RANK_ID": "8"}, {"RANK_ID": "-1"}, {"RANK_ID": "x"}, {"RANK_SIZE": "7"}, {"RANK_SIZE": "9" * 50},
                  {"RANK_ID": "2147483648"}):  # fmt: skip
        with pytest.raises(SettingError, match="EI0001: RANK_"):
            from_environment({"RANK_TABLE_FILE": file, **wrong})


def test_ten_thousand_ranks(tables):
    many = tables["1.0"](servers=1250, devices=8)
    for s, server in enumerate(many["server_list"]):
        for d, device in enumerate(server["device"]):
            device["device_ip"] = f"10.{s >> 8}.{s & 255}.{d + 1}"
    table = read_rank_table(many)
    assert (len(table), table.topology) == (10_000, Topology((8, 1250)))


def test_pydantic_is_loaded_only_where_a_table_is_read():
    code = "import sys, hccljax, hccljax.rank_table; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
