"""The commands: what they print, their JSON, their exit status, and what they say of bad input."""

import json
import os
import subprocess
import sys

import pytest

import hccljax
from hccljax.cli import main

TABLE = {
    "version": "1.0",
    "status": "completed",
    "server_count": "2",
    "server_list": [
        {
            "server_id": f"node-{server}",
            "device": [
                {"device_id": str(k), "device_ip": f"10.0.{server}.{k + 1}", "rank_id": str(2 * server + k)}
                for k in range(2)
            ],
        }
        for server in range(2)
    ],
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("HCCL", "RANK_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def ran(capsys):
    """ran(*arguments): (exit status, stdout, stderr)."""

    def ran(*arguments):
        status = main(arguments)
        found = capsys.readouterr()
        return status, found.out, found.err

    return ran


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    return str(path)


def test_explain(ran):
    status, out, err = ran("explain", "allreduce", "--size", "1MB", "-t", "4x8")
    assert (status, err) == (0, "")
    assert out == f"{hccljax.explain('all_reduce', 1 << 20, 32, '4x8')}\n"
    status, out, _ = ran("explain", "AllReduce", "-s", "1MB", "-n", "8", "-a", "ring", "--json")
    found = json.loads(out)
    assert (status, found["algorithm"], found["asked_by"], found["nbytes"]) == (0, "ring", "call", 1 << 20)
    assert found["outlook"]["prospects"][0]["seconds"] > 0


def test_a_sweep(ran):
    _, out, _ = ran("explain", "alltoall", "--sweep", "1KB:4MB", "-t", "atlas-800t-a2:4x8", "--json")
    found = json.loads(out)["sizes"]
    assert [row["nbytes"] for row in found] == [1 << k for k in range(10, 23)]
    assert found[-1]["algorithm"] == "pipeline"
    assert all(row["seconds"] >= row["bound"] for row in found)
    _, out, _ = ran("explain", "alltoall", "--sweep", "1KB:2KB", "-t", "atlas-800t-a2:4x8")
    assert out.splitlines()[0] == "all_to_all on atlas-800t-a2:4x8, the fastest by predicted time"
    assert len(out.splitlines()) == 4


@pytest.mark.parametrize("operator", ["allreduce", "allgather", "reducescatter", "broadcast", "gather", "alltoall"])
def test_simulate(ran, operator):
    status, out, _ = ran("simulate", operator, "-s", "1MB", "-t", "atlas-800t-a2:2x4", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["bound"] <= found["seconds"]
    assert [level["name"] for level in found["levels"]] == ["HCCS", "RoCE"]


def test_simulate_writes_a_trace(ran, tmp_path):
    path = tmp_path / "ring.json"
    status, out, _ = ran(
        "simulate", "allreduce", "-s", "64KB", "-t", "atlas-800t-a2:4", "-a", "ring", "--trace", str(path)
    )
    assert status == 0
    assert f"trace: {path}" in out
    assert len([one for one in json.loads(path.read_text())["traceEvents"] if one["ph"] == "X"]) == 2 * 4 * 6


def test_predict(ran, tmp_path, monkeypatch):
    (tmp_path / "a_step_of_mine.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def training():\n"
        "    step = lambda w, x: jax.lax.psum(jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w), 'data')\n"
        "    w, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((256, 256), (32, 256)))\n"
        "    return step, (w, x), {'data': 8}\n"
    )
    monkeypatch.chdir(tmp_path)
    status, out, _ = ran(
        "predict", "a_step_of_mine:training", "-t", "2x4", "--flops", "1e12", "--compare", "ring", "--json"
    )
    found = json.loads(out)
    assert status == 0
    assert 0 < found["communication_share"] < 1
    assert list(found["alternatives"]) == ["ring"]
    status, _, err = ran("predict", "a_step_of_mine:jax")
    assert (status, err) == (
        2,
        "error: EI0003: a_step_of_mine:jax gave module: expected (step, arguments, axis_sizes)\n",
    )


def test_verify(ran, tmp_path, monkeypatch):
    status, out, _ = ran("verify", "NHR", "--ranks", "7")
    assert status == 0
    assert len(out.splitlines()) == 5
    assert all(line.startswith("proved  ") for line in out.splitlines())
    (tmp_path / "a_wrong_algorithm.py").write_text(
        "import hccljax\n"
        "mine = hccljax.Algorithm(name='mine', source='here', steps=lambda *_: 1, bytes_sent=lambda *_: 0,\n"
        "                         all_reduce=lambda x, group, op: op(x, group.shift(x, 1)))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert ran("verify", "a_wrong_algorithm:mine", "allreduce", "-n", "2")[0] == 0
    status, out, _ = ran("verify", "a_wrong_algorithm:mine", "allreduce", "-n", "3", "--json")
    assert status == 1
    (proof,) = json.loads(out)["proofs"]
    assert not proof["proved"]
    assert "rank 0" in proof["text"]


def test_topo(ran, table):
    status, out, _ = ran("topo", table)
    assert status == 0
    assert "node-1: ranks 2 to 3" in out
    assert "RoCE" in out
    _, out, _ = ran("topo", "5+3", "--json")
    assert json.loads(out)["servers"] == {"server 0": [0, 1, 2, 3, 4], "server 1": [5, 6, 7]}


def test_check_finds_nothing(ran, table, monkeypatch):
    monkeypatch.setenv("HCCL_ALGO", "level0:NA;level1:ring")
    monkeypatch.setenv("HCCL_RDMA_TC", "132")
    monkeypatch.setenv("HCCL_BUFFSIZE", "100")
    status, out, _ = ran("check", table, "--communicators", "3")
    assert status == 0
    assert "ok  HCCL_ALGO=level0:NA;level1:ring: acts\n" in out
    assert "ok  HCCL_RDMA_TC=132: right, and without effect in hccljax" in out
    assert "2 × 100 MB × 3 communicators = 600 MB" in out
    assert out.endswith("nothing is wrong\n")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HCCL_ALGO", "level0:rng", "expected"),
        ("HCCL_BUFFSIZE", "0", "expected a whole number"),
        ("HCCL_RDMA_TC", "3", "0 to 255, a multiple of 4"),
        ("HCCL_CONNECT_TIMEOUT", "60", "a whole number of seconds, 120 to 7200"),
        ("HCCL_IF_IP", "10.0.0.300", "an IPv4 or IPv6 address"),
        ("HCCL_SOCKET_FAMILY", "AF_INET4", "Did you mean AF_INET"),
        ("HCCL_LOGIC_SUPERPOD_ID", "x" * 128, "fewer than 128 characters"),
        ("HCCL_SOCKET_IFNAME", "eth0,,eth1", "names of network interfaces"),
        ("HCCL_BUFSIZE", "200", "Did you mean HCCL_BUFFSIZE"),
    ],
)
def test_check_finds_a_wrong_variable(ran, monkeypatch, name, value, why):
    monkeypatch.setenv(name, value)
    status, out, _ = ran("check", "--json")
    (found,) = json.loads(out)["variables"]
    assert (status, found["code"]) == (1, "EI0001")
    assert why in found["text"]


def test_check_reports_all_problems_of_a_table(ran, tmp_path, monkeypatch):
    path = tmp_path / "bad.json"
    path.write_text('{"version": "1.0"}')
    status, out, _ = ran("check", str(path))
    assert status == 1
    assert f"EI0017  {path}, status: is missing" in out
    assert f"EI0017  {path}, server_list: is missing" in out
    assert out.endswith("2 things are wrong\n")
    monkeypatch.setenv("RANK_TABLE_FILE", str(path))
    assert json.loads(ran("check", "--json")[1])["findings"] == 2


def test_check_says_what_falls_back(ran, monkeypatch):
    monkeypatch.setenv("HCCL_ALGO", "level0:NA;level1:pipeline")
    status, out, _ = ran("check", "-t", "5+3")
    assert status == 0
    assert "note  all_reduce: 'pipeline' needs servers of one size; 'AHC' runs instead" in out


def test_info(ran, monkeypatch):
    monkeypatch.setenv("HCCL_ALGO", "ring")
    status, out, _ = ran("info", "--json")
    found = json.loads(out)
    assert status == 0
    assert {"setting": "algo", "value": "ring", "from": "HCCL_ALGO"} in found["settings"]
    assert {"setting": "policy", "value": "ranks", "from": "default"} in found["settings"]
    assert "algorithms: ring" in ran("info")[1]


BAD = [
    (("explain", "allreduce", "-s", "1QB", "-n", "8"), "size '1QB': expected a number with B"),
    (("explain", "allreduce", "-s", "64", "-n", "8"), "has no unit: write 64B"),
    (("explain", "allreduce"), "how many ranks?"),
    (("explain", "allreduce", "-n", "8", "-t", "4x8"), "leave one out"),
    (("explain", "allreduce", "-t", "atlas-800t-a3x:4x8"), "unknown topology preset"),
    (("explain", "allreduce", "-n", "8", "-a", "rng"), "expected one of"),
    (("explain", "allreduce", "--sweep", "4MB:4KB", "-n", "8"), "write 4KB:4MB"),
    (("simulate", "alreduce"), "Did you mean allreduce"),
    (("simulate", "allreduce", "--mode", "eagre"), "mode"),
    (("check", "no_such_file.json"), "there is no such file"),
    (("topo", "no_such_file.json"), "expected a spec such as"),
    (("verify", "nhr", "allreduce", "-n", "4"), "Did you mean NHR"),
    (("verify", "no_module_at_all:x", "-n", "4"), "there is no module"),
]


@pytest.mark.parametrize(("arguments", "why"), BAD)
def test_bad_input_is_one_line_with_the_fix(ran, arguments, why):
    status, out, err = ran(*arguments)
    assert (status, out) == (2, "")
    assert why in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    status, out, err = ran(*arguments, "--json")
    assert (status, err) == (2, "")
    assert why in json.loads(out)["error"]["message"]


def test_a_command_line_that_cannot_be_read(ran):
    status, out, err = ran("explan")
    assert (status, out) == (2, "")
    assert "No such command 'explan'" in err
    status, _, err = ran("explain")
    assert status == 2
    assert "See: hccljax explain --help" in err
    assert ran("--help")[0] == 0


def test_debug_shows_the_traceback(ran):
    with pytest.raises(hccljax.ArgumentError):
        ran("--debug", "explain", "allreduce", "-s", "1QB", "-n", "8")


@pytest.mark.parametrize("command", ["explain", "simulate", "predict", "verify", "topo", "check", "info", "demo"])
def test_help_has_an_example(ran, command):
    status, out, _ = ran(command, "--help")
    assert status == 0
    assert "xample" in out or command == "demo"


def test_without_typer_it_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from hccljax.cli import main; sys.exit(main(['info']))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "pip install 'hccljax[cli]'" in found.stderr


def test_python_m():
    found = subprocess.run(
        [sys.executable, "-m", "hccljax", "topo", "2x3"], capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "40"},
    )  # fmt: skip
    assert found.returncode == 0
    assert "\x1b" not in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 60
