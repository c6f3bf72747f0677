"""Receipts: what one writer of an attempt has stored, on its way to the one that commits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final

from ucpformat.model.references import Pack
from ucpformat.storage.writing.stored_columns import StoredColumns

if TYPE_CHECKING:
    from ucpformat.distributed.local_state import SlotName
    from ucpformat.jsonio import JsonValue

__all__ = ["Receipt"]

_LENGTHS: Final = Struct("<4q")
"""In bytes, of the header and of three columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Receipt:
    """Packs with their lengths, chunks of slots whose containers count those packs, and values, still encoded.

    ``entries`` are those of values that differ from rank to rank: position and entry, by name. ``linked_bytes`` are
    those of chunks' own objects that are links to the base's.
    """

    packs: Sequence[Pack]
    stored: StoredColumns
    values: Mapping[str, JsonValue]
    entries: Mapping[str, list[JsonValue]] = field(default_factory=dict)
    linked_bytes: int = 0

    def pack(self) -> bytes:
        """Return it as bytes, without the names of slots, by which both sides count."""
        header = json.dumps(
            {
                "packs": [[pack.key, pack.length, pack.shared] for pack in self.packs],
                "values": dict(self.values),
                "entries": dict(self.entries),
                "linked_bytes": self.linked_bytes,
            },
            separators=(",", ":"),
        ).encode()
        body = (header, *self.stored.sent())
        return b"".join((_LENGTHS.pack(*map(len, body)), *body))

    @classmethod
    def unpack(cls, data: bytes, slots: Sequence[SlotName]) -> Receipt:
        """Return what `pack` was made of."""
        length, rows, words, checksums = _LENGTHS.unpack_from(data)
        first = _LENGTHS.size + length
        found = json.loads(data[_LENGTHS.size : first].decode())
        return cls(
            [Pack(*pack) for pack in found["packs"]],
            StoredColumns.seen(slots, data, first, (rows, words, checksums)),
            found["values"],
            found["entries"],
            found["linked_bytes"],
        )
