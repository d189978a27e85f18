"""One program, unchanged, in one process of 8 devices and in two processes of 4."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).parents[2]
LIMIT = 150  # seconds; it takes about 20 on an idle machine


def _free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def _environment(devices):
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "XLA_FLAGS": " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"]),
    }


def _end(process):
    """Ends a process with whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_program_runs_unchanged_in_one_process_and_in_two(tmp_path, processes):
    port = _free_port()
    logs = [tmp_path / f"process_{number}.txt" for number in range(processes)]
    started = []
    deadline = time.monotonic() + LIMIT
    try:
        for number, log in enumerate(logs):
            arguments = [] if processes == 1 else [str(port), str(processes), str(number)]
            with log.open("w") as output:
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-W", "error::UserWarning", str(PROGRAM), *arguments],
                        env=_environment(8 // processes), stdout=output, stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )  # fmt: skip
        # A process that fails leaves the others waiting for it, so the first failure ends the wait.
        while any(process.poll() is None for process in started) and time.monotonic() < deadline:
            if any(process.poll() for process in started):
                break
            time.sleep(0.1)
        codes = [process.poll() for process in started]
    finally:
        for process in started:
            _end(process)
    said = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in logs)
    assert codes == [0] * processes, f"exit codes {codes} (None: not done after {LIMIT} s)\n{said}"
    assert all("checked 20" in log.read_text() for log in logs), said
