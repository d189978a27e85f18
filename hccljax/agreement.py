"""Processes agree on a collective before it runs: an error that names process and parameter, instead of a hang.

XLA runs what each process has compiled. If one process calls all_reduce with another shape, operator or algorithm than
the others, they wait for messages that never come. So the first time that a communicator over several processes is
about to run a program, its processes tell each other what they are about to run, through the store of JAX's
coordination service, without any device.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax

from hccljax.algorithm import Algorithm
from hccljax.environment import variables
from hccljax.errors import MismatchError, PeerTimeoutError, shown
from hccljax.primitives.compat import process_store
from hccljax.selection import Settings
from hccljax.selection.variables import connect_timeout

_CREATED: Counter[tuple[int, ...]] = Counter()
"""Communicators so far, by the processes that they span: all of these processes create them in the same order."""


class Store(Protocol):
    """What processes share: texts by name."""

    def put(self, key: str, value: str) -> None:
        """Keeps a value for all processes."""

    def get(self, key: str, seconds: float) -> str:
        """The value, once some process has put it; a TimeoutError if none has in time."""


@dataclass
class Agreement:
    """What a communicator's processes have agreed on.

    Attributes:
      name: of the communicator, the same on all of its processes.
      ranks: of each process.
      process: this one.
      store: that they share.
    """

    name: str
    ranks: Mapping[int, list[int]]
    process: int
    store: Store
    seen: set[Any] = field(default_factory=set)
    calls: Any = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def of(cls, devices: Sequence[Any]) -> Agreement | None:
        """The agreement of the processes that hold these devices, in rank order; None if it is one process."""
        ranks: dict[int, list[int]] = {}
        for rank, device in enumerate(devices):
            ranks.setdefault(device.process_index, []).append(rank)
        store = process_store() if len(ranks) > 1 else None
        if store is None:
            return None
        _CREATED[tuple(sorted(ranks))] += 1
        name = f"{'_'.join(map(str, sorted(ranks)))}/{_CREATED[tuple(sorted(ranks))]}"
        return cls(name, ranks, jax.process_index(), store)

    def check(
        self, key: Any, communicator: str, operator: str, arguments: Sequence[Any], options: Mapping[str, Any], x: Any
    ) -> None:
        """Returns when all processes are about to run this; for a program that they agreed on they are not asked again.

        Args:
          key: of the program, but for shapes and dtypes.
          communicator: what it is, in words.
          operator: its name.
          arguments: of the operator.
          options: of the operator, by name.
          x: array(s) that it gets.

        Raises:
          MismatchError: another process is about to run something else (EI0005).
          PeerTimeoutError: another process has not come here in HCCL_CONNECT_TIMEOUT seconds (EI0006).
          SettingError: HCCL_CONNECT_TIMEOUT is none (EI0001).
        """
        leaves, structure = jax.tree.flatten(x)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return  # part of a larger program, which is the caller's
        arrays = [f"{jax.numpy.result_type(leaf)}{list(jax.numpy.shape(leaf))}" for leaf in leaves]
        program = (key, structure, tuple(arrays))
        if program in self.seen:
            return
        mine = {
            "communicator": communicator,
            "operator": operator,
            "arguments": ", ".join(map(_text, arguments)),
            "options": ", ".join(f"{name}={_text(value)}" for name, value in sorted(options.items())),
            "structure": str(structure),
            "arrays": ", ".join(arrays),
            "settings": _text(replace(Settings.from_environment(), entry_log=False)),
        }
        self._compare(mine, next(self.calls))
        self.seen.add(program)

    def _compare(self, mine: Mapping[str, str], number: int) -> None:
        where, seconds = f"hccljax/{self.name}/{number}", connect_timeout(variables())
        self.store.put(f"{where}/{self.process}", json.dumps(mine))
        for other in sorted(set(self.ranks) - {self.process}):
            try:
                theirs = json.loads(self.store.get(f"{where}/{other}", seconds))
            except TimeoutError:
                raise PeerTimeoutError(
                    f"{self._who(other)} has not come to new program {number} of this communicator, "
                    f"{mine['operator']}, in {seconds} s (HCCL_CONNECT_TIMEOUT), while {self._who(self.process)} "
                    f"waits: it has failed, is slower than that, or calls other collectives; expected the same calls "
                    f"on all processes"
                ) from None
            for parameter, value in mine.items():
                if theirs.get(parameter) != value:
                    raise MismatchError(
                        f"{mine['operator']}, new program {number} of this communicator: {parameter} differs: "
                        f"{self._who(self.process)} has {shown(value)}, {self._who(other)} has "
                        f"{shown(theirs.get(parameter))}; expected the same on all processes"
                    )

    def _who(self, process: int) -> str:
        ranks = self.ranks[process]
        return f"process {process} (rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))})"


def _text(value: Any) -> str:
    """A value as all processes write it: no addresses."""
    return value.name if isinstance(value, Algorithm) else shown(value)
