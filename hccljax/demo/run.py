"""The demo itself: every algorithm from the same start, checked in its compiled program, compared with psum."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console

import hccljax
from hccljax.demo import data, network
from hccljax.demo.devices import cpu_mesh, servers
from hccljax.demo.inspect_hlo import BypassedError, check, described, executed, expected
from hccljax.demo.report import Row, largest_difference, progress, table
from hccljax.demo.train import Plan, Trained, by_algorithm, by_psum, train
from hccljax.errors import FallbackWarning

REFERENCE = "jax.lax.psum"


def run(algorithms: Sequence[str], epochs: int, devices: int | None, seed: int) -> int:
    """Trains with psum and with all algorithms, and prints what came out.

    Returns:
      The exit status: 0, or 1 if a compiled program does not communicate as its algorithm should.

    Raises:
      HcclError: an algorithm or a number of devices that cannot be had.
    """
    start, console, mesh = time.perf_counter(), Console(highlight=False), cpu_mesh(devices)
    topology = servers(mesh.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # printed as notes instead
        digits, test = data.load()
        plan = Plan(mesh, digits, epochs, seed)
        nbytes = max(array.size * array.dtype.itemsize for array in plan.reduced())
        decisions = [hccljax.explain("all_reduce", nbytes, mesh.size, topology, name) for name in algorithms]
        console.print(f"{len(digits):,} handwritten digits to train on, {len(test)} to test.")
        console.print(f"{mesh.size} CPU devices, topology {topology}; {plan.steps} steps of {plan.batch} digits.")
        try:
            rows, checked = _runs(plan, test, topology, dict(zip(algorithms, decisions, strict=True)), console)
        except BypassedError as error:
            print(f"A compiled step does not communicate as it should. {error}", file=sys.stderr)
            return 1
    console.print(table(rows, nbytes))
    console.print("Checked in the compiled HLO: each step runs just what its algorithm should.")
    for line in checked:
        console.print(f"  {line}")
    for note in (decision.fallback for decision in decisions if decision.fallback):
        console.print(f"Note: {note}.")
    console.print(f"{time.perf_counter() - start:.0f} s in all.")
    return 0


def _runs(
    plan: Plan, test: data.Digits, topology: str, decisions: dict[str, hccljax.Decision], console: Console
) -> tuple[list[Row], list[str]]:
    """(a row for each run, the reference first; what the program of each algorithm executes)."""
    rows, checked = [], []
    with progress(console) as bars:

        def trained(step: Any, name: str) -> Trained:
            bar = bars.add_task(name, total=plan.steps)
            return train(plan, step, lambda: bars.advance(bar))

        reference = trained(plan.compiled(by_psum), REFERENCE)
        rows.append(Row(REFERENCE, None, _accuracy(reference, test), None, reference.seconds))
        for name, decision in decisions.items():
            step, found = _checked(plan, topology, name)
            checked.append(f"{decision.algorithm}: {described(found)}")
            one = trained(step, decision.algorithm)
            difference = largest_difference(one.params, reference.params)
            rows.append(Row(decision.algorithm, decision.steps, _accuracy(one, test), difference, one.seconds))
    return rows, checked


def _checked(plan: Plan, topology: str, algorithm: str) -> tuple[Any, Counter[str]]:
    """(the compiled step, the collectives that it executes), once they are known to be the algorithm's."""
    step = plan.compiled(by_algorithm(algorithm, topology))
    found = executed(step.as_text())
    try:
        check(found, expected(plan.reduced(), plan.mesh.size, topology, algorithm))
    except BypassedError as error:
        raise BypassedError(f"{algorithm}: {error}") from None
    return step, found


def _accuracy(trained: Trained, test: data.Digits) -> float:
    return float(network.accuracy(trained.params, test.images, test.labels))
