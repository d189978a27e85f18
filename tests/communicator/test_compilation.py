"""A communicator compiles once for its arguments, shapes and settings, and works under jit and grad."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hccljax import Communicator, FallbackWarning

P = 4
X = np.arange(1.0, P * 3 + 1, dtype=np.float32).reshape(P, 3)
BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"

each_executor = pytest.mark.parametrize("executor", ["devices", "virtual"])


@pytest.fixture
def compiled():
    """() → how many programs XLA has compiled since it was last asked."""
    seen = []

    def listen(event, duration, **_):
        if event == BACKEND_COMPILE:
            seen.append(event)

    def since():
        number = len(seen)
        seen.clear()
        return number

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield since
    jax.monitoring.unregister_event_duration_listener(listen)


@each_executor
def test_a_second_call_with_the_same_shapes_compiles_nothing(compiled, executor):
    comm = Communicator(P, executor=executor)
    calls = [
        lambda x: comm.all_reduce(x),
        lambda x: comm.all_reduce(x, "max", algorithm="tree"),
        lambda x: comm.send_recv(x, [(0, 1)]),
        lambda x: comm.send_recv(x, iter([[0, 1]])),
    ]
    for call in calls:
        call(X)
    assert compiled() >= len(calls) - 1
    for call in calls:
        call(X)
        call(X + 1)
    assert compiled() == 0


def test_another_shape_dtype_or_argument_compiles_anew(compiled):
    comm = Communicator(P, executor="virtual")
    comm.all_reduce(X)
    for call in (
        lambda: comm.all_reduce(X[:, :2]),
        lambda: comm.all_reduce(X.astype(np.int32)),
        lambda: comm.all_reduce(X, "prod"),
        lambda: comm.all_reduce(X, algorithm="tree"),
        lambda: Communicator(P, executor="virtual").all_reduce(X),
    ):
        compiled()
        call()
        assert compiled() > 0


@each_executor
def test_hccl_algo_is_read_at_every_call(monkeypatch, compiled, executor):
    comm = Communicator(P, executor=executor)
    program = comm._compiled
    ring = np.asarray(comm.all_reduce(X))
    compiled()
    monkeypatch.setenv("HCCL_ALGO", "tree")
    np.testing.assert_array_equal(comm.all_reduce(X), ring)
    assert compiled() > 0
    monkeypatch.delenv("HCCL_ALGO")
    comm.all_reduce(X)
    assert compiled() == 0
    assert len(program) == 2


def test_a_change_of_hccl_algo_changes_what_runs(monkeypatch):
    # Sums of floats depend on the order of the additions, which tells a ring from a tree.
    comm = Communicator(P, executor="virtual")
    x = np.random.default_rng(3).standard_normal((P, 64)).astype(np.float32)
    results = {}
    for text in ("ring", "tree"):
        monkeypatch.setenv("HCCL_ALGO", text)
        results[text] = np.asarray(comm.all_reduce(x))
        np.testing.assert_array_equal(results[text], comm.all_reduce(x, algorithm=text))
    assert (results["ring"] != results["tree"]).any()


def test_a_fallback_is_told_once_for_each_compilation(monkeypatch):
    comm = Communicator(P, executor="virtual")
    monkeypatch.setenv("HCCL_ALGO", "tree")
    with pytest.warns(FallbackWarning, match="'tree' has no all_gather; 'H-D_R' runs instead") as caught:
        results = [comm.all_gather(X) for _ in range(2)]
    assert len(caught) == 1
    np.testing.assert_array_equal(*results)


# Under transformations


@each_executor
def test_methods_work_inside_jit(executor):
    comm = Communicator(P, executor=executor)

    @jax.jit
    def mean_of_squares(x):
        return comm.all_reduce(x * x, "mean"), comm.reduce_scatter(
            x[:, :, None] * jnp.ones((1, 1, 4)), tiled=True, scatter_dimension=1
        )

    mean, scattered = mean_of_squares(X)
    np.testing.assert_array_equal(mean, np.broadcast_to((X * X).mean(0), X.shape))
    total = np.broadcast_to(X.sum(0)[:, None], (3, 4))
    np.testing.assert_array_equal(scattered, total.reshape(3, 4, 1).swapaxes(0, 1))


@each_executor
@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_gradients_pass_through_a_communicator(executor, algorithm):
    comm, weights = Communicator(P, executor=executor, algorithm=algorithm), np.arange(1.0, P + 1)[:, None]
    loss = lambda x: (weights * comm.all_reduce(x) ** 2).sum()  # noqa: E731
    expected = np.broadcast_to(2 * weights.sum() * X.sum(0), X.shape)
    gradient, tangent = jax.jit(lambda x: (jax.grad(loss)(x), jax.jvp(loss, (x,), (jnp.ones_like(x),))[1]))(X)
    np.testing.assert_array_equal(gradient, expected)
    np.testing.assert_array_equal(tangent, expected.sum())


def test_the_gradient_of_every_linear_method_is_its_transpose():
    comm = Communicator(P, executor="devices")
    blocks = np.arange(P * P * 2.0, dtype=np.float32).reshape(P, P, 2)
    linear = (
        (comm.all_gather, X),
        (comm.reduce_scatter, blocks),
        (lambda x: comm.broadcast(x, 1), X),
        (lambda x: comm.reduce(x, "sum", 2), X),
        (lambda x: comm.scatter(x, 3), blocks),
        (lambda x: comm.gather(x, 1), X),
        (comm.all_to_all, blocks),
        (lambda x: comm.send_recv(x, [(0, 2), (3, 0)]), X),
        (comm.barrier, X),
    )

    @jax.jit
    def pulled_back():
        for call, x in linear:
            out, back = jax.vjp(call, x)
            y = jnp.arange(out.size, dtype=jnp.float32).reshape(out.shape) % 5
            results.append((out, y, x, back(y)[0]))
        return results

    results = []
    for out, y, x, cotangent in pulled_back():
        # <A x, y> = <x, Aᵀ y>, which is exact for small integers.
        assert np.vdot(out, y) == np.vdot(x, cotangent) != 0


def test_methods_are_mapped_by_vmap():
    comm = Communicator(P, executor="virtual")
    many = np.stack([X, 2 * X, 3 * X])
    expected = np.broadcast_to(many.sum(1)[:, None], many.shape)
    np.testing.assert_array_equal(jax.vmap(comm.all_reduce)(many), expected)
    np.testing.assert_array_equal(
        jax.vmap(comm.all_reduce, in_axes=2, out_axes=2)(np.moveaxis(many, 0, 2)), np.moveaxis(expected, 0, 2)
    )
