"""Receipts: what one writer of an attempt has stored, on its way to the one that commits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.geometry import Box
from ucpformat.model.packs import Pack
from ucpformat.model.table import Segment
from ucpformat.storage.checksum import Cut
from ucpformat.storage.chunk_writer import StoredChunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.local_state import SlotName
    from ucpformat.jsonio import JsonValue
    from ucpformat.storage.written import WrittenSlot

__all__ = ["Receipt", "stored_chunks"]

_HEADER_BYTES: Final = 8
_NONE: Final = -1

Stored = tuple["SlotName", int, StoredChunk]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Packs with their lengths, chunks of slots whose containers count those packs, and values, still encoded.

    ``entries`` are those of values that differ from rank to rank: position and entry, by name.
    """

    packs: Sequence[Pack]
    stored: Sequence[Stored]
    values: Mapping[str, JsonValue]
    entries: Mapping[str, list[JsonValue]] = field(default_factory=dict)

    def pack(self, slots: Sequence[SlotName]) -> bytes:
        """As bytes; ``slots`` are the names by which both sides count."""
        header = json.dumps(
            {
                "packs": [[pack.key, pack.length] for pack in self.packs],
                "values": dict(self.values),
                "entries": dict(self.entries),
            },
            separators=(",", ":"),
        ).encode()
        numbers: list[int] = []
        place = {name: index for index, name in enumerate(slots)}
        for name, chunk, one in self.stored:
            numbers += (place[name], chunk)
            _put(numbers, one)
        body = np.array(numbers, "<i8").tobytes()
        return len(header).to_bytes(_HEADER_BYTES, "little") + header + body

    @classmethod
    def unpack(cls, data: bytes, slots: Sequence[SlotName]) -> Receipt:
        """What `pack` was made of."""
        stop = _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little")
        header = json.loads(data[_HEADER_BYTES:stop])
        numbers = _Numbers(np.frombuffer(data[stop:], "<i8"))
        stored = []
        while numbers.left:
            name, chunk = slots[numbers.one()], numbers.one()
            stored.append((name, chunk, _get(numbers)))
        return cls(
            [Pack(key, length) for key, length in header["packs"]],
            stored,
            header["values"],
            header["entries"],
        )


def stored_chunks(slots: Mapping[SlotName, WrittenSlot]) -> Iterator[Stored]:
    """Everything that a writer has stored."""
    for name, slot in slots.items():
        for chunk, written in slot.written.items():
            for one in written:
                yield name, chunk, one


def _put(numbers: list[int], one: StoredChunk) -> None:
    numbers.append(one.start)
    if one.cuts is None:
        numbers.append(_NONE)
    else:
        numbers.append(len(one.cuts))
        for crc, length in one.cuts:
            numbers += (crc, length)
    segment = one.segment
    if segment is None:
        numbers.append(_NONE)
        return
    numbers += (segment.container, segment.offset, segment.length)
    if segment.box is None:
        numbers.append(_NONE)
    else:
        numbers += (segment.box.ndim, *segment.box.offset, *segment.box.shape)
    numbers.append(len(segment.checksums))
    numbers += segment.checksums.tolist()


class _Numbers:
    """Reads numbers one by one."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        self._values = values
        self._position = 0

    @property
    def left(self) -> bool:
        return self._position < self._values.size

    def one(self) -> int:
        return self.many(1)[0]

    def many(self, count: int) -> list[int]:
        start, self._position = self._position, self._position + count
        found: list[int] = self._values[start : self._position].tolist()
        return found


def _get(numbers: _Numbers) -> StoredChunk:
    start, count = numbers.one(), numbers.one()
    cuts = None if count == _NONE else tuple(Cut(*numbers.many(2)) for _ in range(count))
    container = numbers.one()
    if container == _NONE:
        return StoredChunk(None, start, cuts)
    offset, length, ndim = numbers.many(3)
    box = None if ndim == _NONE else Box(tuple(numbers.many(ndim)), tuple(numbers.many(ndim)))
    checksums = np.array(numbers.many(numbers.one()), np.uint32)
    return StoredChunk(Segment(container, offset, length, box, checksums), start, cuts)
