"""Commands that ask the library a question: explain, simulate, predict, verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

import hccljax
from hccljax.algorithm.base import GIVES_BLOCKS, ROOTED, TAKES_BLOCKS, VARIABLE
from hccljax.cli.output import plain, say, say_json, say_table
from hccljax.cli.words import named, operator, size, sizes
from hccljax.errors import ArgumentError, VerificationError
from hccljax.selection.cost import Field, fastest
from hccljax.selection.settings import Settings
from hccljax.timing.simulation import duration
from hccljax.topology import Topology, as_topology, with_figures

Operator = Annotated[str, typer.Argument(help="Such as allreduce or all_reduce.")]
Size = Annotated[str, typer.Option("--size", "-s", help="Bytes of one rank's message: 64MB, 512KB, 8B.")]
Spec = Annotated[str | None, typer.Option("--topology", "-t", help="Such as atlas-800t-a2:4x8, 4x8 or 5+3.")]
Ranks = Annotated[int | None, typer.Option("--ranks", "-n", help="Number of ranks, without a topology.")]
Wanted = Annotated[str | None, typer.Option("--algorithm", "-a", help="A name, 'fastest', or an HCCL_ALGO text.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs.")]


def explain(
    collective: Operator,
    message: Size = "64MB",
    topology: Spec = None,
    ranks: Ranks = None,
    algorithm: Wanted = None,
    policy: Annotated[str | None, typer.Option(help="The rule that chooses: ranks, cann, cann-910, cost.")] = None,
    sweep: Annotated[str | None, typer.Option(help="The fastest algorithm for each size, such as 1KB:1GB.")] = None,
    as_json: Json = False,
) -> None:
    """Which algorithm runs a collective, why, and what else could.

    Example: hccljax explain allreduce --size 1GB --topology atlas-800t-a2:4x8
    """
    tiers, p = _group(topology, ranks)
    name = operator(collective)
    if sweep is not None:
        _sweep(name, sizes(sweep), tiers or Topology((p,)), as_json)
        return
    found = hccljax.explain(name, size(message), p, tiers, algorithm, policy=policy)
    if as_json:
        kept = [one.name for one in fields(hccljax.Decision) if one.repr]
        say_json({**{one: getattr(found, one) for one in kept}, "outlook": found.outlook})
    else:
        say(str(found))


def _sweep(name: str, wanted: Sequence[int], tiers: Topology, as_json: bool) -> None:
    field = Field(name, with_figures(tiers), Settings.from_environment().buffer)
    rows: list[dict[str, Any]] = []
    for nbytes in wanted:
        best, seconds, other = fastest(field, nbytes)
        bound = hccljax.lower_bound(name, nbytes, field.topology).seconds
        behind = "" if other is None else other.algorithm
        rows.append({"nbytes": nbytes, "algorithm": best.algorithm, "seconds": seconds, "next": behind, "bound": bound})
    if as_json:
        say_json({"operator": name, "topology": str(field.topology), "sizes": rows})
        return
    say(f"{name} on {field.topology}, the fastest by predicted time")
    say_table(("bytes", "time", "of bound", "algorithm", "next"), map(_row, rows))


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    share = found["bound"] / found["seconds"] if found["seconds"] else 1.0
    return f"{found['nbytes']:,}", duration(found["seconds"]), f"{share:.1%}", found["algorithm"], found["next"]


def simulate(
    collective: Operator,
    message: Size = "64MB",
    topology: Spec = "atlas-800t-a2:8",
    algorithm: Wanted = None,
    root: Annotated[int, typer.Option(help="Of broadcast, reduce, scatter and gather.")] = 0,
    mode: Annotated[str, typer.Option(help="ordered, or eager: the order within a stream is dropped.")] = "ordered",
    trace: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev.")] = None,
    as_json: Json = False,
) -> None:
    """How long a collective takes on a topology, message by message.

    Example: hccljax simulate allreduce -s 1GB -t atlas-800t-a2:4x8 -a ring --trace ring.json
    """
    tiers, p = _group(topology, None)
    name, nbytes = VARIABLE.get(operator(collective), operator(collective)), size(message)  # V forms: equal blocks
    found = hccljax.simulate(_schedule(name, nbytes, p, root, algorithm, tiers), tiers or str(p), mode=mode)
    bound = hccljax.lower_bound(name, nbytes, with_figures(tiers or str(p)), root=root)
    path = None if trace is None else found.timeline().to_chrome(trace)
    if as_json:
        levels = [plain(tier) for tier in found.tiers]
        say_json({"operator": name, "nbytes": nbytes, "seconds": found.seconds, "levels": levels,
                  "bound": bound.seconds, "binds": bound.binds, "assumptions": found.assumptions,
                  "trace": None if path is None else str(path)})  # fmt: skip
        return
    say(str(found))
    share = f", {bound.seconds / found.seconds:.1%} of the time" if found.seconds else ""
    say(f"  lower bound: {duration(bound.seconds)}{share}: {bound.binds}")
    if path is not None:
        say(f"  trace: {path} (open it in ui.perfetto.dev)")


def _schedule(name: str, nbytes: int, p: int, root: int, algorithm: str | None, tiers: Topology | None) -> Any:
    block = -(-nbytes // p)
    shape = (p, block) if name in TAKES_BLOCKS else (block,) if name in GIVES_BLOCKS else (nbytes,)
    options: dict[str, Any] = {"algorithm": algorithm, "topology": tiers}
    if name in ROOTED:
        options["root"] = root
    if name == "all_to_all":
        options |= {"split_axis": 0, "concat_axis": 0}
    function = getattr(hccljax, name)
    operand = jax.ShapeDtypeStruct(shape, np.uint8)
    return hccljax.trace(lambda x: function(x, "rank", **options), operand, axis_sizes={"rank": p})


def predict(
    step: Annotated[str, typer.Argument(help="module:function; it returns (step, arguments, axis_sizes).")],
    topology: Spec = "atlas-800t-a2:4x8",
    algorithm: Wanted = None,
    flops: Annotated[float | None, typer.Option(help="Floating-point operations per second of one rank.")] = None,
    bandwidth: Annotated[float, typer.Option(help="Bytes per second of one rank's memory.")] = float("inf"),
    compare: Annotated[list[str] | None, typer.Option(help="A value of HCCL_ALGO to predict with, too.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for ui.perfetto.dev.")] = None,
    as_json: Json = False,
) -> None:
    """How long a training step of yours takes on a cluster; nothing runs, no device is needed.

    The function takes no arguments and returns what hccljax.predict takes: the per-device step, a tuple of its
    arguments (jax.ShapeDtypeStruct will do) and the sizes of its axes.

    Example: hccljax predict mymodel:training -t atlas-800t-a2:4x8 --flops 160e12 --compare ring --compare tree
    """
    function = named(step)
    given = function() if callable(function) else function
    if not isinstance(given, tuple) or len(given) != 3 or not callable(given[0]):
        raise ArgumentError(f"{step} gave {type(given).__name__}: expected (step, arguments, axis_sizes)")
    body, arguments, axis_sizes = given
    rates = None if flops is None else hccljax.Rates(flops, bandwidth)
    found = hccljax.predict(
        body, *arguments, axis_sizes=axis_sizes, topology=topology or "atlas-800t-a2:8", rates=rates,
        algorithm=algorithm, compare=compare or (),
    )  # fmt: skip
    path = None if trace is None else found.simulation.timeline().to_chrome(trace)
    if as_json:
        others = {name: {"seconds": other.seconds, "communication_share": other.communication_share}
                  for name, other in found.alternatives.items()}  # fmt: skip
        say_json({"seconds": found.seconds, "communication_share": found.communication_share,
                  "levels": [plain(tier) for tier in found.simulation.tiers], "alternatives": others,
                  "assumptions": found.simulation.assumptions, "trace": path and str(path)})  # fmt: skip
        return
    say(str(found))
    if path is not None:
        say(f"  trace: {path} (open it in ui.perfetto.dev)")


def verify(
    algorithm: Annotated[str, typer.Argument(help="A registered name, an HCCL_ALGO text, or module:name of yours.")],
    collective: Annotated[str | None, typer.Argument(help="An operator; all it has if left out.")] = None,
    ranks: Ranks = None,
    topology: Spec = None,
    op: Annotated[str, typer.Option(help="sum, prod, max, min or mean.")] = "sum",
    root: Annotated[int, typer.Option(help="Of broadcast, reduce, scatter and gather.")] = 0,
    as_json: Json = False,
) -> int:
    """Proves that an algorithm gives every rank every contribution exactly once, in the right place.

    Example: hccljax verify NHR allreduce --ranks 7
    """
    tiers, p = _group(topology, ranks)
    record = named(algorithm) if ":" in algorithm and not algorithm.startswith("level") else algorithm
    known = hccljax.algorithm.registered(record) if record in hccljax.algorithm.algorithms() else record
    wanted = [operator(collective)] if collective else _operators(known)
    proofs, status = [], 0
    for name in wanted:
        kept = op if name in hccljax.algorithm.base.REDUCING else "sum"
        try:
            proof = hccljax.verify(record, name, p, op=kept, root=root if name in ROOTED else 0, topology=tiers)
            proofs.append({"operator": name, "proved": True, "text": str(proof)})
        except VerificationError as error:
            status = 1
            proofs.append({"operator": name, "proved": False, "text": str(error)})
    if as_json:
        say_json({"algorithm": algorithm, "ranks": p, "proofs": proofs})
    else:
        for one in proofs:
            say(f"{'proved' if one['proved'] else 'WRONG '}  {one['text']}")
    return status


def _operators(algorithm: Any) -> list[str]:
    if not isinstance(algorithm, hccljax.Algorithm):
        return ["all_reduce"]
    return [name for name in hccljax.algorithm.base.OPERATORS if algorithm.supports(name)]


def _group(topology: str | None, ranks: int | None) -> tuple[Topology | None, int]:
    """(the tiers, ranks) of two options that may say the same."""
    tiers = as_topology(topology)
    if tiers is None and ranks is None:
        raise ArgumentError("how many ranks? Pass --topology, such as atlas-800t-a2:4x8, or --ranks")
    if tiers is not None and ranks not in (None, tiers.ranks):
        raise ArgumentError(f"--ranks {ranks} and --topology {topology}, which has {tiers.ranks}: leave one out")
    return tiers, tiers.ranks if tiers is not None else ranks  # type: ignore[return-value]
