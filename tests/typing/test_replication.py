"""What is the same on every rank is typed so: out_specs=P(), out_axes=None, and a branch in eager code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import hccljax

RANKS, AXIS = 4, "i"
X = np.arange(12.0, dtype=np.float32).reshape(RANKS, 3) - 5

REPLICATED = {
    "sum": (lambda x: hccljax.all_reduce(x, AXIS), X.sum(0)),
    "mean": (lambda x: hccljax.all_reduce(x, AXIS, "mean"), X.mean(0)),
    "max": (lambda x: hccljax.all_reduce(x, AXIS, "max"), X.max(0)),
    "min": (lambda x: hccljax.all_reduce(x, AXIS, "min"), X.min(0)),
    "prod": (lambda x: hccljax.all_reduce(x, AXIS, "prod"), X.prod(0)),
    "broadcast": (lambda x: hccljax.broadcast(x, AXIS, 2), X[2]),
    "all_gather": (lambda x: hccljax.all_gather(x, AXIS, to="invarying"), X),
}
DIFFERENT = {
    "all_gather": lambda x: hccljax.all_gather(x, AXIS),
    "reduce_scatter": lambda x: hccljax.reduce_scatter(jnp.stack([x] * RANKS), AXIS),
    "reduce": lambda x: hccljax.reduce(x, AXIS),
    "gather": lambda x: hccljax.gather(x, AXIS),
    "scatter": lambda x: hccljax.scatter(jnp.stack([x] * RANKS), AXIS),
    "all_to_all": lambda x: hccljax.all_to_all(jnp.stack([x] * RANKS), AXIS, 0, 0),
    "send_recv": lambda x: hccljax.send_recv(x, AXIS, [(0, 1), (1, 0)]),
    "barrier": lambda x: hccljax.barrier(x, AXIS),
    "sum in pairs": lambda x: hccljax.all_reduce(x, hccljax.Group(AXIS, [[0, 1], [2, 3]])),
    "broadcast in pairs": lambda x: hccljax.broadcast(x, hccljax.Group(AXIS, [[0, 1], [2, 3]])),
}
BY_LAX = {"sum": jax.lax.psum, "mean": jax.lax.pmean}


def test_replicated_results_leave_as_one_array(mode):
    def all_of_them(x):
        return {name: collective(x) for name, (collective, _) in REPLICATED.items()}

    for name, found in jax.jit(mode.once(all_of_them))(X).items():
        np.testing.assert_array_equal(found, REPLICATED[name][1], err_msg=name)


@pytest.mark.parametrize("algorithm", ["tree", "H-D_R", "mesh", "double_tree", "native", "ring"])
def test_every_algorithm_promises_the_same(make_mode, algorithm):
    def both(x):
        total = hccljax.all_reduce(x, AXIS, algorithm=algorithm)
        return total, total if algorithm == "native" else hccljax.broadcast(x, AXIS, 2, algorithm=algorithm)

    for mode in ("checked", "vmap"):
        total, sent = jax.eval_shape(make_mode(mode).once(both), X)
        assert total.shape == sent.shape == (3,)


@pytest.mark.parametrize("name", DIFFERENT)
def test_results_that_differ_between_ranks_are_refused_as_one_array(make_mode, name):
    with pytest.raises(ValueError, match=r"out_specs.*replicat"):
        jax.eval_shape(make_mode("checked").once(DIFFERENT[name]), X)


@pytest.mark.parametrize("name", [name for name in DIFFERENT if name != "all_gather"])
def test_results_that_differ_between_ranks_are_refused_by_vmap_too(make_mode, name):
    with pytest.raises(ValueError, match="out_axes is None"):
        jax.eval_shape(make_mode("vmap").once(DIFFERENT[name]), X)


def test_a_plain_all_gather_leaves_vmap_as_one_array(make_mode):
    found = make_mode("vmap").once(lambda x: hccljax.all_gather(x, AXIS))(X)
    np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize("op", BY_LAX)
def test_the_gradient_of_an_all_reduce_leaves_vmap_as_one_array(make_mode, same, op):
    def gradients(reduce):
        def on_rank(x):
            loss = lambda x: jnp.sum(reduce(x) ** 3)  # noqa: E731
            return jax.grad(loss)(x), jax.jvp(jax.grad(loss), (x,), (x + 1,)), jax.vmap(jax.grad(loss))(x[:, None])

        return jax.jit(make_mode("vmap").once(on_rank))(X)

    same(gradients(lambda x: hccljax.all_reduce(x, AXIS, op)), gradients(lambda x: BY_LAX[op](x, AXIS)))


@pytest.mark.parametrize("name", ["sum", "mean", "broadcast", "all_gather"])
def test_one_array_from_outside_has_the_gradient_of_what_it_is_made_of(make_mode, name):
    """In all modes but unchecked shard_map, where JAX counts P() outputs 1/p on each rank."""
    collective, value = REPLICATED[name]
    jacobian = {
        "sum": np.broadcast_to(np.eye(3), (RANKS, 3, 3)),
        "mean": np.broadcast_to(np.eye(3) / RANKS, (RANKS, 3, 3)),
        "broadcast": np.eye(3) * (np.arange(RANKS) == 2)[:, None, None],
    }
    expected = 2 * X if name == "all_gather" else np.einsum("roi,o->ri", jacobian[name], 2 * value)
    for mode in ("checked", "vmap"):
        once = make_mode(mode).once(collective)
        gradient = jax.jit(jax.grad(lambda x, once=once: jnp.sum(once(x) ** 2)))(X)
        np.testing.assert_array_equal(gradient, expected, err_msg=mode)


def test_a_replicated_result_of_an_unchecked_shard_map_has_the_gradient_of_lax(make_mode, same):
    def gradient(collective):
        once = make_mode("unchecked").once(collective)
        return jax.jit(jax.grad(lambda x: jnp.sum(once(x) ** 2)))(X)

    same(gradient(lambda x: hccljax.all_reduce(x, AXIS)), gradient(lambda x: jax.lax.psum(x, AXIS)))


@pytest.mark.parametrize("name", REPLICATED)
def test_eager_code_branches_on_a_replicated_result(make_mesh, name):
    collective, value = REPLICATED[name]
    taken = []

    def body(x):
        taken.append(bool(collective(x[0]).sum() > 0))
        return x

    jax.shard_map(body, mesh=make_mesh(i=RANKS), in_specs=P(AXIS), out_specs=P(AXIS))(X)
    assert taken == [bool(value.sum() > 0)]


def test_eager_code_cannot_branch_on_a_result_that_differs(make_mesh):
    def body(x):
        return x if hccljax.reduce(x[0], AXIS).sum() > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.shard_map(body, mesh=make_mesh(i=RANKS), in_specs=P(AXIS), out_specs=P(AXIS))(X)


def test_a_replicated_result_can_be_the_carry_of_a_loop(make_mode):
    """The carry's type is fixed by its first value: a result typed as varying would not fit."""

    def body(x):
        step = lambda total, _: (total + hccljax.all_reduce(x, AXIS), None)  # noqa: E731
        return jax.lax.scan(step, jnp.zeros(3, jnp.float32), length=3)[0]

    for mode in ("checked", "unchecked", "vmap"):
        np.testing.assert_array_equal(jax.jit(make_mode(mode).once(body))(X), 3 * X.sum(0), err_msg=mode)
