"""Everything hccljax touches beyond JAX's documented API, in one place; checked on jax 0.10.0 and 0.10.2.

- ``jax.extend.core.Primitive`` and the rule tables of ``jax.interpreters`` (ad, batching, mlir): exported by JAX,
  but outside its compatibility promise.
- The set of mesh axes over which a value varies: ``aval.manual_axis_type.varying``.
- ``batching.fancy_primitive_batchers``: batching rules that see the name of the axis that is mapped.
- ``jax.experimental.xla_metadata``: the only part of the key of JAX's tracing caches that a library may set.
- The store of the coordination service, in ``jax.experimental.multihost_utils``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Aval = Any  # jax.core.ShapedArray


def traced_apart(key: str) -> AbstractContextManager[None]:
    """JAX finds nothing inside that it has traced under another key: jitted functions and bodies of loops, too.

    For what depends on more than its arguments, as collectives do on the environment. Only for traces that are read
    and thrown away: the equations carry the key.
    """
    return set_xla_metadata(hccljax=key)


class _ProcessStore:
    """Texts by name that all processes of ``jax.distributed`` see."""

    def __init__(self, client: Any):
        self._client = client

    def put(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value)

    def get(self, key: str, seconds: float) -> str:
        try:
            return str(self._client.blocking_key_value_get(key, int(1000 * seconds)))
        except Exception as error:  # of a class that jaxlib names after its status
            if "DEADLINE_EXCEEDED" in str(error):
                raise TimeoutError(key) from None
            raise


def process_store() -> _ProcessStore | None:
    """The store of the processes that ``jax.distributed.initialize`` has joined; None where there is none."""
    from jax.experimental import multihost_utils  # a tenth of the time that hccljax takes to import

    client = multihost_utils.distributed.global_state.client  # type: ignore[attr-defined]
    return None if client is None else _ProcessStore(client)


def varying(x: Any) -> frozenset[str]:
    """The manual mesh axes over which x (an array or an abstract value) is typed as varying; empty when unchecked."""
    aval = x if hasattr(x, "manual_axis_type") else jax.typeof(x)
    return frozenset(aval.manual_axis_type.varying)


def unreduced(x: Any) -> frozenset[str]:
    """The manual mesh axes over which x is typed as unreduced or reduced: states only ``jax.lax`` handles."""
    kinds = jax.typeof(x).manual_axis_type
    return frozenset(kinds.unreduced) | frozenset(kinds.reduced)


def without_varying(aval: Aval, axes: Sequence[str]) -> Aval:
    """The abstract value with axes taken out of its varying set."""
    kinds = aval.manual_axis_type
    return aval.update(manual_axis_type=kinds.update(varying=kinds.varying - frozenset(axes)))


def newly_manual(shard_map: Mapping[str, Any]) -> Collection[str]:
    """The axes that a shard_map equation with these parameters maps (their name changed between 0.10.0 and 0.10.2)."""
    return shard_map["newly_manual_axes"] if "newly_manual_axes" in shard_map else shard_map["manual_axes"]


def is_manual(axis: str) -> bool:
    """True if a ``shard_map`` maps axis; False if vmap does."""
    return axis in jax.sharding.get_abstract_mesh().manual_axes


def is_checked(axis: str) -> bool:
    """True inside a ``shard_map`` that checks replication types over axis; False if unchecked or mapped by vmap."""
    return is_manual(axis) and axis in varying(lax.axis_index(axis))


def falsely_varying(index: jax.Array) -> frozenset[str]:
    """Axes over which an axis index is typed as varying although vmap maps them.

    In a loop body under vmap inside a checked shard_map, JAX (0.10.2) types ``axis_index`` of the vmap's axis so.
    """
    return varying(index) - frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def checked_axes(axes: Sequence[str]) -> tuple[str, ...]:
    """Those of axes over which replication types are checked."""
    return tuple(axis for axis in axes if is_checked(axis))


def mesh_order(axes: Sequence[str]) -> tuple[str, ...]:
    """axes in the order of the mesh around the code being traced or lowered.

    ``lax.ppermute`` over a tuple of axes numbers its ranks in mesh order whatever the order given (jax 0.10.2),
    unlike ``axis_index``, ``all_gather``, ``psum_scatter`` and ``all_to_all``, which follow the order given.
    """
    names = jax.sharding.get_abstract_mesh().axis_names
    return tuple(sorted(axes, key=names.index)) if set(axes) <= set(names) else tuple(axes)


def define(
    name: str,
    *,
    abstract_eval: Callable[..., Any],
    implementation: Callable[..., Any],
    batch: Callable[..., Any],
    multiple_results: bool = False,
) -> Primitive:
    """A primitive whose eager evaluation and whose lowering are one JAX function, with a named-axis batching rule.

    batch(axis_name, axis_size, args, dims, **params) returns (outputs, output dims).
    """
    primitive = Primitive(name)
    primitive.multiple_results = multiple_results
    primitive.def_abstract_eval(abstract_eval)
    primitive.def_impl(implementation)
    mlir.register_lowering(primitive, mlir.lower_fun(implementation, multiple_results=multiple_results))

    def fancy(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        return batch(axis_data.name, axis_data.size, args, dims, **params)

    batching.fancy_primitive_batchers[primitive] = fancy
    return primitive


def set_transpose(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Declares a primitive with one linear operand; rule(cotangent, operand, **params) gives [its cotangent]."""
    ad.deflinear2(primitive, rule)


def set_jvp(primitive: Primitive, rule: Callable[..., Any], transpose: Callable[..., Any] | None = None) -> None:
    """rule(primals, tangents, **params) → (outputs, tangents out); transpose(cotangents, *operands, **params)."""
    ad.primitive_jvps[primitive] = rule
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose


def dense(tangent: Any) -> Any:
    """A tangent or cotangent as an array, symbolic zeros written out."""
    return ad.instantiate_zeros(tangent)
