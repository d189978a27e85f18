"""A trace is that of the settings of its moment, whatever JAX has kept of the same functions."""

import threading

import jax
import jax.numpy as jnp
import pytest

import hccljax

X = jax.ShapeDtypeStruct((1 << 16,), jnp.float32)


def plain(x):
    return hccljax.all_reduce(x, "r")


def body(carry, _):
    return hccljax.all_reduce(carry, "r"), None


STEPS = {
    "function": plain,
    "jit": jax.jit(plain),
    "checkpoint": jax.checkpoint(plain),
    "scan": lambda x: jax.lax.scan(body, x, None, length=2)[0],
    "gradient": jax.grad(lambda x: jnp.sum(jax.jit(plain)(x) ** 2)),
}


def labels(schedule):
    return {event.label.split("_")[0] for event in schedule.events if event.is_communication}


@pytest.mark.parametrize("name", STEPS)
def test_trace(monkeypatch, name):
    for algorithm in ("ring", "mesh", "ring"):
        monkeypatch.setenv("HCCL_ALGO", algorithm)
        assert algorithm in labels(hccljax.trace(STEPS[name], X, axis_sizes={"r": 8}))


@pytest.mark.parametrize("name", STEPS)
def test_predict(name):
    cluster = {"axis_sizes": {"r": 8}, "topology": "2x4"}
    found = hccljax.predict(STEPS[name], X, **cluster, compare=["ring", "mesh"])
    for algorithm, simulation in found.alternatives.items():
        timeline = simulation.timeline()
        assert algorithm in {timeline[k].name.split("_")[0] for k in range(len(timeline))}
    with pytest.raises(hccljax.SettingError):
        hccljax.predict(STEPS[name], X, **cluster, settings={"HCCL_ALGO": "nonsense"})
    with pytest.raises(hccljax.SettingError, match="expected names and texts"):
        hccljax.predict(STEPS[name], X, **cluster, settings={"HCCL_BUFFSIZE": 3})


def test_threads():
    """Each thread's settings are its own, also for the collectives of jax.lax, which are replaced."""

    def seconds(algorithm, n):
        step = lambda x: jax.lax.psum(x, "r")  # noqa: E731
        return hccljax.predict(
            step, jax.ShapeDtypeStruct((n,), "float32"), axis_sizes={"r": 8}, topology="2x4",
            settings={"HCCL_ALGO": algorithm},
        ).seconds  # fmt: skip

    alone = {algorithm: seconds(algorithm, 1) for algorithm in ("ring", "tree")}
    found = {algorithm: [] for algorithm in alone}
    threads = [threading.Thread(target=lambda a=a: found[a].extend(seconds(a, n) for n in range(2, 22))) for a in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for algorithm, times in found.items():
        assert len(times) == 20
        assert all(time == pytest.approx(alone[algorithm], rel=0.05) for time in times)
