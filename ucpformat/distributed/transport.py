"""Carrying out plans over a group: parts of many tensors between ranks, in messages of bounded size.

What goes from one rank to another is cut and put together to messages in an order that both sides derive from their
own part of the plans. Ranks meet in shifts: in shift ``s`` a rank sends to the one ``s`` places behind it in the group
and receives from the one ``s`` places before it, a few shifts at a time. So nobody waits for a rank that waits for it,
and no more than `LANES` messages each way are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from ucpformat.geometry import Copy, Strided, cut_copy, in_message_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.group import Bytes, Group

__all__ = ["LANES", "MESSAGE_BYTES", "Moved", "Parcel", "strided_view", "transport"]

LANES: Final = 4
MESSAGE_BYTES: Final = 1 << 24


class Parcel(Protocol):
    """One tensor on this rank: what of it is sent, received and kept.

    `transport` calls `outgoing` once for a part that is sent or kept, and `incoming` for one that is received or kept.
    Neither `outgoing` nor `incoming` raises: where the memory of a tensor cannot be had, they give any other, and the
    failure is kept for later, because other ranks wait for the messages.
    """

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        ...

    @property
    def sends(self) -> Sequence[Copy]:
        """What other ranks get."""
        ...

    @property
    def receives(self) -> Sequence[Copy]:
        """What other ranks give."""
        ...

    def outgoing(self, copy: Copy) -> NDArray[np.void]:
        """Return the elements of a part of a copy, in its shape, raw."""
        ...

    def incoming(self, copy: Copy) -> NDArray[np.void]:
        """Return where the elements of a part of a copy go, in its shape, raw."""
        ...


@dataclass(slots=True)
class Moved:
    """What this rank has sent and received: messages and bytes; and most bytes that were staged for it at once."""

    messages: int = 0
    sent: int = 0
    received: int = 0
    staged: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    parcel: Parcel
    copy: Copy

    @property
    def nbytes(self) -> int:
        return self.copy.size * self.parcel.item_bytes


def strided_view(memory: NDArray[np.void], shape: tuple[int, ...], place: Strided) -> NDArray[np.void]:
    """Return elements of a dense 1-D memory, seen as ``shape``, which is not empty."""
    item = memory.itemsize
    steps = tuple(step * item for step in place.strides)
    return np.ndarray(shape, memory.dtype, memory.data, place.offset * item, steps)


def transport(
    parcels: Iterable[Parcel], group: Group, moved: Moved, *, message_bytes: int | None = None
) -> None:
    """Send and receive what ``parcels``, the same tensors in the same order on all ranks, say; count it in ``moved``.

    A rank that has no part in a tensor may leave it out. A message is larger than ``message_bytes``, by default
    `MESSAGE_BYTES`, only where one element is.

    Raises:
        Whatever the group raises where a rank is gone, and nothing else.
    """
    if message_bytes is None:
        message_bytes = MESSAGE_BYTES
    sends, receives = _by_peer(parcels, message_bytes)
    ranks = list(group.ranks)
    count, mine = len(ranks), ranks.index(group.rank)
    meeting = {(ranks.index(rank) - mine) % count for rank in sends}
    meeting |= {(mine - ranks.index(rank)) % count for rank in receives}
    for first in sorted({1 + (shift - 1) // LANES * LANES for shift in meeting}):
        shifts = range(first, min(count, first + LANES))
        outgoing = {
            rank: _messages(sends.get(rank, ()), message_bytes)
            for rank in (ranks[(mine + shift) % count] for shift in shifts)
        }
        incoming = {
            rank: _messages(receives.get(rank, ()), message_bytes)
            for rank in (ranks[(mine - shift) % count] for shift in shifts)
        }
        while True:
            giving = {rank: parts for rank, found in outgoing.items() if (parts := next(found, None))}
            taking = {rank: parts for rank, found in incoming.items() if (parts := next(found, None))}
            if not giving and not taking:
                break
            _exchange(giving, taking, group, moved)


_Parts = Sequence[_Part]


def _by_peer(
    parcels: Iterable[Parcel], message_bytes: int
) -> tuple[dict[int, list[_Part]], dict[int, list[_Part]]]:
    """Return what goes to, and comes from, each rank, in the order of messages, no part larger than a message."""
    sends: dict[int, list[_Part]] = {}
    receives: dict[int, list[_Part]] = {}
    for parcel in parcels:
        most = max(1, message_bytes // parcel.item_bytes)
        for found, copies, by_target in ((sends, parcel.sends, True), (receives, parcel.receives, False)):

            def peer(copy: Copy, by_target: bool = by_target) -> int:
                return copy.target_rank if by_target else copy.source_rank

            for rank, of_peer in groupby(sorted(copies, key=peer), key=peer):
                found.setdefault(rank, []).extend(
                    _Part(parcel, part) for copy in in_message_order(of_peer) for part in cut_copy(copy, most)
                )
    return sends, receives


def _messages(parts: _Parts, message_bytes: int) -> Iterator[_Parts]:
    message: list[_Part] = []
    nbytes = 0
    for part in parts:
        if message and nbytes + part.nbytes > message_bytes:
            yield message
            message, nbytes = [], 0
        message.append(part)
        nbytes += part.nbytes
    if message:
        yield message


def _exchange(giving: Mapping[int, _Parts], taking: Mapping[int, _Parts], group: Group, moved: Moved) -> None:
    """Send one message to, and receive one from, each rank; a message of one dense run is not staged."""
    staged = 0
    sends: dict[int, Bytes] = {}
    receives: dict[int, Bytes] = {}
    unpacked: list[tuple[_Parts, Bytes]] = []
    for rank, parts in giving.items():
        sends[rank], direct = _packed(parts)
        moved.sent += sends[rank].size
        moved.messages += 1
        staged += 0 if direct else sends[rank].size
    for rank, parts in taking.items():
        memory = _dense(parts[0].parcel.incoming(parts[0].copy)) if len(parts) == 1 else None
        if memory is None:
            memory = np.empty(sum(part.nbytes for part in parts), np.uint8)
            unpacked.append((parts, memory))
            staged += memory.size
        receives[rank] = memory
        moved.received += memory.size
    moved.staged = max(moved.staged, staged)
    group.exchange(sends, receives)
    for parts, memory in unpacked:
        for part, data in _laid_out(parts, memory):
            part.parcel.incoming(part.copy)[...] = data


def _packed(parts: _Parts) -> tuple[Bytes, bool]:
    """Return the bytes of a message, and whether they are memory of the tensor itself."""
    if len(parts) == 1:
        elements = parts[0].parcel.outgoing(parts[0].copy)
        memory = _dense(elements)
        if memory is not None:
            return memory, True
    memory = np.empty(sum(part.nbytes for part in parts), np.uint8)
    for part, place in _laid_out(parts, memory):
        place[...] = part.parcel.outgoing(part.copy)
    return memory, False


def _dense(elements: NDArray[np.void]) -> Bytes | None:
    """Return the bytes of elements that lie together in row-major order."""
    return elements.reshape(-1).view(np.uint8) if elements.flags.c_contiguous else None


def _laid_out(parts: _Parts, memory: Bytes) -> Iterator[tuple[_Part, NDArray[np.void]]]:
    """Yield the parts of a message and where each lies in it."""
    position = 0
    for part in parts:
        elements = memory[position : position + part.nbytes].view(f"V{part.parcel.item_bytes}")
        yield part, elements.reshape(part.copy.shape)
        position += part.nbytes
