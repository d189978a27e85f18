"""Commands that look at what is there: topo, check, info, demo."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.tree import Tree

import hccljax
from hccljax.algorithm.base import OPERATORS
from hccljax.cli.asking import Json, Spec
from hccljax.cli.output import plain, say, say_json, say_table
from hccljax.errors import ArgumentError, HcclError
from hccljax.rank_table import RankTable, RankTableError, from_environment, read_rank_table
from hccljax.selection.choice import choose
from hccljax.selection.settings import MEBIBYTE, Settings
from hccljax.selection.variables import findings
from hccljax.topology import Topology, as_topology, with_figures

Files = Annotated[list[Path] | None, typer.Argument(help="Rank tables.")]


def topo(
    source: Annotated[str, typer.Argument(help="A rank table file, or a spec such as atlas-800t-a2:4x8.")],
    as_json: Json = False,
) -> None:
    """Draws a rank table or a topology: servers, their ranks, and what each tier carries.

    Example: hccljax topo atlas-800t-a2:2x8
    """
    table = read_rank_table(Path(source)) if Path(source).exists() else None
    tiers = with_figures(table.topology if table is not None else as_topology(source) or source)
    servers = _servers(table, tiers)
    if as_json:
        say_json({"topology": str(tiers), "ranks": tiers.ranks, "servers": servers,
                  "levels": [plain(level) for level in tiers.levels]})  # fmt: skip
        return
    tree = Tree(str(table) if table is not None else f"{tiers}: {tiers.ranks} ranks in {len(servers)} servers")
    for name, ranks in servers.items():
        tree.add(f"{name}: ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"{name}: rank {ranks[0]}")
    Console(highlight=False, markup=False, emoji=False).print(tree)
    head = ("level", "links", "members", "GB/s", "µs")
    rows = [
        (level.name, level.links.replace("_", " "), str(level.size), f"{level.bandwidth / 1e9:g}",
         f"{level.latency * 1e6:g}") for level in tiers.levels
    ]  # fmt: skip
    say_table(head, rows)


def _servers(table: RankTable | None, tiers: Topology) -> dict[str, list[int]]:
    """The ranks of each server."""
    if table is not None:
        return {server[0].server_id: [rank.rank_id for rank in server] for server in table.servers}
    sizes = tiers.servers or (tiers.sizes[0],) * (tiers.ranks // tiers.sizes[0])
    found, start = {}, 0
    for k, members in enumerate(sizes):
        found[f"server {k}"] = list(range(start, start + members))
        start += members
    return found


def check(
    files: Files = None,
    communicators: Annotated[int, typer.Option(min=1, help="That a process will have at the same time.")] = 1,
    topology: Spec = None,
    as_json: Json = False,
) -> int:
    """Looks for mistakes before a job starts: the HCCL_* variables, RANK_TABLE_FILE and rank tables.

    Example: HCCL_ALGO='level0:NA;level1:ring' hccljax check rank_table.json
    """
    found = [asdict(finding) for finding in findings(os.environ)]
    tables = [_table(path) for path in files or []]
    try:
        from_environment()
    except HcclError as error:
        tables.append({"file": "RANK_TABLE_FILE", "problems": _problems(error)})
    try:
        buffer = Settings.from_environment().buffer
    except HcclError:
        buffer = Settings().buffer
    memory = 2 * buffer * communicators
    fallbacks = _fallbacks(as_topology(topology))
    wrong = sum(bool(one["code"]) for one in found) + sum(len(one["problems"]) for one in tables)
    if as_json:
        say_json(
            {"variables": found, "tables": tables, "buffer_bytes": memory, "fallbacks": fallbacks, "findings": wrong}
        )
        return 1 if wrong else 0
    for one in found:
        say(f"{one['code'] or 'ok'}  {one['variable']}={one['value']}: {one['text']}")
    for one in tables:
        for problem in one["problems"]:
            say(f"{problem['code']}  {one['file']}, {problem['path'] or 'the file'}: {problem['text']}")
        if not one["problems"]:
            say(f"ok  {one['file']}: {one['text']}")
    for operator, text in fallbacks.items():
        say(f"note  {operator}: {text}")
    say(f"memory for buffers: 2 × {buffer / MEBIBYTE:g} MB × {communicators} communicators = {memory / MEBIBYTE:g} MB")
    say("nothing is wrong" if not wrong else f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong")
    return 1 if wrong else 0


def _fallbacks(tiers: Topology | None) -> dict[str, str]:
    """What HCCL_ALGO asks of each operator and cannot have on these ranks, with what runs instead."""
    if tiers is None:
        return {}
    try:
        decisions = [choose(operator, 64 << 20, tiers.ranks, topology=tiers) for operator in OPERATORS]
    except HcclError:
        return {}
    return {one.operator: one.fallback for one in decisions if one.fallback}


def _table(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ArgumentError(f"{path}: there is no such file")
    try:
        return {"file": str(path), "text": str(read_rank_table(path)), "problems": []}
    except RankTableError as error:
        return {"file": str(path), "problems": _problems(error)}


def _problems(error: HcclError) -> list[dict[str, str]]:
    if isinstance(error, RankTableError):
        return [asdict(problem) for problem in error.problems]
    return [{"code": error.code, "path": "", "text": str(error).removeprefix(f"{error.code}: ")}]


def info(as_json: Json = False) -> None:
    """Versions, devices, and the settings in effect with where each comes from.

    Example: hccljax info
    """
    import jax

    settings = Settings.from_environment()
    sources = {"algo": "HCCL_ALGO", "entry_log": "HCCL_ENTRY_LOG_ENABLE", "buffer": "HCCL_BUFFSIZE",
               "deterministic": "HCCL_DETERMINISTIC", "policy": "HCCLJAX_POLICY"}  # fmt: skip
    shown = [
        {"setting": name, "value": getattr(settings, name), "from": variable if os.environ.get(variable) else "default"}
        for name, variable in sources.items()
    ]
    versions = {"python": platform.python_version(), **{name: _version(name) for name in ("hccljax", "jax", "jaxlib")}}
    devices = [str(device) for device in jax.devices()]
    if as_json:
        say_json({"versions": versions, "backend": jax.default_backend(), "devices": devices,
                  "processes": jax.process_count(), "settings": shown, "algorithms": hccljax.algorithms(),
                  "policies": hccljax.policies()})  # fmt: skip
        return
    say(", ".join(f"{name} {number}" for name, number in versions.items()))
    say(
        f"{len(devices)} devices ({jax.default_backend()}) of {jax.process_count()} processes: {', '.join(devices[:8])}"
    )
    say_table(("setting", "value", "from"), [(one["setting"], str(one["value"]), one["from"]) for one in shown])
    say(f"algorithms: {', '.join(hccljax.algorithms())}")
    say(f"policies: {', '.join(hccljax.policies())}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def demo(context: typer.Context) -> int:
    """Trains a small network once with every algorithm; see hccljax demo --help.

    Example: hccljax demo --epochs 2
    """
    from hccljax.demo.__main__ import main

    return main(context.args)
