"""Control flow while proving: loops run as often as they will, branches are taken as each rank takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn

from hccljax.errors import UnsupportedError
from hccljax.proof.movement import aligned
from hccljax.proof.values import AXIS, Data, unprovable
from hccljax.schedule.liveness import CALLS, scan_used, shaped, short_name
from hccljax.schedule.walk import communication_in

if TYPE_CHECKING:
    from hccljax.proof.interpret import Interpreter
Values = list[Any]
Flags = Sequence[bool]
Handler = Callable[["Interpreter", JaxprEqn, Values, Flags], Values]


def _opened(inner: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """A jaxpr and its constants."""
    return (inner, ()) if isinstance(inner, Jaxpr) else (inner.jaxpr, inner.consts)


def _call(walker: Interpreter, equation: JaxprEqn, operands: Values, used: Flags) -> Values:
    name = short_name(equation)
    jaxpr, consts = _opened(equation.params[CALLS[name]])
    return walker.walk(jaxpr, consts, operands, used)


def _linked(walker: Interpreter, equation: JaxprEqn, operands: Values, used: Flags) -> Values:
    fun = equation.params["forward"]
    avals = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in shaped(equation.invars))
    if (fun, avals) not in walker.traced:
        walker.traced[fun, avals] = jax.make_jaxpr(fun, axis_env=[(AXIS, walker.p)])(*avals)
    return walker.walk(*_opened(walker.traced[fun, avals]), operands, used)


def _scan(walker: Interpreter, equation: JaxprEqn, operands: Values, used: Flags) -> Values:
    body, closed = _opened(equation.params["jaxpr"])
    first, carries = equation.params["num_consts"], equation.params["num_carry"]
    consts, carry, sliced = operands[:first], operands[first : first + carries], operands[first + carries :]
    flags, length = scan_used(equation, tuple(used)), equation.params["length"]
    rows: list[Values] = []
    for i in reversed(range(length)) if equation.params["reverse"] else range(length):
        slices = [_at(xs, i) for xs in sliced]
        out = walker.walk(body, closed, [*consts, *carry, *slices], flags)
        carry = out[:carries]
        rows.append(out[carries:])
    if equation.params["reverse"]:
        rows.reverse()
    return [*carry, *(_stacked(walker, [row[k] for row in rows]) for k in range(len(used) - carries))]


def _at(value: Any, i: int) -> Any:
    """Row i of what a scan runs over."""
    return Data(value.codes[:, i]) if isinstance(value, Data) else value if value is None else value[:, i]


def _stacked(walker: Interpreter, column: Values) -> Any:
    if not column or column[0] is None:
        return None
    if not any(isinstance(value, Data) for value in column):
        return np.stack(aligned(column), 1)
    return Data(np.stack(aligned([walker.data(value) for value in column]), 1))


def _cond(walker: Interpreter, equation: JaxprEqn, operands: Values, used: Flags) -> Values:
    branches = equation.params["branches"]
    index, *inputs = operands
    which = np.clip(_decided(index, "cond").astype(np.int64), 0, len(branches) - 1)
    taken = np.unique(which)
    if len(taken) > 1:
        _refuse_communication("cond", [_opened(branch)[0] for branch in branches], which)
    outputs = {int(k): walker.walk(*_opened(branches[k]), inputs, used) for k in taken}
    if len(taken) == 1:
        return outputs[int(taken[0])]
    columns: Any = zip(*outputs.values(), strict=True)
    position = np.searchsorted(taken, which)
    return [None if column[0] is None else walker.select(position, column) for column in columns]


def _while(walker: Interpreter, equation: JaxprEqn, operands: Values, used: Flags) -> Values:
    params = equation.params
    condition, body = _opened(params["cond_jaxpr"]), _opened(params["body_jaxpr"])
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    carry = operands[second:]
    while True:
        (goes_on,) = walker.walk(*condition, [*operands[:first], *carry], [True])
        goes_on = _decided(goes_on, "while")
        if not goes_on.any():
            return carry
        new = walker.walk(*body, [*operands[first:second], *carry], [True] * len(carry))
        if not goes_on.all():
            _refuse_communication("while", [condition[0], body[0]], goes_on)
            pairs: Any = zip(carry, new, strict=True)
            new = [walker.select(goes_on.astype(np.int64), pair) for pair in pairs]
        carry = new


def _decided(condition: Any, name: str) -> np.ndarray:
    if not isinstance(condition, np.ndarray):
        raise unprovable(f"decides a {name!r} by the data")
    return condition


def _refuse_communication(name: str, jaxprs: Sequence[Jaxpr], which: np.ndarray) -> None:
    found = next(filter(None, map(communication_in, jaxprs)), None)
    if found is not None:
        other = int(np.flatnonzero(which != which[0])[0])
        raise UnsupportedError(
            f"ranks 0 and {other} go different ways in a {name!r} that contains the communication "
            f"{short_name(found)!r}: they would wait for each other for ever; expected the communication outside, and "
            f"its result selected"
        )


CONTROL: dict[str, Handler] = {
    **dict.fromkeys((*(name for name in CALLS if name != "shard_map"),), _call),
    "hccl_linear": _linked,
    "hccl_reduce": _linked,
    "scan": _scan,
    "cond": _cond,
    "while": _while,
}
"""Primitives that run other jaxprs."""
