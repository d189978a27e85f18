"""The program that runs unchanged in one process of 8 devices and in two of 4: every collective, checked by NumPy.

    python program.py                            one process
    python program.py PORT NUMBER_OF_PROCESSES PROCESS   one of several, which meet at localhost:PORT

It prints "checked N" once everything has been as expected on this process's devices.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import hccljax

P = 8
ROWS = np.random.default_rng(0).integers(-9, 10, (P, P, 3)).astype(np.float32)
SUM = np.broadcast_to(ROWS.sum(0), ROWS.shape)
PAIRS = [(0, 5), (3, 4), (7, 0)]
SENT = np.zeros_like(ROWS)
for source, destination in PAIRS:
    SENT[destination] = ROWS[source]

CALLS = {
    **{
        f"all_reduce {algorithm}": (
            lambda x, algorithm=algorithm: hccljax.all_reduce(x, "rank", algorithm=algorithm),
            lambda comm, x, algorithm=algorithm: comm.all_reduce(x, algorithm=algorithm),
            SUM,
        )
        for algorithm in ("ring", "tree", "double_tree", "H-D_R", "mesh", "native")
    },
    "all_reduce hierarchical": (
        lambda x: hccljax.all_reduce(x, "rank", algorithm="level0:ring;level1:tree", topology="2x4"),
        lambda comm, x: comm.all_reduce(x, algorithm="level0:ring;level1:tree", topology="2x4"),
        SUM,
    ),
    "all_gather": (
        lambda x: hccljax.all_gather(x, "rank"),
        lambda comm, x: comm.all_gather(x),
        np.broadcast_to(ROWS, (P, *ROWS.shape)),
    ),
    "reduce_scatter": (
        lambda x: hccljax.reduce_scatter(x, "rank"),
        lambda comm, x: comm.reduce_scatter(x),
        ROWS.sum(0),
    ),
    "broadcast": (
        lambda x: hccljax.broadcast(x, "rank", 6),
        lambda comm, x: comm.broadcast(x, 6),
        np.broadcast_to(ROWS[6], ROWS.shape),
    ),
    "all_to_all": (
        lambda x: hccljax.all_to_all(x, "rank", 0, 0),
        lambda comm, x: comm.all_to_all(x),
        ROWS.swapaxes(0, 1),
    ),
    "send_recv": (
        lambda x: hccljax.send_recv(x, "rank", PAIRS),
        lambda comm, x: comm.send_recv(x, PAIRS),
        SENT,
    ),
}
"""What is called inside shard_map, what through a communicator, and what all rows become."""

BY_COMMUNICATOR = [name for name in CALLS if name.split()[-1] not in ("tree", "double_tree", "H-D_R", "mesh")]


def check(name, out, expected):
    """This process's rows are the expected ones."""
    assert out.shape == expected.shape, (name, out.shape, expected.shape)
    assert len(out.addressable_shards) == len(jax.local_devices())
    for shard in out.addressable_shards:
        np.testing.assert_array_equal(shard.data, expected[shard.index], err_msg=name)


def through_shard_map():
    """Every call in one program over a global mesh."""
    mesh = jax.make_mesh((P,), ("rank",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("rank")
    x = jax.make_array_from_callback(ROWS.shape, NamedSharding(mesh, spec), lambda index: ROWS[index])

    def body(rows):
        return {name: jnp.expand_dims(call(rows[0]), 0) for name, (call, _, _) in CALLS.items()}

    outputs = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    for name, (_, _, expected) in CALLS.items():
        check(name, outputs[name], expected)


def through_a_communicator():
    """Calls by themselves; the all_reduce of one algorithm and that of XLA's stand for the others."""
    comm = hccljax.Communicator(P)
    assert comm.executor == "devices"
    for name in BY_COMMUNICATOR:
        _, call, expected = CALLS[name]
        check(f"communicator {name}", call(comm, ROWS), expected)
    placed = comm.put(ROWS)
    check("put", placed, ROWS)
    check("put, then all_reduce", comm.all_reduce(placed), SUM)
    check("inside jit", jax.jit(lambda x: comm.all_reduce(2 * x))(placed), 2 * SUM)
    check("twice", comm.all_reduce(comm.broadcast(placed, 6)), P * np.broadcast_to(ROWS[6], ROWS.shape))
    gradient = jax.grad(lambda x: (comm.all_reduce(x) ** 2).sum())
    check("gradient", gradient(placed), 2 * P * SUM)
    with pytest.raises(hccljax.ArgumentError, match="expected a leading axis of 8 rows"):
        comm.all_reduce(ROWS[:3])


def through_disagreement():
    """Processes that are about to run different collectives all say so, and go on afterwards."""
    me, comm = jax.process_index(), hccljax.Communicator(P)
    calls = {
        "arrays": lambda: comm.all_reduce(ROWS[:, :, : 2 + me]),
        "operator": lambda: comm.all_reduce(ROWS) if me else comm.broadcast(ROWS),
        "options": lambda: comm.all_reduce(ROWS, algorithm=("ring", "tree")[me]),
        "arguments": lambda: comm.all_reduce(ROWS, ("sum", "max")[me]),
    }
    for parameter, call in calls.items():
        with pytest.raises(hccljax.MismatchError, match=f"EI0005: .*{parameter} differs: process {me} .ranks {4 * me}"):
            call()
    check("after all", comm.all_reduce(ROWS), SUM)


def main(port=None, processes=1, process=0):
    """Joins the other processes, if there are any, and checks everything."""
    if port is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", processes, process)
    assert (jax.process_count(), jax.device_count(), len(jax.local_devices())) == (processes, P, P // processes)
    through_shard_map()
    through_a_communicator()
    if processes > 1:
        through_disagreement()
    print(f"checked {len(CALLS) + len(BY_COMMUNICATOR)}", flush=True)
    if port is not None:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
