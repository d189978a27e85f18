"""Communicator: the collectives on arrays with a leading rank axis, jitted once and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import hccljax.collectives as collectives
from hccljax.agreement import Agreement
from hccljax.algorithm import Algorithm
from hccljax.algorithm.base import registered_so_far
from hccljax.collectives.counts import checked_counts, checked_matrix
from hccljax.collectives.leaf import as_array
from hccljax.errors import ArgumentError, HcclError, shown
from hccljax.group import Group
from hccljax.layout import checked_pairs
from hccljax.partition import Uneven, sizes_text, split
from hccljax.selection import Decision, Settings, choose
from hccljax.selection.choice import OfCommunicator
from hccljax.selection.explanation import explain
from hccljax.staging import all_reduced, as_rows, is_staged, keeps_dtype
from hccljax.topology import Topology, as_topology
from hccljax.training.sizing import bucket_size
from hccljax.training.sync import in_buckets

EXECUTORS = ("auto", "devices", "virtual")
AXIS = "rank"


class Options(TypedDict, total=False):
    """Keywords that every collective takes."""

    algorithm: str | Algorithm | None
    topology: str | Topology | None


class ExchangeOptions(Options, total=False):
    """Keywords of all_to_all."""

    tiled: bool


class BlockOptions(ExchangeOptions, total=False):
    """Keywords of collectives that add or lengthen a dimension."""

    axis: int


class ScatterOptions(ExchangeOptions, total=False):
    """Keywords of collectives that cut a dimension."""

    scatter_dimension: int


class ReduceOptions(Options, total=False):
    """Keywords of collectives that add up."""

    accumulate_dtype: Any


class ReduceScatterOptions(ScatterOptions, ReduceOptions, total=False):
    """Keywords of reduce_scatter."""


class Communicator:
    """A set of ranks, and the collectives over arrays ``x`` with ``x.shape[0] == size``: row r is rank r's array.

    The results have the same leading axis. Each collective is compiled once for its arguments, shapes and settings;
    later calls cost a dictionary look-up and JAX's own dispatch. HCCL_ALGO is read at every call.

    >>> comm = hccljax.Communicator(4)
    >>> comm.all_reduce(jnp.arange(4.0))
    Array([6., 6., 6., 6.], dtype=float32)
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        executor: str = "auto",
        algorithm: str | Algorithm | None = None,
        topology: str | Topology | None = None,
        devices: Sequence[Any] | None = None,
        groups: Iterable[Sequence[int]] | None = None,
    ):
        """A communicator of ``size`` ranks.

        Args:
          size: the number of ranks; None takes all devices.
          executor: ``"devices"`` runs one rank on each device (``shard_map``), ``"virtual"`` all ranks on one device
            (``vmap``), ``"auto"`` takes devices where there are enough. Results are the same to the last bit, except
            those of ``native``.
          algorithm: for every collective that names none itself; it beats HCCL_ALGO.
          topology: the tiers, such as ``"4x8"`` for 4 servers of 8 ranks, or ``"5+3"`` for servers of 5 and 3.
          devices: the devices to use, in rank order; None is ``jax.devices()``.
          groups: lists of ranks that cover all ranks; the collectives work in each on its own (see ``split``).

        Raises:
          ArgumentError: a size, executor, topology or groups that do not fit together, too few devices, or an unknown
            algorithm.
        """
        if executor not in EXECUTORS:
            raise ArgumentError(f"executor={shown(executor)}: expected one of {', '.join(map(repr, EXECUTORS))}")
        devices = jax.devices() if devices is None else list(devices)
        if not devices:
            raise ArgumentError("devices=[]: expected at least one device, or None for jax.devices()")
        size = len(devices) if size is None else _checked_size(size)
        if executor == "devices" and size > len(devices):
            raise ArgumentError(
                f"executor='devices' needs {size} devices, but there are {len(devices)}; use executor='virtual', or "
                f"start with XLA_FLAGS=--xla_force_host_platform_device_count={size}"
            )
        self.size = size
        self.executor = executor if executor != "auto" else ("devices" if size <= len(devices) else "virtual")
        self._algorithm = algorithm
        self._topology = as_topology(topology)
        self.devices = tuple(devices[:size] if self.executor == "devices" else devices[:1])
        self.group = Group(AXIS, groups)
        self.group.resolved_for(size)
        for members in self._group_sizes:
            if self.topology is not None and self.topology.ranks != members:
                raise ArgumentError(
                    f"topology {self.topology} has {self.topology.ranks} ranks, but each group has {members}; "
                    f"expected a topology whose sizes multiply to {members}"
                )
            # An unknown algorithm is refused here, not by the first collective.
            choose("all_reduce", 0, members, OfCommunicator(algorithm), self.topology, settings=Settings())
        self._mesh = Mesh(np.array(self.devices), (AXIS,), axis_types=(AxisType.Auto,))
        self._sharding = NamedSharding(self._mesh, PartitionSpec(AXIS))
        self._spans_processes = len({device.process_index for device in self.devices}) > 1
        self._agreement = Agreement.of(self.devices)
        elsewhere = self.executor == "virtual" and self.devices[0] != jax.devices()[0]
        self._puts = self._spans_processes or elsewhere
        self._compiled: dict[Any, Callable[[Any], Any]] = {}

    @property
    def algorithm(self) -> str | Algorithm | None:
        """What collectives that name no algorithm use; None is HCCL_ALGO or the policy."""
        return self._algorithm

    @property
    def topology(self) -> Topology | None:
        """The tiers of each group; None for one flat server."""
        return self._topology

    @property
    def group_size(self) -> int:
        """Ranks in each group: the size, unless the communicator was split; an ArgumentError if groups differ."""
        return self.size if self.group.layout is None else self.group.layout.p

    @property
    def _group_sizes(self) -> tuple[int, ...]:
        """Ranks in the groups, one entry for each size, the largest first."""
        return (self.size,) if self.group.layout is None else tuple(one.size for one in self.group.classes)

    def split(self, groups: Iterable[Sequence[int]]) -> Communicator:
        """A communicator of the same ranks that works in groups, all at the same time.

        Arrays keep their leading axis of ``size`` rows. Each list holds ranks of this communicator (of one of its
        groups, if it is split already: every group is then split alike); together they hold every rank exactly once.
        Where lists differ in length, all_reduce, broadcast, reduce, send_recv and barrier work; see
        ``hccljax.Group``. The result has no topology.

        Raises:
          ArgumentError: ranks that repeat, are missing or out of range, or groups that cannot be split alike, since
            they differ in size.
        """
        if groups is None:
            raise ArgumentError("groups=None: expected lists of ranks, such as [[0, 1], [2, 3]]")
        parts = Group(AXIS, groups).resolved_for(self.group_size)
        whole = self.group.layout
        members = parts if whole is None or isinstance(whole, Uneven) else split(whole, parts)
        return Communicator(
            self.size, executor=self.executor, algorithm=self.algorithm, devices=self.devices, groups=members.groups
        )

    def put(self, x: Any) -> Any:
        """x placed with row r on rank r's device, so that collectives need not move it there first.

        Args:
          x: array(s) with a leading axis of ``size`` rows. Across processes, every process passes the same values.
        """
        return jax.tree.map(self._put, x)

    def explain(
        self,
        operator: str,
        nbytes: int,
        *,
        algorithm: str | Algorithm | None = None,
        accumulate_dtype: Any = None,
    ) -> Decision:
        """The Decision for a message of nbytes on each rank; see ``hccljax.explain``."""
        asked = OfCommunicator(self.algorithm) if algorithm is None else algorithm
        ranks = self.size if self.group.layout is None else self.group
        return explain(operator, nbytes, ranks, self.topology, asked, accumulate_dtype)

    def all_reduce(self, x: Any, op: str = "sum", **options: Unpack[ReduceOptions]) -> Any:
        """x [size, …] → [size, …]: every row is the reduction of its group's rows; see ``hccljax.all_reduce``."""
        return self._call("all_reduce", x, (op,), options)

    def all_reduce_tree(
        self, tree: Any, op: str = "sum", *, bucket_bytes: int | str | None = None, **options: Unpack[ReduceOptions]
    ) -> Any:
        """A pytree of [size, …] → the same: all_reduce of every leaf, in few long messages.

        On CPU devices leaves are packed into buffers of a few sizes, whose programs another tree finds compiled; each
        buffer is given to its program, which leaves the result in it. On accelerators, and under ``jax.jit``, packing
        is part of the program: one for each tree.

        Args:
          tree: array(s) with a leading axis of ``size`` rows.
          op: as for ``all_reduce``.
          bucket_bytes: the most bytes of several leaves together on one rank, as for ``hccljax.sync_gradients``.
          options: as for ``all_reduce``.
        """
        tiers = as_topology(options.get("topology")) or self.topology
        asked = options.get("algorithm") or OfCommunicator(self.algorithm)
        longest = bucket_size(bucket_bytes, self._group_sizes[0], asked, tiers, len(self._group_sizes) > 1)
        if self._spans_processes or self.devices[0].platform != "cpu" or not is_staged(tree):
            return self._call("in_buckets", tree, (op, longest), options)
        return all_reduced(
            jax.tree.map(lambda leaf: self._checked_rows(leaf, as_rows), tree),
            longest,
            self._sharding if self.executor == "devices" else SingleDeviceSharding(self.devices[0]),
            lambda buffer: self._call("all_reduce", buffer, (op,), options, donates=keeps_dtype(buffer.dtype, op)),
        )

    def reduce_scatter(self, x: Any, op: str = "sum", **options: Unpack[ReduceScatterOptions]) -> Any:
        """x [size, p, …] → [size, …]: row r is block r of the reduction; see ``hccljax.reduce_scatter``."""
        return self._call("reduce_scatter", x, (op,), options)

    def all_gather(self, x: Any, **options: Unpack[BlockOptions]) -> Any:
        """x [size, …] → [size, p, …]: every row holds its group's rows; see ``hccljax.all_gather``."""
        return self._call("all_gather", x, (), options)

    def broadcast(self, x: Any, root: int = 0, **options: Unpack[Options]) -> Any:
        """x [size, …] → [size, …]: every row is its group's row ``root``; see ``hccljax.broadcast``."""
        return self._call("broadcast", x, (root,), options)

    def reduce(self, x: Any, op: str = "sum", root: int = 0, **options: Unpack[ReduceOptions]) -> Any:
        """x [size, …] → [size, …]: the reduction in each group's row ``root``, else zeros; see ``hccljax.reduce``."""
        return self._call("reduce", x, (op, root), options)

    def scatter(self, x: Any, root: int = 0, **options: Unpack[ScatterOptions]) -> Any:
        """x [size, p, …] → [size, …]: row r is block r of row ``root``; see ``hccljax.scatter``."""
        return self._call("scatter", x, (root,), options)

    def gather(self, x: Any, root: int = 0, **options: Unpack[BlockOptions]) -> Any:
        """x [size, …] → [size, p, …]: row ``root`` holds its group's rows, zeros elsewhere; see ``hccljax.gather``."""
        return self._call("gather", x, (root,), options)

    def all_to_all(self, x: Any, split_axis: int = 0, concat_axis: int = 0, **options: Unpack[ExchangeOptions]) -> Any:
        """x [size, p, …] → [size, p, …]: block i of row r goes to row i; see ``hccljax.all_to_all``.

        The axes are those of one row.
        """
        return self._call("all_to_all", x, (split_axis, concat_axis), options)

    def all_gather_v(self, x: Any, counts: Sequence[int], **options: Any) -> Any:
        """x [size, most, …] → [size, sum, …]: counts[r] entries of each row r; see ``hccljax.all_gather_v``."""
        return self._call("all_gather_v", x, (checked_counts(counts, self.group_size),), options)

    def reduce_scatter_v(self, x: Any, counts: Sequence[int], op: str = "sum", **options: Any) -> Any:
        """x [size, sum, …] → [size, most, …]: row r is block r of the reduction; see ``hccljax.reduce_scatter_v``."""
        return self._call("reduce_scatter_v", x, (checked_counts(counts, self.group_size), op), options)

    def all_to_all_v(self, x: Any, send_counts: Any, *, send_offsets: Any = None, **options: Any) -> Any:
        """x [size, p, capacity, …], send_counts [size, p] → (blocks, recv_counts, dropped), each with rows in front.

        Row r sends send_counts[r, j] rows of its block j to row j; see ``hccljax.all_to_all_v``. send_offsets is
        [size, p] too.
        """
        return self._call("all_to_all_v", (x, send_counts, send_offsets), (), options)

    def all_to_all_vc(self, x: Any, matrix: Sequence[Sequence[int]], **options: Any) -> Any:
        """x [size, n, …] → [size, m, …]: matrix[i][j] rows go from row i to row j; see ``hccljax.all_to_all_vc``."""
        return self._call("all_to_all_vc", x, (checked_matrix(matrix, self.group_size),), options)

    def send_recv(self, x: Any, pairs: Iterable[Sequence[int]]) -> Any:
        """x [size, …] → [size, …]: row d is row s of each pair (s, d), zeros elsewhere; see ``hccljax.send_recv``."""
        return self._call("send_recv", x, (self._checked_pairs(pairs),), {})

    def barrier(self, x: Any) -> Any:
        """x unchanged, once every rank has reached this point; see ``hccljax.barrier``."""
        return self._call("barrier", x, (), {})

    def __repr__(self) -> str:
        groups = "" if self.group.layout is None else f", in groups of {sizes_text(self.group.layout)}"
        tiers = "" if self.topology is None else f", topology {self.topology}"
        by = "" if self.algorithm is None else f", algorithm {getattr(self.algorithm, 'name', self.algorithm)}"
        return f"Communicator({self.size} ranks{groups}{tiers}{by}, {self.executor})"

    def _call(
        self, operator: str, x: Any, arguments: tuple[Any, ...], options: Mapping[str, Any], donates: bool = False
    ) -> Any:
        # The types too: 1 and 1.0 are equal, but only one of them is a root. A newly registered algorithm may be the
        # one that a name or the policy means from now on.
        named = [(name, type(options[name]), options[name]) for name in sorted(options)]
        key = (
            operator,
            donates,
            arguments,
            *map(type, arguments),
            *named,
            registered_so_far(),
            Settings.from_environment(),
        )
        try:
            compiled = self._compiled.get(key)
        except TypeError:
            raise ArgumentError(
                f"{operator} got {shown(arguments)} {shown(options)}: expected hashable arguments"
            ) from None
        if compiled is None:
            compiled = self._compiled[key] = self._compile(operator, arguments, options, donates)
        if self._agreement is not None:
            self._agreement.check(key, repr(self), operator, arguments, options, x)
        try:
            return compiled(self.put(x) if self._puts else x)
        except HcclError:
            self._compiled.pop(key, None)
            raise

    def _compile(
        self, operator: str, arguments: tuple[Any, ...], options: Mapping[str, Any], donates: bool
    ) -> Callable[[Any], Any]:
        collective = _OWN.get(operator) or getattr(collectives, operator)
        if operator not in ("send_recv", "barrier"):
            options = {name: value for name, value in options.items() if value is not None}
            options = {"topology": self.topology, "algorithm": OfCommunicator(self.algorithm), **options}

        def one_rank(x: Any) -> Any:
            return collective(x, self.group, *arguments, **options)

        def all_ranks(x: Any) -> Any:
            x = jax.tree.map(self._checked_rows, x)
            if self.executor == "virtual":
                return jax.vmap(one_rank, axis_name=AXIS, axis_size=self.size)(x)
            spec = PartitionSpec(AXIS)
            return jax.shard_map(one_device, mesh=self._mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)

        def one_device(rows: Any) -> Any:
            return jax.tree.map(lambda out: out[None], one_rank(jax.tree.map(lambda row: row[0], rows)))

        return jax.jit(all_ranks, donate_argnums=0 if donates else ())

    def _checked_pairs(self, pairs: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
        if self.group.layout is None:
            return checked_pairs(pairs, self.size)
        return self.group.checked_pairs(pairs).explicit

    def _checked_rows(self, leaf: Any, convert: Callable[[Any], Any] = as_array) -> Any:
        x = convert(leaf)
        if x.ndim == 0 or x.shape[0] != self.size:
            raise ArgumentError(
                f"array of shape {x.shape}: expected a leading axis of {self.size} rows, one for each rank "
                f"(rank r's array is x[r])"
            )
        return x

    def _put(self, leaf: Any) -> Any:
        x = self._checked_rows(leaf)
        if isinstance(x, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(x, self._sharding) if self.executor == "devices" else x
        if x.sharding == self._sharding:
            return x
        if not self._spans_processes:
            return jax.device_put(x, self._sharding if self.executor == "devices" else self.devices[0])
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, self._sharding, lambda index: values[index])


def _exchange_rows(operands: tuple[Any, Any, Any], group: Group, **options: Any) -> Any:
    """all_to_all_v of (x, send_counts, send_offsets): its counts are arrays of the ranks, as x is."""
    x, send_counts, send_offsets = operands
    return collectives.all_to_all_v(x, group, send_counts, send_offsets=send_offsets, **options)


def _in_buckets(tree: Any, group: Group, *arguments: Any, **options: Any) -> Any:
    """all_reduce of a tree of one rank."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, in_buckets(leaves, group, *arguments, **options))


_OWN: dict[str, Callable[..., Any]] = {"all_to_all_v": _exchange_rows, "in_buckets": _in_buckets}
"""Operators whose arguments are not those of the collective of their name."""


def _checked_size(size: Any) -> int:
    if isinstance(size, bool) or not hasattr(size, "__index__") or size.__index__() < 1:
        raise ArgumentError(f"size={shown(size)}: expected the number of ranks, 1 or more")
    return size.__index__()
