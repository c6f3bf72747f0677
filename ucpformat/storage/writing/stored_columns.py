"""What became of chunks, as columns: entries by the million take 80 bytes and their checksums, and no objects.

As a receipt they go from the writer of an attempt that has stored them to the one that commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.geometry import Box
from ucpformat.model.references import Pack
from ucpformat.model.table import OWN_OBJECT, Segment, prefix_sums
from ucpformat.storage.writing.chunk_writer import StoredChunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue
    from ucpformat.storage.writing.piece_writer import Entry

__all__ = [
    "CHUNK",
    "CONTAINER",
    "CUTS",
    "LENGTH",
    "NDIM",
    "NONE",
    "OFFSET",
    "ROWS",
    "SIZE",
    "SLOT",
    "START",
    "SUMS",
    "Receipt",
    "StoredColumns",
]

NONE: Final = -1
"""In place of a container, a number of dims or of bytes: there is no segment, no box, and there are no cuts."""
SLOT, CHUNK, START, SIZE, CUTS, CONTAINER, OFFSET, LENGTH, NDIM, SUMS, ROWS = range(11)
"""Columns. ``CUTS`` and ``SUMS`` count bytes, of cuts and of the segment's checksums, ``ROWS`` words of its row set."""
_COLUMNS: Final = 11


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """What a committed checkpoint takes, in bytes.

    ``data`` are those of segments, which are the logical bytes where nothing is compressed and no chunk is all zeros,
    and in storage plain four more to a chunk; ``alignment`` those between the segments of packs; ``documents`` are
    the root document, index parts, tables, state, pack list and blobs, without the Zarr metadata of storage plain.
    ``shared`` are those of segments that an increment shares with its base, in packs or, in storage plain, as objects
    of chunks; they are not among ``data``.
    """

    data: int
    alignment: int
    documents: int
    shared: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class StoredColumns:
    """Entries of a ledger, in their order.

    ``names`` are the slots that the column ``SLOT`` counts; ``rows`` (entries, 11) integers, by the columns of this
    module; ``words`` the boxes one after another, each its offset, its shape and then its row set; ``checksums``
    (bytes) those of each segment and then its cuts.
    """

    names: Sequence[tuple[str, str]]
    rows: NDArray[np.int64]
    words: NDArray[np.int64]
    checksums: NDArray[np.uint8]

    @classmethod
    def of(cls, entries: Iterable[Entry], names: Sequence[tuple[str, str]]) -> StoredColumns:
        """Return entries of slots that are all among ``names``."""
        numbers = {name: index for index, name in enumerate(names)}
        rows: list[tuple[int, ...]] = []
        words: list[int] = []
        checksums: list[bytes] = []
        for name, chunk, (segment, start, size, cuts) in entries:
            cut_bytes = NONE if cuts is None else len(cuts)
            if segment is None:
                rows.append((numbers[name], chunk, start, size, cut_bytes, NONE, 0, 0, NONE, 0, 0))
            else:
                container, offset, length, box, sums, row_set = segment
                ndim = NONE if box is None else box.ndim
                stored = (container, offset, length, ndim, len(sums), len(row_set or b"") // 8)
                rows.append((numbers[name], chunk, start, size, cut_bytes, *stored))
                checksums.append(sums)
                if box is not None:
                    words += box.offset
                    words += box.shape
                if row_set is not None:
                    words += np.frombuffer(row_set, "<i8").tolist()
            checksums.append(cuts or b"")
        return cls(
            names,
            np.array(rows, "<i8").reshape(-1, _COLUMNS),
            np.array(words, "<i8"),
            np.frombuffer(b"".join(checksums), np.uint8),
        )

    @classmethod
    def seen(
        cls, names: Sequence[tuple[str, str]], data: bytes, first: int, sizes: tuple[int, int, int]
    ) -> StoredColumns:
        """Return what `sent` made, in ``data`` from byte ``first`` on: three columns of these lengths, not copied."""
        rows, words, checksums = sizes
        second, third = first + rows, first + rows + words
        return cls(
            names,
            np.frombuffer(data, "<i8", rows // 8, first).reshape(-1, _COLUMNS),
            np.frombuffer(data, "<i8", words // 8, second),
            np.frombuffer(data, np.uint8, checksums, third),
        )

    def sent(self) -> tuple[bytes, bytes, bytes]:
        """Return the columns as bytes, integers in little-endian."""
        return (
            self.rows.astype("<i8", copy=False).tobytes(),
            self.words.astype("<i8", copy=False).tobytes(),
            self.checksums.tobytes(),
        )

    @classmethod
    def joined(
        cls, parts: Sequence[tuple[StoredColumns, Sequence[int]]], names: Sequence[tuple[str, str]]
    ) -> StoredColumns:
        """Return all entries of ``parts``, whose slots are among ``names``.

        With each part come the numbers of its packs among those of all.
        """
        rows = np.concatenate([part.rows for part, _ in parts])
        lengths = [len(part.rows) for part, _ in parts]
        first = 0
        for length, (_, packs) in zip(lengths, parts, strict=True):
            container = rows[first : first + length, CONTAINER]
            is_packed = (container != NONE) & (container != OWN_OBJECT)
            container[is_packed] = np.array(packs, np.int64)[container[is_packed]]
            first += length
        numbers = {name: index for index, name in enumerate(names)}
        last = 0
        # Most often all parts count the same slots.
        for _, some in groupby(zip(parts, lengths, strict=True), key=lambda one: id(one[0][0].names)):
            same = list(some)
            first, last = last, last + sum(length for _, length in same)
            places = np.array([numbers[name] for name in same[0][0][0].names], np.int64)
            rows[first:last, SLOT] = places[rows[first:last, SLOT]]
        return cls(
            names,
            rows,
            np.concatenate([part.words for part, _ in parts]),
            np.concatenate([part.checksums for part, _ in parts]),
        )

    def first_words(self) -> NDArray[np.int64]:
        """Return where in ``words`` the box of each entry begins."""
        return prefix_sums(2 * np.maximum(self.rows[:, NDIM], 0) + self.rows[:, ROWS])[:-1]

    def first_checksums(self) -> NDArray[np.int64]:
        """Return where in ``checksums`` those of each entry begin."""
        return prefix_sums(self.rows[:, SUMS] + np.maximum(self.rows[:, CUTS], 0))[:-1]

    def entries(self) -> Iterator[Entry]:
        """Yield the entries as objects, one by one."""
        where = zip(self.first_words().tolist(), self.first_checksums().tolist(), strict=True)
        for row, (word, at) in zip(self.rows.tolist(), where, strict=True):
            yield self.names[row[SLOT]], row[CHUNK], self.stored(row, word, at)

    def stored(self, row: Sequence[int], word: int, at: int) -> StoredChunk:
        """Return the object of a row whose box begins at ``word`` and whose checksums begin at ``at``."""
        _, _, start, size, cuts, container, offset, length, ndim, sums, row_words = row
        segment = None
        if container != NONE:
            box = row_set = None
            if ndim != NONE:
                values = self.words[word : word + 2 * ndim].tolist()
                box = Box(tuple(values[:ndim]), tuple(values[ndim:]))
                if row_words:
                    row_set = self.words[word + 2 * ndim :][:row_words].astype("<i8").tobytes()
            checksums = self.checksums[at : at + sums].tobytes()
            segment = Segment(container, offset, length, box, checksums, row_set)
        at += sums
        return StoredChunk(
            segment, start, size, None if cuts == NONE else self.checksums[at : at + cuts].tobytes()
        )


_LENGTHS: Final = Struct("<4q")
"""In bytes, of the header and of three columns."""


@dataclass(frozen=True, slots=True, eq=False)
class Receipt:
    """Packs with their lengths, chunks of slots whose containers count those packs, and values, still encoded.

    ``entries`` are those of values that differ from rank to rank: position and entry, by name. ``shared_bytes`` are
    those of chunks' own objects that are links to the base's.
    """

    packs: Sequence[Pack]
    stored: StoredColumns
    values: Mapping[str, JsonValue]
    entries: Mapping[str, list[JsonValue]] = field(default_factory=dict)
    shared_bytes: int = 0

    def pack(self) -> bytes:
        """Return it as bytes, without the names of slots, by which both sides count."""
        header = json.dumps(
            {
                "packs": [[pack.key, pack.length, pack.shared] for pack in self.packs],
                "values": dict(self.values),
                "entries": dict(self.entries),
                "shared_bytes": self.shared_bytes,
            },
            separators=(",", ":"),
        ).encode()
        body = (header, *self.stored.sent())
        return b"".join((_LENGTHS.pack(*map(len, body)), *body))

    @classmethod
    def unpack(cls, data: bytes, slots: Sequence[tuple[str, str]]) -> Receipt:
        """Return what `pack` was made of."""
        length, rows, words, checksums = _LENGTHS.unpack_from(data)
        first = _LENGTHS.size + length
        found = json.loads(data[_LENGTHS.size : first].decode())
        return cls(
            [Pack(*pack) for pack in found["packs"]],
            StoredColumns.seen(slots, data, first, (rows, words, checksums)),
            found["values"],
            found["entries"],
            found["shared_bytes"],
        )
