"""Bytes that the busiest rank sends, counted from the schedule, against the least that any algorithm can send.

    python benchmarks/bytes_on_wire.py [--ranks 8 64] [--bytes 4194304]

sent       the most bytes that one rank sends, from the jaxpr of the code that runs
formula    the record's own bytes_sent(operator, p, bytes); it has to equal what is sent where blocks come out even
bound      the least that some rank has to send: all_reduce 2(p-1)/p n; reduce_scatter, all_gather, scatter and
           all_to_all (p-1)/p n; broadcast and reduce n; gather n/p, n being the whole message (Chan et al. 2007)
of bound   sent over bound: 1.00 is optimal; latency and the tiers of a network are not in it

Collectives of XLA's own (native) are left out: how they send is not visible. Exits with 1 if a formula is wrong.
"""

from __future__ import annotations

import argparse
import sys

from _per_device import PerDevice

from hccljax.algorithm.base import OPERATORS, algorithms, registered

HEADER = f"{'operator':<15}{'algorithm':<13}{'p':>5}{'sent':>14}{'formula':>14}{'bound':>14}{'of bound':>10}"


def bound(operator: str, p: int, nbytes: int) -> float:
    """Bytes that the busiest rank sends at least."""
    part = (p - 1) / p * nbytes
    return {"all_reduce": 2 * part, "broadcast": nbytes, "reduce": nbytes, "gather": nbytes / p}.get(operator, part)


def line(operator: str, algorithm: str, p: int, nbytes: int) -> tuple[str, bool]:
    """(a line of the table, whether the formula is wrong)."""
    fun = PerDevice(algorithm, operator, p)
    sent, formula = fun.schedule(p, nbytes).max_bytes_sent, fun.algorithm.bytes_sent(operator, p, nbytes)
    least = bound(operator, p, nbytes)
    note = "" if sent == formula else "  WRONG"
    figures = f"{sent:>14,}{formula:>14,}{least:>14,.0f}{sent / least:>10.2f}{note}"
    return f"{operator:<15}{algorithm:<13}{p:>5}{figures}", sent != formula


def main() -> int:
    """Prints the table; 1 if a formula is not what is sent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 32, 64], metavar="P")
    parser.add_argument("--bytes", type=int, default=4 << 20, help="of the whole message; p blocks of float32 in it")
    options = parser.parse_args()
    wrong = 0
    print(f"messages of {options.bytes:,} bytes (cut to p even blocks)\n\n{HEADER}\n{'-' * len(HEADER)}")
    for operator in OPERATORS:
        for algorithm in algorithms():
            if algorithm == "native" or not registered(algorithm).supports(operator):
                continue
            for p in options.ranks:
                # Blocks that halve as often as there are powers of two up to p, and into the double tree's segments.
                even = 4 * p * 1024
                text, bad = line(operator, algorithm, p, max(1, options.bytes // even) * even)
                print(text, flush=True)
                wrong += bad
    print(f"\n{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
