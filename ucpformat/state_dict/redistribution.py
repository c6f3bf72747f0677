"""Moving the tensors of a live state from one layout to another: `ucpformat.redistribute`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.redistribution import Destination, RedistributionReport, redistribute_together
from ucpformat.distributed.save_options import Replicas
from ucpformat.distributed.transport import MESSAGE_BYTES
from ucpformat.errors import error, require_one_of
from ucpformat.geometry import Concat
from ucpformat.model.dtype import dtype
from ucpformat.state_dict.keys.paths import (
    StatePath,
    build,
    dotted,
    flatten,
    path_from_json,
    path_to_json,
)
from ucpformat.state_dict.tensors.local_tensors import (
    LocalTensor,
    TensorLayout,
    copy_into,
    destination_of,
    is_tensor,
    local_map_at,
    local_tensor,
    own_memory,
    same_memory,
    to_torch,
)
from ucpformat.state_dict.torch_group import group_of
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.description import Described
    from ucpformat.distributed.local_state import SlotName
    from ucpformat.jsonio import JsonValue

__all__ = ["redistribute"]

_SLOT = "value"


def redistribute(
    state: Mapping[str, Any] | None,
    into: dict[str, Any] | None = None,
    *,
    group: object = None,
    layouts: Mapping[str, TensorLayout] | None = None,
    target_layouts: Mapping[str, TensorLayout] | None = None,
    device: object = None,
    message_bytes: int = MESSAGE_BYTES,
    replicas: Replicas = "compare",
    report: Callable[[RedistributionReport], None] | None = None,
) -> dict[str, Any]:
    """Move tensors from the layout that a job holds them in to another, between the ranks of a group, with no file.

    Every rank of ``group`` (the default process group, unless given) calls this. ``state`` is what it holds: a nested
    dict, or None. DTensors tell how they are sharded, plain tensors and arrays are the same on every rank that has
    them, and ``layouts`` says it, by dotted path, of those that do not tell.

    With ``into``, a nested dict, its tensors are filled in place; ``target_layouts`` says how those are sharded that
    do not tell. Without it ``target_layouts`` names the tensors that are wanted, and this rank's parts of them are
    made: as torch tensors, on ``device`` or where this rank's own of that name is, else on the CPU, or as
    numpy arrays where the source is one. Tensors that ``target_layouts`` puts into one buffer share one. What is not
    a tensor stays as it is.
    The two sides need not have ranks in common. Tensors that nobody wants stay where they are.

    Where ranks hold different copies of a plain tensor, the first rank's is taken, as by `save`; with
    ``replicas="check"`` that is an error, and copies by a layout are compared as well; with ``"trust"`` nothing is.
    Bytes of replicas come from all that hold them, in turn, and no element is sent to a rank that has it. Pending
    reductions and factors are those of section 12 of the specification, bit by bit; entries of each coordinate's own
    move where the specification lets them. No message is larger than ``message_bytes``, and eight of them are in
    memory at once. ``report`` is told what this rank sent and received. Returns the new state, or ``into``.

    Raises:
        UcpError: on all ranks the same, before anything has moved: ``UCP-E-MISMATCH``, naming the tensor, for shapes
            and data types that differ, for what no rank holds, for memory that both sides share, and with
            ``replicas="check"`` for copies that differ; ``UCP-E-COVER``, ``UCP-E-LAYOUT``; and ``UCP-E-INEXACT`` for a
            factor that rounds, behind which targets are not defined.

    One rank that keeps what it has; under torchrun, tensors move between the ranks:

    >>> layout = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 1),)), (ucp.Shard("tp", 0, "even"),))
    >>> here = {"w": ucp.TensorLayout(layout, shape=(2, 2))}
    >>> ucp.redistribute({"w": np.ones((2, 2))}, layouts=here, target_layouts=here)["w"].tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if into is None and not target_layouts:
        message = "nothing would be moved: give into=, or target_layouts= with the tensors that are wanted"
        raise error("UCP-E-MISMATCH", message)
    if into is not None and device is not None:
        raise error("UCP-E-MISMATCH", "device= says where new tensors are made, and those of into= are there")
    if message_bytes < 1:
        raise error("UCP-E-LIMIT", f"a message has a byte at least, not {message_bytes}", at="message_bytes")
    require_one_of("replicas=", replicas, get_args(Replicas))
    together = group_of(group)
    moving = _Moving(together.rank, dict(layouts or {}), dict(target_layouts or {}), into, device)
    done = redistribute_together(
        lambda: moving.held(state or {}),
        moving.wanted,
        together,
        message_bytes=message_bytes,
        replicas=replicas,
    )
    if report is not None:
        report(done)
    if into is not None:
        return into
    return build({**moving.others, **moving.made()})


@dataclass(slots=True)
class _Staged:
    """Host memory for a tensor that cannot be written to as it is, and how many parcels have it open."""

    array: NDArray[np.generic]
    users: int = 0


class _Moving:
    """What one rank has on both sides."""

    def __init__(
        self,
        rank: int,
        source: Mapping[str, TensorLayout],
        target: Mapping[str, TensorLayout],
        into: dict[str, Any] | None,
        device: object,
    ) -> None:
        self._rank = rank
        self._source = source
        self._target = target
        self._into = into
        self._device = device
        self._held: dict[str, LocalTensor] = {}
        self._paths: dict[str, StatePath] = {}
        self._arrays: dict[str, NDArray[np.generic]] = {}
        self._buffers: dict[object, NDArray[np.generic]] = {}
        self._as_torch: dict[str, bool] = {}
        self._dtypes: dict[str, str] = {}
        self._staged: dict[object, _Staged] = {}
        self.others: dict[StatePath, object] = {}

    def held(self, state: Mapping[str, Any]) -> LocalState:
        """Return what this rank has of the source."""
        leaves = flatten(state, is_tensor)
        tensors = {dotted(path): leaf for path, leaf in leaves.items() if is_tensor(leaf)}
        self._paths = {dotted(path): path for path in leaves}
        self.others = {path: leaf for path, leaf in leaves.items() if not is_tensor(leaf)}
        self._require_named("layouts", self._source, tensors)
        self._held = _local_tensors(tensors, self._source, self._rank)
        return LocalState(
            [
                AtomSpec(name, {_SLOT: _spec(tensor, self._paths[name])})
                for name, tensor in self._held.items()
            ],
            {(name, _SLOT): tensor.array for name, tensor in self._held.items()},
        )

    def wanted(self, whole: Described) -> Mapping[SlotName, Destination]:
        """Return what this rank wants of the target."""
        if self._into is None:
            return dict(self._fresh(whole))
        leaves = flatten(self._into, is_tensor)
        tensors = {dotted(path): leaf for path, leaf in leaves.items() if is_tensor(leaf)}
        self._require_named("target_layouts", self._target, tensors)
        filled = _local_tensors(tensors, self._target, self._rank)
        _require_apart(self._held.items(), filled.items())
        for name, tensor in filled.items():
            if tensor.on_host:
                destination_of(tensor.local, at=name)
        return {(name, _SLOT): self._in_place(name, tensor) for name, tensor in filled.items()}

    def _require_named(
        self, side: str, declared: Mapping[str, TensorLayout], tensors: Mapping[str, object]
    ) -> None:
        """Refuse a layout of a tensor that this rank lacks, where by that layout it has some of it."""
        for name, held in declared.items():
            if name in tensors or local_map_at(held.layout, held.shape, held.place, self._rank) is None:
                continue
            message = f"{side}= says that this rank has a part of it, and the state has no such tensor"
            raise error("UCP-E-MISMATCH", message, at=name)

    def _in_place(self, name: str, tensor: LocalTensor) -> Destination:
        key = same_memory(tensor.local) if tensor.in_buffer else name

        def open_() -> NDArray[np.generic]:
            memory = own_memory(tensor, tensor.dtype, at=name)
            if memory is None:
                staged = self._staged.get(key)
                if staged is None:
                    # A copy: what is in a buffer beside this tensor stays.
                    staged = self._staged[key] = _Staged(np.array(tensor.array(), order="C"))
                staged.users += 1
                memory = staged.array
            local_map = tensor.local_map(self._rank)
            if local_map is not None and local_map.mapped != local_map.size and not tensor.in_buffer:
                memory[...] = np.zeros((), memory.dtype)
            return memory

        def close() -> None:
            staged = self._staged.get(key)
            if staged is None:
                return
            staged.users -= 1
            if not staged.users:
                copy_into(tensor.local, staged.array, tensor.dtype)
                del self._staged[key]

        return Destination(_spec(tensor, ()), open_, close)

    def _fresh(self, whole: Described) -> Iterable[tuple[SlotName, Destination]]:
        for name, held in self._target.items():
            atom = whole.atoms.get(name)
            if atom is None:
                raise error("UCP-E-MISMATCH", "no rank has this tensor in its state", at=name)
            local_map = local_map_at(held.layout, held.shape, held.place, self._rank)
            if local_map is None:
                continue
            found = atom.slots[_SLOT]
            self._as_torch[name] = bool(found.annotations.get("torch"))
            path = path_from_json(found.annotations.get("path"))
            self._dtypes[name] = found.dtype
            self._paths.setdefault(name, (name,) if path is None else path)
            spec = SlotSpec(found.dtype, held.shape, held.layout, place=held.place)
            yield (name, _SLOT), self._made(name, spec, local_map.shape)

    def _made(self, name: str, spec: SlotSpec, shape: tuple[int, ...]) -> Destination:
        key: object = name
        if spec.layout is not None and any(isinstance(step, Concat) for step in spec.layout.steps):
            key = (
                spec.layout,
                None if spec.place is None else (spec.place.totals, spec.place.axes),
                spec.dtype,
            )

        def open_() -> NDArray[np.generic]:
            if key not in self._buffers:
                self._buffers[key] = np.zeros(shape, dtype(spec.dtype).numpy)
            self._arrays[name] = self._buffers[key]
            return self._buffers[key]

        return Destination(spec, open_, lambda: None)

    def made(self) -> dict[StatePath, object]:
        """Return the tensors that were wanted, by path."""
        as_torch: dict[int, object] = {}
        found: dict[StatePath, object] = {}
        for name, array in self._arrays.items():
            tensor: object = array
            if self._as_torch[name]:
                if id(array) not in as_torch:
                    as_torch[id(array)] = self._on_device(name, array)
                tensor = as_torch[id(array)]
            found[self._paths[name]] = tensor
        return found

    def _on_device(self, name: str, array: NDArray[np.generic]) -> object:
        own = self._held.get(name)
        device = self._device or ("cpu" if own is None or own.on_host else own.local.device)
        tensor: Any = to_torch(array, self._dtypes[name])
        return tensor.to(device)


def _local_tensors(
    tensors: Mapping[str, object], declared: Mapping[str, TensorLayout], rank: int
) -> dict[str, LocalTensor]:
    found: dict[str, LocalTensor] = {}
    for name, leaf in tensors.items():
        tensor = local_tensor(leaf, rank=rank, held=declared.get(name), at=name)
        if tensor is not None:
            found[name] = tensor
    return found


def _spec(tensor: LocalTensor, path: StatePath) -> SlotSpec:
    notes: dict[str, JsonValue] = {
        "torch": not isinstance(tensor.local, np.ndarray),
        "path": path_to_json(path),
    }
    return SlotSpec(tensor.dtype, tensor.shape, tensor.layout, None, notes, tensor.place)


def _require_apart(
    held: Iterable[tuple[str, LocalTensor]], filled: Iterable[tuple[str, LocalTensor]]
) -> None:
    """Refuse targets in memory of the source, which would be overwritten before it is sent."""
    taken: dict[str, list[tuple[int, int, str]]] = {}
    for name, tensor in held:
        where, start, stop = _extent(tensor)
        if start < stop:
            taken.setdefault(where, []).append((start, stop, name))
    # By first byte, with the furthest last byte so far: tensors of the source may share memory with one another.
    reach: dict[str, list[tuple[int, str]]] = {}
    for where, ranges in taken.items():
        ranges.sort()
        reach[where] = list(accumulate(((stop, name) for _, stop, name in ranges), max))
    for name, tensor in filled:
        where, start, stop = _extent(tensor)
        before = bisect_left(taken.get(where, []), (stop,)) if start < stop else 0
        if before and reach[where][before - 1][0] > start:
            other = reach[where][before - 1][1]
            message = f"it lies in the memory of the source's {other!r}: give memory of its own, or a copy"
            raise error("UCP-E-MISMATCH", message, at=name)


def _extent(tensor: LocalTensor) -> tuple[str, int, int]:
    """Return where a local tensor lies: the device, and its first and last byte there."""
    local = tensor.local
    if isinstance(local, np.ndarray):
        where, start, item = "cpu", int(local.ctypes.data), local.itemsize
        steps = [(extent - 1) * step for extent, step in zip(local.shape, local.strides, strict=True)]
    else:
        where, start, item = str(local.device), local.data_ptr(), local.element_size()
        steps = [(extent - 1) * step * item for extent, step in zip(local.shape, local.stride(), strict=True)]
    if 0 in local.shape:
        return where, start, start
    # Strides of numpy may be negative.
    return where, start + sum(min(0, step) for step in steps), start + sum(map(max, steps, repeat(0))) + item
