"""A communicator refuses what it cannot run, by name, before anything runs."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import hccljax
from hccljax import ArgumentError

P = 4
ROWS = jnp.arange(P * P * 2.0).reshape(P, P, 2)


def communicator(**options):
    return hccljax.Communicator(P, executor="virtual", **options)


# (what is called, what the message has to say)
SETUPS = {
    "a size of zero ranks": (lambda: hccljax.Communicator(0), "size=0", "1 or more"),
    "a negative size": (lambda: hccljax.Communicator(-1), "size=-1", "1 or more"),
    "a bool as size of a communicator": (lambda: hccljax.Communicator(True), "size=True", "1 or more"),
    "a float as size": (lambda: hccljax.Communicator(4.0), r"size=4\.0", "1 or more"),
    "no devices": (lambda: hccljax.Communicator(devices=[]), "devices|size=0", "1 or more|at least one"),
    "too few devices": (
        lambda: hccljax.Communicator(9, executor="devices"),
        "9 devices",
        "are 8",
        "executor='virtual'",
        "--xla_force_host_platform_device_count=9",
    ),
    "an executor that does not exist": (lambda: hccljax.Communicator(4, executor="gpu"), "executor='gpu'", "'virtual'"),
    "a communicator's topology of another size": (lambda: communicator(topology="2x4"), "2x4", "8 ranks", "4"),
    "a communicator's malformed topology": (lambda: communicator(topology="2 by 2"), "'2 by 2'", "'4x8'"),
    "a communicator's groups of another size": (lambda: communicator(groups=[[0, 1]]), "2 ranks", "has 4"),
    "a communicator's algorithm that does not exist": (
        lambda: communicator(algorithm="rnig").all_reduce(ROWS),
        "algorithm='rnig'",
        "Did you mean ring",
    ),
    "a split that leaves ranks out": (lambda: communicator().split([[0], [1]]), "2 ranks", "has 4", "0 to 3"),
    "a split with a rank twice": (lambda: communicator().split([[0, 1], [1, 2]]), "rank 1", "exactly one group"),
    "a split into ints": (lambda: communicator().split([0, 1, 2, 3]), "groups", r"\[\[0, 1\], \[2, 3\]\]"),
    "no split": (lambda: communicator().split(None), "groups", r"\[\[0, 1\], \[2, 3\]\]"),
    "too few rows": (lambda: communicator().all_reduce(ROWS[:3]), r"\(3, 4, 2\)", "4 rows", r"x\[r\]"),
    "a scalar instead of rows": (lambda: communicator().all_gather(1.0), r"shape \(\)", "4 rows", r"x\[r\]"),
    "too few rows to put": (lambda: communicator().put(ROWS[:3]), r"\(3, 4, 2\)", "4 rows", r"x\[r\]"),
    "an array as root": (lambda: communicator().broadcast(ROWS, jnp.int32(1)), "broadcast", "hashable"),
    "a communicator's root that does not exist": (lambda: communicator().broadcast(ROWS, 4), "root=4", "0 to 3"),
    "a communicator's pairs that are none": (lambda: communicator().send_recv(ROWS, [0, 1]), "0", "two ints"),
    "no pairs for a communicator": (lambda: communicator().send_recv(ROWS, None), "None", "pairs"),
}


@pytest.mark.parametrize("mistake", SETUPS)
def test_a_bad_setup_is_named_with_what_was_expected(mistake, error_of, helps):
    call, *says = SETUPS[mistake]
    message = error_of(call, ArgumentError)
    assert message.startswith("EI0003: ")
    assert all(re.search(part, message) for part in says), message
    assert helps(message), message


def test_a_float_root_is_refused_even_after_the_equal_int_was_used(error_of):
    comm = communicator()
    np.testing.assert_array_equal(comm.broadcast(ROWS, 1), np.broadcast_to(ROWS[1], ROWS.shape))
    assert "root=1.0" in error_of(lambda: comm.broadcast(ROWS, 1.0), ArgumentError)
