"""Everything that can be wrong with a rank table: the code, the path, and all of it at once."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hccljax.errors import ArgumentError
from hccljax.rank_table import RankTable, read_rank_table
from hccljax.rank_table.problems import RankTableError


def problems_of(source):
    with pytest.raises(RankTableError) as caught:
        read_rank_table(source)
    return [(problem.code, problem.path) for problem in caught.value.problems]


S0 = ("server_list", 0)
D0 = (*S0, "device", 0)
ONE_FAULT = [
    ("1.0", {("status",): ...}, "EI0017", "status"),
    ("1.0", {("status",): "initializing"}, "EI0014", "status"),
    ("1.0", {("version",): "3.0"}, "EI0014", "version"),
    ("1.0", {("version",): 1.0}, "EI0014", "version"),
    ("1.0", {("server_list",): ...}, "EI0017", "server_list"),
    ("1.0", {("server_list",): {}}, "EI0017", "server_list"),
    ("1.0", {("server_count",): ...}, "EI0017", "server_count"),
    ("1.0", {("server_count",): 2}, "EI0017", "server_count"),
    ("1.0", {("server_count",): "3"}, "EI0014", "server_count"),
    ("1.0", {("server_count",): "two"}, "EI0014", "server_count"),
    ("1.0", {(*S0, "server_id"): ""}, "EI0014", "server_list[0].server_id"),
    ("1.0", {(*S0, "server_id"): "x" * 65}, "EI0014", "server_list[0].server_id"),
    ("1.0", {(*S0, "server_id"): 7}, "EI0017", "server_list[0].server_id"),
    ("1.0", {(*D0, "rank_id"): ...}, "EI0017", "server_list[0].device[0].rank_id"),
    ("1.0", {(*D0, "rank_id"): 0}, "EI0017", "server_list[0].device[0].rank_id"),
    ("1.0", {(*D0, "rank_id"): "zero"}, "EI0014", "server_list[0].device[0].rank_id"),
    ("1.0", {(*D0, "rank_id"): "-1"}, "EI0014", "server_list[0].device[0].rank_id"),
    ("1.0", {(*D0, "rank_id"): "9" * 5000}, "EI0014", "server_list[0].device[0].rank_id"),
    ("1.0", {(*D0, "rank_id"): "٣"}, "EI0014", "server_list[0].device[0].rank_id"),
    ("1.0", {(*D0, "device_id"): "1"}, "EI0014", "server_list[0].device[1].device_id"),
    ("1.0", {(*D0, "device_ip"): ...}, "EI0017", "server_list[0].device[0].device_ip"),
    ("1.0", {(*D0, "device_ip"): "300.1.1.1"}, "EI0014", "server_list[0].device[0].device_ip"),
    ("1.0", {(*D0, "device_ip"): "192.168.0.2"}, "EI0014", "server_list[0].device[1].device_ip"),
    ("1.0", {(*D0, "device_ip"): "fe80::1"}, "EI0014", "server_list[0].device[1].device_ip"),
    ("1.0", {(*D0, "device_port"): "0"}, "EI0014", "server_list[0].device[0].device_port"),
    ("1.0", {(*D0, "device_port"): "65536"}, "EI0014", "server_list[0].device[0].device_port"),
    ("1.0", {(*D0, "device_port"): 80}, "EI0017", "server_list[0].device[0].device_port"),
    ("1.2", {("super_pod_list", 0, "super_pod_id"): "pod-1"}, "EI0014", "super_pod_list[1].super_pod_id"),
    ("1.2", {("super_pod_list", 0, "server_list", 0, "server_id"): "node-9"}, "EI0014",
     ["super_pod_list[0].server_list[0].server_id", "server_list[0].server_id"]),  # node-0 is in no pod then
    ("1.2", {("super_pod_list", 0, "server_list", 0): ...}, "EI0014", "server_list[0].server_id"),
    ("1.2", {(*D0, "super_device_id"): ...}, "EI0017", "server_list[0].device[0].super_device_id"),
    ("1.2", {(*D0, "super_device_id"): "1"}, "EI0014", "server_list[0].device[1].super_device_id"),
    ("1.2", {("prefill_server_list",): []}, "EI0014", "prefill_server_list"),
    ("group_list", {("group_list", 0, "instance_count"): "3"}, "EI0014", "group_list[0].instance_count"),
    ("group_list", {("group_list", 0, "device_count"): "3"}, "EI0014", "group_list[0].device_count"),
    ("group_list", {("group_list", 0, "instance_list", 0, "devices", 0, "device_id"): "1"}, "EI0014",
     "group_list[0].instance_list[0].devices[1].device_id"),
    ("lab", {("group_list", 0, "instance_list", 1, "rank_id"): "0"}, "EI0014",
     ["group_list[0].instance_list[1].rank_id", ""]),  # nobody is rank 1 then
    ("2.0", {("rank_count",): 7}, "EI0014", "rank_count"),
    ("2.0", {("rank_count",): "8"}, "EI0017", "rank_count"),
    ("2.0", {("rank_list", 0, "rank_id"): "0"}, "EI0017", "rank_list[0].rank_id"),
    ("2.0", {("rank_list", 0, "rank_id"): True}, "EI0017", "rank_list[0].rank_id"),
    ("2.0", {("rank_list", 0, "device_port"): 70000}, "EI0014", "rank_list[0].device_port"),
    ("2.0", {("rank_list", 0, "level_list", 0, "net_layer"): 1}, "EI0014",
     ["rank_list[0].level_list[1].net_layer", "rank_list[0].level_list"]),  # no layer is the server's then
    ("2.0 pods", {("rank_list", 0, "level_list", 1, "net_instance_id"): "pod-1"}, "EI0014", "rank_list[1].level_list"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "code", "path"), ONE_FAULT)
def test_one_fault(changed, name, changes, code, path):
    paths = [path] if isinstance(path, str) else path
    assert problems_of(changed(name, changes)) == [(code, path) for path in paths]


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("2.0", {("rank_list", 0, "device_id"): 2**31}, "is 2147483648; expected a whole number, 0 to 2147483647"),
        ("1.0", {(*D0, "device_id"): "2147483648"}, "is '2147483648'; expected a whole number, 0 to 2147483647"),
        ("1.0", {(*D0, "device_port"): "0"}, "is '0'; expected a whole number, 1 to 65535"),
        ("2.0", {("rank_list", 0, "device_port"): 70000}, "is 70000; expected a whole number, 1 to 65535"),
        ("2.0", {("status",): "initializing"}, r"is 'initializing' (it is still being written); expected 'completed'"),
    ],
)
def test_numbers_and_status_read_alike_in_every_format(changed, name, changes, text):
    with pytest.raises(RankTableError) as caught:
        read_rank_table(changed(name, changes))
    assert [problem.text for problem in caught.value.problems] == [text]


def test_ids_that_do_not_fit(changed):
    table = changed("1.0", {(*D0, "rank_id"): "8"})
    assert problems_of(table) == [("EI0014", "server_list[0].device[0].rank_id"), ("EI0014", "")]
    with pytest.raises(RankTableError, match="no rank has the id 0"):
        read_rank_table(table)


def test_ranks_of_servers_that_take_turns(changed):
    table = changed("1.0", {(*D0, "rank_id"): "4", ("server_list", 1, "device", 0, "rank_id"): "0"})
    with pytest.raises(RankTableError, match="server 'node-1' has ranks between 0 and 7, and others are among them"):
        read_rank_table(table)


def test_all_problems_at_once(changed):
    table = changed("1.0", {
        ("status",): "failed",
        ("server_count",): "5",
        (*D0, "device_port"): "x",
        (*D0, "device_ip"): "no address",
        ("server_list", 1, "device", 2, "device_id"): "0",
    })  # fmt: skip
    assert problems_of(table) == [
        ("EI0014", "status"),
        ("EI0014", "server_count"),
        ("EI0014", "server_list[0].device[0].device_port"),
        ("EI0014", "server_list[1].device[2].device_id"),
        ("EI0014", "server_list[0].device[0].device_ip"),
    ]
    with pytest.raises(RankTableError, match=r"^5 problems in the rank table:\n  EI0014 status: is 'failed'; expected"):
        read_rank_table(table)


def test_many_problems_are_counted(changed):
    table = changed("1.0", {("server_list", s, "device", d, "device_port"): "x" for s in range(2) for d in range(4)})
    for server in table["server_list"]:
        server["device"] *= 5
    with pytest.raises(RankTableError, match=r"… \d+ more") as caught:
        read_rank_table(table)
    assert len(str(caught.value).splitlines()) == 22


def test_keys_given_twice(tables):
    text = json.dumps(tables["1.0"]()).replace('"rank_id": "0"', '"rank_id": "0", "rank_id": "0"')
    assert problems_of(text) == [("EI0014", "server_list[0].device[0].rank_id")]


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"  \n",
        b"\0\0\0\0",
        "{",
        "{}",
        b"[]",
        b"null",
        b"3",
        b'"text"',
        b"{'version': '1.0'}",
        b'{"version": NaN}',
        b'{"version": 1e999}',
        b'{"version": ' + b"9" * 10000 + b"}",
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b"\xff\xfe\x00",
        b"\x80\x81",
        "no/such/file.json",
        "/",
        "bad\0name",
        "x" * 5000,
    ],
)
def test_what_cannot_be_parsed(source):
    assert [code for code, _ in problems_of(source)] == ["EI0004"]


def test_other_sources():
    for source in (None, 3, ["x"], object()):
        with pytest.raises(ArgumentError, match="expected a path, JSON text or bytes, or an object"):
            read_rank_table(source)


def read(source):
    try:
        return read_rank_table(source)
    except RankTableError as error:
        return None if error.problems and str(error) else error


@given(st.binary(max_size=300))
def test_arbitrary_bytes(content):
    found = read(content)
    assert found is None or isinstance(found, RankTable)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


FURTHER = ["comment", "servers", "pods", "groups", "pod_name", "rank_id", "super_device_id", "status", "instance", ""]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_tables_changed_at_random(tables, data):
    """Any node replaced, removed, doubled or added to: problems, or a table that is equal when written and read."""
    table = tables[data.draw(st.sampled_from(sorted(tables)))]()
    for _ in range(data.draw(st.integers(1, 3))):
        inner = table
        while True:
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(inner[key], (dict, list)) and inner[key] and data.draw(st.booleans()):
                inner = inner[key]
                continue
            action = data.draw(st.sampled_from(["replace", "remove", "double", "add"]))
            if action == "replace":
                inner[key] = data.draw(JSON)
            elif action == "remove":
                del inner[key]
            elif action == "add" and isinstance(inner, dict):
                inner.setdefault(data.draw(st.sampled_from(FURTHER)), data.draw(JSON))
            elif isinstance(inner, list):
                inner.append(inner[key])
            break
    found = read(table)
    if found is not None:
        assert [rank.rank_id for rank in found.ranks] == list(range(len(found)))
        assert read_rank_table(found.to_json()) == found


def test_long_keys_cost_no_memory():
    """The path of a problem names what holds it; it is not made for every number of a list."""
    text = json.dumps({"version": "1.0", "k" * 20_000: [0] * 20_000})
    tracemalloc.start()
    with pytest.raises(RankTableError) as caught:
        read_rank_table(text)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 50 * len(text)
    assert len(str(caught.value)) < 1000


def test_a_problem_can_be_printed():
    with pytest.raises(RankTableError) as caught:
        read_rank_table('{"version": "1.0", "\\ud800": 1, "\\ud800": 2}')
    str(caught.value).encode()
