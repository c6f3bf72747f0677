"""Reading what local tensors hold of stored slots: each rank for itself, or each stored byte once for all (SPEC 17.3).

Once for all: what several ranks hold is dealt out among them as it is when they save, cut at chunk boundaries, so that
each reads its share straight into its own tensor and sends it to the others that hold the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.distributed.description import Described, agree, describe
from ucpformat.distributed.group import Group, agreed
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.share import Assigned, SlotToShare, assignments, largest_part
from ucpformat.distributed.transport import Moved, strided_view, transport
from ucpformat.geometry import BoxIndex, Copy, LocalMap, Piece, canonical
from ucpformat.state_dict.tensors.local_tensors import copy_into, own_memory, same_memory
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.local_state import SlotName
    from ucpformat.geometry import Box
    from ucpformat.reader import Checkpoint
    from ucpformat.state_dict.tensors.local_tensors import LocalTensor
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.views import SlotView

__all__ = ["LoadReport", "WantedTensor", "read_tensors"]

_STAGED_BYTES: Final = 1 << 28

WantedTensor = tuple[str, "SlotView", "LocalTensor"]
"""A name for messages, the stored slot, and what this rank holds of it."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load took, in bytes, and what it left.

    ``needed`` are the elements that this rank holds, ``read`` what it fetched from the store for its own tensors and
    for others, checksummed blocks whole, documents left out; ``sent`` and ``received`` went between ranks. ``distinct``
    are the elements that all ranks hold, each counted once; None where they did not read once, and do not know.
    ``needed_by_all`` and ``read_by_all`` are sums over ranks.
    With ``strict=False``, ``missing`` are entries of this rank's state that the checkpoint lacks, which stay as they
    were, and ``unexpected`` what the checkpoint has in the same top-level entries and no rank asks for.
    """

    needed: int
    read: int
    sent: int
    received: int
    needed_by_all: int
    read_by_all: int
    distinct: int | None
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    @property
    def amplification(self) -> float | None:
        """Bytes fetched for each that some rank holds, over all ranks; None where that is not known."""
        return None if not self.distinct else self.read_by_all / self.distinct


def read_tensors(
    tensors: Sequence[WantedTensor], checkpoint: Checkpoint, group: Group, *, once: bool
) -> LoadReport:
    """Fill local tensors; every rank of ``group`` calls this.

    Raises:
        UcpError: on all ranks, what reading raises on one. What tensors then hold is not defined.
    """
    before = checkpoint.fetched
    moved = Moved()
    distinct = None
    if once and len(group.ranks) > 1:
        distinct = _Once(tensors, checkpoint, group, moved).run()
    else:

        def read() -> bytes:
            _read(tensors, checkpoint, group.rank)
            return b""

        agreed(group, read)
    needed = sum(
        local_map.mapped * slot.dtype.itemsize
        for _, slot, tensor in tensors
        if (local_map := tensor.local_map(group.rank)) is not None
    )
    fetched = checkpoint.fetched - before
    counts = [
        json.loads(reply)
        for reply in agreed(group, lambda: json.dumps([needed, fetched, distinct or 0]).encode())
    ]
    needed_by_all, read_by_all, distinct_of_all = map(sum, zip(*counts, strict=True))
    return LoadReport(
        needed,
        fetched,
        moved.sent,
        moved.received,
        needed_by_all,
        read_by_all,
        None if distinct is None else distinct_of_all,
    )


def _read(tensors: Sequence[WantedTensor], checkpoint: Checkpoint, rank: int) -> None:
    """Read straight into the memory of tensors, or by way of staging where that is elsewhere or of another kind."""
    batch = _Batch(checkpoint)
    for name, slot, tensor in tensors:
        local_map = tensor.local_map(rank)
        if local_map is None:  # pragma: no cover - `local_tensor` leaves such tensors out
            continue
        memory = batch.open(name, slot, tensor, local_map)
        batch.add(slot, memory, local_map.pieces)
        if batch.nbytes >= _STAGED_BYTES:
            batch.read()
            batch.close()
    batch.read()
    batch.close()


class _Batch:
    """Reads that go together, and what is copied from host memory afterwards: bounded, however large the state."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.nbytes = 0
        self._targets: list[tuple[StoredSlot, Box, NDArray[np.generic]]] = []
        self._checkpoint = checkpoint
        self._staged: dict[object, tuple[Any, NDArray[np.generic], str]] = {}

    def open(
        self, name: str, slot: SlotView, tensor: LocalTensor, local_map: LocalMap
    ) -> NDArray[np.generic]:
        """Return memory to read into, dense, of the type of the slot; what is padding in it is zero."""
        memory = own_memory(tensor, slot.stored.dtype.name, at=name)
        if memory is None:
            return self._stage(tensor, slot)
        if local_map.mapped != local_map.size and not tensor.in_buffer:
            memory[...] = np.zeros((), memory.dtype)
        return memory

    def _stage(self, tensor: LocalTensor, slot: SlotView) -> NDArray[np.generic]:
        """Return memory of the shape of the local tensor and the type of the slot; tensors of one buffer share it."""
        key: object = object()
        if tensor.in_buffer:
            key = same_memory(tensor.local)
            if key in self._staged:
                return self._staged[key][1]
            memory = tensor.array().copy()
        else:
            memory = np.zeros(tensor.local.shape, slot.dtype)
        self._staged[key] = (tensor.local, memory, slot.stored.dtype.name)
        self.nbytes += memory.nbytes
        return memory

    def add(self, slot: SlotView, memory: NDArray[np.generic], pieces: Sequence[Piece]) -> None:
        """Read pieces of a slot into memory, later."""
        for piece in pieces:
            self._targets.append((slot.stored, piece.box, _view(memory, piece, slot.dtype)))

    def read(self) -> None:
        """Read what was added."""
        self._checkpoint.read_boxes(self._targets)
        self._targets.clear()

    def close(self) -> None:
        """Copy what was staged to where it belongs."""
        for local, array, kind in self._staged.values():
            copy_into(local, array, kind)
        self._staged.clear()
        self.nbytes = 0


def _view(memory: NDArray[np.generic], piece: Piece, kind: np.dtype[Any]) -> NDArray[Any]:
    raw, item = memory.reshape(-1).view(np.uint8), kind.itemsize
    steps = tuple(step * item for step in piece.local.strides)
    return np.ndarray(piece.box.shape, kind, raw.data, piece.local.offset * item, steps)


class _Once:
    """One rank's part in reading every stored byte once."""

    def __init__(
        self, tensors: Sequence[WantedTensor], checkpoint: Checkpoint, group: Group, moved: Moved
    ) -> None:
        self._checkpoint = checkpoint
        self._group = group
        self._moved = moved
        self._wanted = dict(_numbered(tensors))

    def run(self) -> int:
        """Read and exchange, some tensors at a time; returns the bytes of elements that fell to this rank to read."""
        whole, _ = agree(self._group, lambda: (describe(self._described(), {}), b""))
        planned: list[tuple[dict[SlotName, list[Assigned]], list[list[SlotName]]]] = []

        def plan() -> bytes:
            slots = [self._to_share(whole, name) for name in sorted(whole.sources)]
            mine = [slot for slot in slots if slot.name in self._wanted]
            planned.append((assignments(mine, only=self._group.rank), list(_waves(slots))))
            return b""

        agreed(self._group, plan)
        ((assigned, waves),) = planned
        total = 0
        failure: Exception | None = None
        for wave in waves:
            batch = _Batch(self._checkpoint)
            parcels: list[_Parcel] = []

            def read(
                wave: Sequence[SlotName] = wave,
                batch: _Batch = batch,
                parcels: list[_Parcel] = parcels,
                failure: Exception | None = failure,
            ) -> bytes:
                if failure is not None:
                    raise failure
                parcels.extend(
                    self._parcel(name, assigned.get(name, ()), batch) for name in wave if name in self._wanted
                )
                batch.read()
                return b""

            agreed(self._group, read)
            transport(parcels, self._group, self._moved)
            total += sum(parcel.nbytes for parcel in parcels)
            try:
                batch.close()
            except Exception as error_:
                failure = error_

        def last() -> bytes:
            if failure is not None:
                raise failure
            return b""

        agreed(self._group, last)
        return total

    def _described(self) -> LocalState:
        atoms: dict[str, dict[str, SlotSpec]] = {}
        for (atom, key), (_, slot, tensor) in self._wanted.items():
            # The grid and the element are those of the slot, whatever the tensor is cast to.
            atoms.setdefault(atom, {})[key] = SlotSpec(
                slot.stored.dtype.name, slot.shape, tensor.layout, place=tensor.place
            )
        return LocalState([AtomSpec(name, slots) for name, slots in atoms.items()], {})

    def _to_share(self, whole: Described, name: SlotName) -> SlotToShare:
        stored = self._checkpoint[name[0]][name[1].partition("@")[0]].stored
        return SlotToShare(name, tuple(whole.sources[name]), stored.grid, stored.dtype.item_bytes)

    def _parcel(self, name: SlotName, assigned: Sequence[Assigned], batch: _Batch) -> _Parcel:
        at, slot, tensor = self._wanted[name]
        local_map = tensor.local_map(self._group.rank)
        if local_map is None:  # pragma: no cover - `local_tensor` leaves such tensors out
            raise AssertionError("a tensor of which nothing is held is not read")
        memory = batch.open(at, slot, tensor, local_map)
        parcel = _Parcel(self._group.rank, slot, memory, local_map, assigned)
        # Boxes were cut where others hold something else; what this rank reads is joined again.
        batch.add(slot, memory, canonical(parcel.reads, slot.shape))
        return parcel


def _numbered(tensors: Sequence[WantedTensor]) -> Iterator[tuple[SlotName, WantedTensor]]:
    """Yield tensors by atom and slot, numbered where a rank has a slot under several names."""
    counts: dict[SlotName, int] = {}
    for wanted in tensors:
        stored = wanted[1].stored
        slot = (stored.atom.name, stored.slot.name)
        number = counts[slot] = counts.get(slot, -1) + 1
        yield (slot[0], f"{slot[1]}@{number}"), wanted


def _waves(slots: Sequence[SlotToShare]) -> Iterator[list[SlotName]]:
    """Yield tensors that are read together, the same on all ranks: no rank holds much more than what may be staged."""
    wave: list[SlotName] = []
    nbytes = 0
    for slot in slots:
        size = largest_part(slot) * slot.item_bytes
        if wave and nbytes + size > _STAGED_BYTES:
            yield wave
            wave, nbytes = [], 0
        wave.append(slot.name)
        nbytes += size
    if wave:
        yield wave


class _Parcel:
    """What this rank holds of a slot, as a `transport.Parcel`: it sends what it has read, and receives the rest.

    Places are those in this rank's own memory on both sides; so it is the number of a box that orders messages, which
    any two of its holders count in the same order.
    """

    def __init__(
        self,
        rank: int,
        slot: SlotView,
        memory: NDArray[np.generic],
        local_map: LocalMap,
        assigned: Sequence[Assigned],
    ) -> None:
        self.item_bytes = slot.dtype.itemsize
        self._memory = memory.reshape(-1).view(f"V{self.item_bytes}")
        self.reads: list[Piece] = []
        self.sends: list[Copy] = []
        self.receives: list[Copy] = []
        self.nbytes = 0
        index = BoxIndex([piece.box for piece in local_map.pieces])
        for number, one in enumerate(assigned):
            # Every box lies in one piece of each of its holders: see `held_boxes`.
            (place,) = index.overlapping(one.box)
            piece = local_map.pieces[place].clip(one.box)
            if piece is None:  # pragma: no cover - they overlap
                raise AssertionError(f"{one.box} is not held")
            others = [other for other in one.holders if other != rank]
            if one.rank == rank:
                self.reads.append(piece)
                self.nbytes += piece.box.size * self.item_bytes
            pairs = [(rank, other) for other in others] if one.rank == rank else [(one.rank, rank)]
            copies = self.sends if one.rank == rank else self.receives
            copies.extend(
                Copy(giver, taker, one.box.shape, piece.local, piece.local, contribution=number)
                for giver, taker in pairs
            )

    def outgoing(self, copy: Copy) -> NDArray[np.void]:
        """Return the elements of a part of what this rank has read."""
        return strided_view(self._memory, copy.shape, copy.source)

    def incoming(self, copy: Copy) -> NDArray[np.void]:
        """Return where the elements of a part go that another rank has read."""
        return strided_view(self._memory, copy.shape, copy.target)
