"""Receipts: what one writer of an attempt has stored, on its way to the one that commits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.geometry import Box
from ucpformat.model.packs import Pack
from ucpformat.model.table import Segment
from ucpformat.storage.chunk_writer import StoredChunk

if TYPE_CHECKING:
    from ucpformat.distributed.local_state import SlotName
    from ucpformat.jsonio import JsonValue
    from ucpformat.storage.ledger import Entry

__all__ = ["Receipt"]

_LENGTH_BYTES: Final = 8
_NONE: Final = -1
_COLUMNS: Final = 10  # of an entry: see `_row`


@dataclass(frozen=True, slots=True)
class Receipt:
    """Packs with their lengths, chunks of slots whose containers count those packs, and values, still encoded.

    ``entries`` are those of values that differ from rank to rank: position and entry, by name.
    """

    packs: Sequence[Pack]
    stored: Sequence[Entry]
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
        place = {name: index for index, name in enumerate(slots)}
        rows = np.array([_row(place[name], chunk, one) for name, chunk, one in self.stored], "<i8")
        words: list[int] = []
        checksums: list[bytes] = []
        for _, _, one in self.stored:
            if one.segment is not None:
                checksums.append(one.segment.checksums)
                if one.segment.box is not None:
                    words += (*one.segment.box.offset, *one.segment.box.shape)
            checksums.append(one.cuts or b"")
        body = (header, rows.tobytes(), np.array(words, "<i8").tobytes(), b"".join(checksums))
        return b"".join((*(len(part).to_bytes(_LENGTH_BYTES, "little") for part in body), *body))

    @classmethod
    def unpack(cls, data: bytes, slots: Sequence[SlotName]) -> Receipt:
        """What `pack` was made of."""
        lengths = np.frombuffer(data, "<i8", 4).tolist()
        edges = np.cumsum([4 * _LENGTH_BYTES, *lengths]).tolist()
        header = json.loads(data[edges[0] : edges[1]])
        rows = np.frombuffer(data[edges[1] : edges[2]], "<i8").reshape(-1, _COLUMNS)
        words = iter(np.frombuffer(data[edges[2] : edges[3]], "<i8").tolist())
        checksums = BytesIO(data[edges[3] : edges[4]])
        stored = [_entry(slots, row, words, checksums) for row in rows.tolist()]
        return cls(
            [Pack(key, length) for key, length in header["packs"]],
            stored,
            header["values"],
            header["entries"],
        )


def _row(slot: int, chunk: int, one: StoredChunk) -> tuple[int, ...]:
    """An entry as numbers; box and checksums, of which these count the words and bytes, stand elsewhere."""
    cuts = _NONE if one.cuts is None else len(one.cuts)
    if one.segment is None:
        return (slot, chunk, one.start, one.size, cuts, _NONE, 0, 0, _NONE, 0)
    container, offset, length, box, checksums = one.segment
    ndim = _NONE if box is None else box.ndim
    return (slot, chunk, one.start, one.size, cuts, container, offset, length, ndim, len(checksums))


def _entry(slots: Sequence[SlotName], row: Sequence[int], words: Iterator[int], checksums: BytesIO) -> Entry:
    slot, chunk, start, size, cuts, container, offset, length, ndim, count = row
    segment = None
    if container != _NONE:
        box = None if ndim == _NONE else Box(tuple(islice(words, ndim)), tuple(islice(words, ndim)))
        segment = Segment(container, offset, length, box, checksums.read(count))
    crcs = None if cuts == _NONE else checksums.read(cuts)
    return slots[slot], chunk, StoredChunk(segment, start, size, crcs)
