"""How long a rank table of 10,000 ranks takes to read and check.

python benchmarks/rank_tables.py
"""

from __future__ import annotations

import json
import statistics
import time

from _report import Finding

from hccljax.rank_table import read_rank_table

SERVERS, DEVICES = 1250, 8


def table() -> str:
    """A table of format 1.0 as text."""
    servers = [
        {
            "server_id": f"node-{s}",
            "device": [
                {"device_id": str(d), "device_ip": f"10.{s >> 8}.{s & 255}.{d + 1}", "rank_id": str(s * DEVICES + d)}
                for d in range(DEVICES)
            ],
        }
        for s in range(SERVERS)
    ]
    return json.dumps({"version": "1.0", "status": "completed", "server_count": str(SERVERS), "server_list": servers})


def main() -> None:
    text, times = table(), []
    read_rank_table(text)
    for _ in range(5):
        start = time.perf_counter()
        found = read_rank_table(text)
        times.append(time.perf_counter() - start)
    print(found)
    print(Finding("reading and checking 10,000 ranks", statistics.median(times), 1.0, "s"))


if __name__ == "__main__":
    main()
