"""The variables of HCCL's environment: which of them act here, what each may hold, and what is wrong with one.

Source: HCCL's documentation of its environment variables. ``check`` looks at them before a job starts on the cluster.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hccljax.errors import SettingError, nearest, shown
from hccljax.selection.grammar import parse_algo, strict_problems
from hccljax.selection.settings import Settings
from hccljax.selection.wanted import algorithms

Check = Callable[[str], str | None]
"""A value → what was expected in its place, or None."""


def _whole(least: int, most: int | None = None, unit: str = "", multiple: int = 1) -> Check:
    def check(text: str) -> str | None:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
        fits = least <= number and (most is None or number <= most) and number % multiple == 0
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        of = f", a multiple of {multiple}" if multiple > 1 else ""
        return None if fits else f"a whole number{unit and f' of {unit}'}, {bounds}{of}"

    return check


def _one_of(*words: str) -> Check:
    return lambda text: None if text in words else f"one of {', '.join(words)}{nearest(text, words)}"


def _address(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return "an IPv4 or IPv6 address"
    return None


def _interfaces(text: str) -> str | None:
    names = text.removeprefix("^").removeprefix("=").split(",")
    return None if all(names) else "names of network interfaces with commas between them, behind ^ (not) or = (exactly)"


def _shorter(limit: int) -> Check:
    return lambda text: None if len(text) < limit else f"fewer than {limit} characters"


def _setting(variable: str) -> Check:
    """For the variables that hccljax reads itself: its own error says what was expected."""

    def check(text: str) -> str | None:
        try:
            settings = Settings.from_environment({variable: text})
            if variable == "HCCL_ALGO":
                parse_algo(settings.algo, frozenset(algorithms()))
        except SettingError as error:
            return str(error).removeprefix(f"{error.code}: ")
        return None

    return check


ACTING = ("HCCL_ALGO", "HCCL_BUFFSIZE", "HCCL_DETERMINISTIC", "HCCL_ENTRY_LOG_ENABLE")
"""Those of HCCL's that collectives obey, too."""

CONNECT_TIMEOUT = "HCCL_CONNECT_TIMEOUT"
"""Acts where a communicator spans processes: how long they wait for each other."""

VARIABLES: dict[str, Check] = {
    **{name: _setting(name) for name in ACTING},
    "HCCL_EXEC_TIMEOUT": _whole(0, unit="seconds"),
    CONNECT_TIMEOUT: _whole(120, 7200, "seconds"),
    "HCCL_OP_EXPANSION_MODE": _one_of("HOST", "HOST_TS", "AI_CPU", "AIV"),
    "HCCL_INTRA_PCIE_ENABLE": _one_of("0", "1"),
    "HCCL_INTRA_ROCE_ENABLE": _one_of("0", "1"),
    "HCCL_INTER_HCCS_DISABLE": _one_of("TRUE", "FALSE"),
    "HCCL_LOGIC_SUPERPOD_ID": _shorter(128),
    "HCCL_IF_IP": _address,
    "HCCL_SOCKET_IFNAME": _interfaces,
    "HCCL_SOCKET_FAMILY": _one_of("AF_INET", "AF_INET6"),
    "HCCL_IF_BASE_PORT": _whole(1024, 65520),
    "HCCL_RDMA_TC": _whole(0, 255, multiple=4),
    "HCCL_RDMA_SL": _whole(0, 7),
    "HCCL_RDMA_TIMEOUT": _whole(5, 20),
    "HCCL_RDMA_RETRY_CNT": _whole(1, 7),
    "HCCL_RDMA_QPS_PER_CONNECTION": _whole(1, 32),
    "HCCL_MULTI_QP_THRESHOLD": _whole(1, 8192, "KB"),
    "HCCL_WHITELIST_DISABLE": _one_of("0", "1"),
    "HCCL_DIAGNOSE_ENABLE": _one_of("0", "1"),
}
"""What each variable of HCCL's may hold."""


@dataclass(frozen=True)
class Finding:
    """What there is to say of one variable.

    Attributes:
      variable: its name.
      value: what it holds.
      code: HCCL's error code if it is wrong, else ``""``.
      text: what is wrong, or what it does here.
    """

    variable: str
    value: str
    code: str
    text: str


def findings(environ: Mapping[str, str]) -> list[Finding]:
    """What there is to say of the HCCL_* variables of an environment, in the order of their names."""
    return [_finding(name, environ[name]) for name in sorted(environ) if name.startswith("HCCL_")]


def connect_timeout(environ: Mapping[str, str]) -> int:
    """HCCL_CONNECT_TIMEOUT in seconds; 120 where it is not set.

    Raises:
      SettingError: it is no such number (EI0001).
    """
    text = environ.get(CONNECT_TIMEOUT, "")
    expected = VARIABLES[CONNECT_TIMEOUT](text) if text else None
    if expected is not None:
        raise SettingError(f"{CONNECT_TIMEOUT}={shown(text)}: expected {expected}")
    return int(text or 120)


def _finding(name: str, value: str) -> Finding:
    if name not in VARIABLES:
        return Finding(name, value, SettingError.code, f"no variable of HCCL's{nearest(name, VARIABLES)}")
    if not value:
        return Finding(name, value, "", "empty, which is as if it were not set")
    wrong = VARIABLES[name](value)
    if wrong is not None:
        text = wrong if name in ACTING else f"{shown(value)}: expected {wrong}"
        return Finding(name, value, SettingError.code, text)
    if name == "HCCL_ALGO":
        refused = " ".join(strict_problems(parse_algo(value, frozenset(algorithms()))))
        return Finding(name, value, "", f"acts here; HCCL itself would refuse it: {refused}" if refused else "acts")
    acts = name in (*ACTING, CONNECT_TIMEOUT)
    return Finding(name, value, "", "acts" if acts else "right, and without effect in hccljax")
