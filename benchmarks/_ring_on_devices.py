"""Times one ring all_reduce on forced CPU devices, one for each rank. ``executors.py`` starts it.

    python benchmarks/_ring_on_devices.py RANKS BYTES

Prints the seconds of one call. One is enough: hundreds of threads on a few cores take seconds for it, and the target
is a factor of thousands. A first call, off the clock, compiles and wakes the threads.
"""

from __future__ import annotations

import sys
import time

from _devices import force

RANKS, BYTES = map(int, sys.argv[1:])
force(RANKS)  # before jax is imported

import jax  # noqa: E402
import numpy as np  # noqa: E402

from hccljax import Communicator  # noqa: E402


def main() -> None:
    comm = Communicator(RANKS, executor="devices", algorithm="ring")
    x = comm.put(np.ones((RANKS, BYTES // 4), np.float32))
    np.testing.assert_array_equal(comm.all_reduce(x), RANKS)
    start = time.perf_counter()
    jax.block_until_ready(comm.all_reduce(x))
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
