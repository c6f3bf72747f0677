"""The chunk table: chunks, segments and checksums of one index part (SPEC section 16.5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.jsonio import MAX_INTEGER
from ucpformat.model.root import MAX_TABLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "BLOCK_BYTES",
    "OBJECT_TRAILER",
    "OWN_OBJECT",
    "ChunkTable",
    "Segment",
    "TableBuilder",
    "prefix_sums",
    "row_set_bytes",
    "rows_of",
]

OWN_OBJECT: Final = 0xFFFFFFFF
"""The container of a segment that is the chunk's own object (storage plain)."""
BLOCK_BYTES: Final = 1 << 20
"""Stored bytes that one checksum covers."""
OBJECT_TRAILER: Final = 4
"""Bytes of Zarr's ``crc32c`` codec at the end of such an object, which the table's checksums leave out."""

_FEW_ROWS: Final = 0.1
"""The share of rows in a set up to which they are looked for by bytes; measured."""

_MAGIC: Final = b"UCPTABLE"
_VERSION: Final = 0
_HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("block", "<u4"),
        ("chunks", "<u8"),
        ("segments", "<u8"),
        ("words", "<u8"),
        ("checksums", "<u8"),
        ("row_words", "<u8"),
        ("zero", "<u8"),
    ]
)
_ROW: Final = np.dtype(
    [("container", "<u4"), ("row_set", "<u4"), ("offset", "<u8"), ("length", "<u8"), ("box", "<u8")]
)


class Segment(NamedTuple):
    """A run of stored bytes that holds a chunk, or a box of it in the chunk's coordinates.

    ``offset`` and ``length`` in bytes of the container; ``checksums`` one CRC-32C per 1 MiB of `covered` bytes, as
    they stand in the table: four bytes each, little-endian. ``row_set``: it holds these rows of the box alone, a bit
    for each as in the table.
    """

    container: int
    offset: int
    length: int
    box: Box | None
    checksums: bytes
    row_set: bytes | None = None

    def present(self) -> NDArray[np.bool_]:
        """Return of each row of its box whether it holds it."""
        if self.box is None:
            raise ValueError("rows are those of a box")
        count = rows_of(self.box)
        if self.row_set is None:
            return np.ones(count, bool)
        bits = np.unpackbits(np.frombuffer(self.row_set, np.uint8), count=count, bitorder="little")
        return bits.view(bool)

    def row_numbers(self) -> NDArray[np.int64]:
        """Return which rows of its box it holds, in order."""
        if self.row_set is None or self.row_count() > _FEW_ROWS * 8 * len(self.row_set):
            return np.flatnonzero(self.present())
        # Where few bits are set, looking for bytes that have any, and then at those alone, guesses wrong less often.
        packed = np.frombuffer(self.row_set, np.uint8)
        some = np.flatnonzero(packed != 0)
        bits = np.flatnonzero(np.unpackbits(packed[some], bitorder="little").view(np.bool_))
        found: NDArray[np.int64] = (some[bits >> 3] << 3) + (bits & 7)
        return found

    def row_count(self) -> int:
        """Return how many rows of its box it holds."""
        if self.row_set is not None:
            return int.from_bytes(self.row_set, "little").bit_count()
        return 1 if self.box is None else rows_of(self.box)

    @property
    def covered(self) -> int:
        """How many bytes, from the first, the checksums cover: all but the trailer of a chunk's own object."""
        return self.length - OBJECT_TRAILER if self.container == OWN_OBJECT else self.length


@dataclass(frozen=True)
class ChunkTable:
    """A parsed table. Rows are in derived order; all arrays are views of the file's bytes.

    ``rows`` one structured row per segment; ``words`` the boxes; ``row_words`` the row sets; ``counts`` segments per
    chunk;
    ``checksums`` one per 1 MiB of each segment; ``first_segment`` and ``first_checksum`` are prefix sums.
    """

    rows: NDArray[np.void]
    words: NDArray[np.uint64]
    row_words: NDArray[np.uint64]
    counts: NDArray[np.uint32]
    checksums: NDArray[np.uint32]
    first_segment: NDArray[np.int64]
    first_checksum: NDArray[np.int64]

    @classmethod
    def parse(cls, data: bytes, *, at: str) -> ChunkTable:
        """Check everything that can be said of a table by itself.

        Raises:
            InvalidCheckpointError: ``UCP-E-TABLE`` or ``UCP-E-SEGMENT``; ``UCP-E-LIMIT`` over 1 GiB.
        """
        if len(data) > MAX_TABLE_BYTES:
            raise error(
                "UCP-E-LIMIT", f"the chunk table has {len(data)} bytes, more than {MAX_TABLE_BYTES}", at=at
            )
        if len(data) < _HEADER.itemsize:
            raise error("UCP-E-TABLE", f"{len(data)} bytes are too few for the header", at=at)
        header = np.frombuffer(data, _HEADER, 1)[0]
        if header["magic"] != _MAGIC or header["version"] != _VERSION or header["block"] != BLOCK_BYTES:
            raise error("UCP-E-TABLE", "magic, version or block size is not that of a chunk table", at=at)
        if header["zero"]:
            raise error("UCP-E-TABLE", "reserved header bytes are not zero", at=at)
        chunks, segments, words, checksums, row_words = (
            int(header[name]) for name in ("chunks", "segments", "words", "checksums", "row_words")
        )
        # Python integers: no overflow, whatever the header claims.
        length = _HEADER.itemsize + _ROW.itemsize * segments + 8 * (words + row_words)
        length += 4 * chunks + 4 * checksums
        if length != len(data):
            raise error(
                "UCP-E-TABLE", f"the header asks for {length} bytes, the table has {len(data)}", at=at
            )
        position = _HEADER.itemsize
        rows = np.frombuffer(data, _ROW, segments, position)
        position += rows.nbytes
        box_words = np.frombuffer(data, "<u8", words, position)
        position += box_words.nbytes
        sets = np.frombuffer(data, "<u8", row_words, position)
        position += sets.nbytes
        counts = np.frombuffer(data, "<u4", chunks, position)
        position += counts.nbytes
        crcs = np.frombuffer(data, "<u4", checksums, position)
        if int(counts.sum(dtype=np.uint64)) != segments:
            raise error("UCP-E-TABLE", "segment counts do not add up to the number of segments", at=at)
        _check_rows(rows, box_words, at)
        if row_words or rows["row_set"].any():
            _check_row_sets(rows["row_set"], row_words, at)
        covered = rows["length"].astype(np.int64) - OBJECT_TRAILER * (rows["container"] == OWN_OBJECT)
        if (covered < 1).any():
            raise error("UCP-E-TABLE", "a segment has no bytes; write a zero entry instead", at=at)
        blocks = -(-covered // BLOCK_BYTES)
        if int(blocks.sum()) != checksums:
            raise error("UCP-E-TABLE", "the number of checksums is not that of the segments' blocks", at=at)
        return cls(rows, box_words, sets, counts, crcs, prefix_sums(counts), prefix_sums(blocks))

    def segments(self, chunk: int, ndim: int) -> tuple[Segment, ...]:
        """Return segments of the chunk in row ``chunk``; none is a zero entry. ``ndim`` is that of the slot."""
        first, last = int(self.first_segment[chunk]), int(self.first_segment[chunk + 1])
        if first == last:
            return ()
        edges = self.first_checksum[first : last + 1].tolist()
        checksums = self.checksums.data.cast("B")
        return tuple(
            [
                Segment(
                    container,
                    offset,
                    length,
                    _box_of(self.words[word - 1 : word - 1 + 2 * ndim].tobytes(), ndim) if word else None,
                    bytes(checksums[4 * start : 4 * stop]),
                    self._row_set(row_set) if row_set else None,
                )
                for (container, row_set, offset, length, word), (start, stop) in zip(
                    self.rows[first:last].tolist(), pairwise(edges), strict=True
                )
            ]
        )

    def _row_set(self, begin: int) -> bytes:
        """Return the row set that begins with a word, counted from 1: it ends where the next one begins."""
        stops = self._row_set_stops
        stop = int(stops[int(np.searchsorted(stops, begin - 1, "right"))])
        return self.row_words[begin - 1 : stop].tobytes()

    @cached_property
    def _row_set_stops(self) -> NDArray[np.int64]:
        begins = self.rows["row_set"][self.rows["row_set"] > 0].astype(np.int64) - 1
        return np.append(begins[1:], self.row_words.size)


def rows_of(box: Box) -> int:
    """Return how many rows a box has: its first extent that is not 1 (SPEC section 16.4)."""
    return next((extent for extent in box.shape if extent != 1), 1)


def row_set_bytes(rows: int) -> int:
    """Return the length in bytes of a row set of so many rows."""
    return 8 * -(-rows // 64)


@lru_cache(maxsize=4096)
def _box_of(words: bytes, ndim: int) -> Box:
    """Return the box that the words of a segment say: chunks are mostly cut alike."""
    values = np.frombuffer(words, "<u8").tolist()
    return Box(tuple(values[:ndim]), tuple(values[ndim:]))


def _check_row_sets(row_sets: NDArray[np.uint32], row_words: int, at: str) -> None:
    """Check that row sets begin with the first row word, and one behind another (how long each is, its box says)."""
    begins = row_sets[row_sets > 0].astype(np.int64)
    if begins.size == 0:
        raise error("UCP-E-TABLE", "there are row words that no segment refers to", at=at)
    if begins[0] != 1 or (np.diff(begins) < 1).any() or begins[-1] > row_words:
        raise error(
            "UCP-E-TABLE", "row sets are not in order of their segments, or lie outside the row words", at=at
        )


def _check_rows(rows: NDArray[np.void], words: NDArray[np.uint64], at: str) -> None:
    lengths, offsets = rows["length"], rows["offset"]
    if (lengths == 0).any():
        raise error("UCP-E-TABLE", "a segment has length 0; write a zero entry instead", at=at)
    if (lengths > MAX_INTEGER).any() or (offsets > MAX_INTEGER).any() or (words > MAX_INTEGER).any():
        raise error("UCP-E-SEGMENT", "an offset, a length or a box exceeds 2^53-1", at=at)
    # A sum that no file can have would wrap around; floating point does not.
    if float(lengths.sum(dtype=np.float64)) > MAX_INTEGER:
        raise error("UCP-E-SEGMENT", "the segments' lengths add up to more than 2^53-1 bytes", at=at)
    boxes = rows["box"][rows["box"] > 0]
    if boxes.size == 0:
        if words.size:
            raise error("UCP-E-TABLE", "there are box words that no segment refers to", at=at)
        return
    steps = np.diff(boxes.astype(np.float64))
    if int(boxes[0]) != 1 or (steps < 2).any() or int(boxes[-1]) > words.size:
        raise error(
            "UCP-E-TABLE", "boxes are not in order of their segments, or lie outside the box words", at=at
        )


def prefix_sums(counts: NDArray[np.uint32] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of the first 0, 1, ... of ``counts``, one more than there are."""
    sums = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


class _Block(NamedTuple):
    """Chunks one after another, as the table has them."""

    rows: NDArray[np.void]
    words: NDArray[np.uint64]
    counts: NDArray[np.uint32]
    checksums: bytes
    row_sets: bytes = b""


def _added(words: list[int], box: Box) -> int:
    """Append a box; return where it begins, counted from 1."""
    first = len(words) + 1
    words += box.offset
    words += box.shape
    return first


class TableBuilder:
    """Collects the chunks of a part in derived order, column by column, and yields the table's bytes."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._words_before = 0  # of blocks
        self.row_words = 0
        """Words of row sets, once the table is built."""
        self.nbytes = 0
        """Bytes of all segments, once the table is built."""
        self._begin()

    def _begin(self) -> None:
        self._segments: list[Segment] = []
        self._counts: list[int] = []

    def _end(self) -> None:
        """Make a block of what was appended one by one."""
        if self._counts:
            rows = np.zeros(len(self._segments), _ROW)
            words: list[int] = []
            checksums: Iterable[bytes] = ()
            row_sets: Sequence[bytes | None] = ()
            if self._segments:
                rows["container"], rows["offset"], rows["length"], boxes, checksums, row_sets = zip(
                    *self._segments, strict=True
                )
                rows["box"] = [0 if box is None else self._words_before + _added(words, box) for box in boxes]
                position = self.row_words + 1
                for number, row_set in enumerate(row_sets):
                    if row_set is not None:
                        rows["row_set"][number] = position
                        position += len(row_set) // 8
            counts = np.array(self._counts, "<u4")
            joined = b"".join(row_set for row_set in row_sets if row_set is not None)
            self._append(_Block(rows, np.array(words, "<u8"), counts, b"".join(checksums), joined))
            self._begin()

    def _append(self, block: _Block) -> None:
        self._blocks.append(block)
        self._words_before += block.words.size
        self.row_words += len(block.row_sets) // 8
        self.nbytes += int(block.rows["length"].sum())

    def add_chunk(self, segments: Sequence[Segment]) -> None:
        """Append a chunk; no segments make a zero entry."""
        self._counts.append(len(segments))
        self._segments += segments

    def add_columns(
        self,
        counts: NDArray[np.int64],
        containers: NDArray[np.int64],
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        box_words: NDArray[np.int64],
        words: NDArray[np.int64],
        checksums: bytes,
    ) -> None:
        """Append chunks of ``counts`` segments each, which the columns name one after another.

        ``box_words`` says how many of ``words`` are the box of each, offset and then shape; 0 for a segment without.
        """
        self._end()
        rows = np.zeros(lengths.size, _ROW)
        rows["container"], rows["offset"], rows["length"] = containers, offsets, lengths
        first = self._words_before + 1 + np.cumsum(box_words) - box_words
        rows["box"] = np.where(box_words > 0, first, 0)
        self._append(_Block(rows, words.astype("<u8"), counts.astype("<u4"), checksums))

    def nbytes_in(self, containers: Collection[int]) -> int:
        """Return the bytes of segments that lie in any of these containers, once the table is built."""
        wanted = [*containers]
        return sum(
            int(block.rows["length"][np.isin(block.rows["container"], wanted)].sum())
            for block in self._blocks
        )

    def build(self) -> bytes:
        """Return the table, ready to be written.

        Raises:
            InvalidCheckpointError: ``UCP-E-LIMIT`` over 1 GiB (put fewer atoms into a part).
        """
        self._end()
        blocks = self._blocks
        header = np.zeros(1, _HEADER)
        header["magic"] = _MAGIC
        header["version"] = _VERSION
        header["block"] = BLOCK_BYTES
        header["chunks"] = sum(block.counts.size for block in blocks)
        header["segments"] = sum(block.rows.size for block in blocks)
        header["words"] = self._words_before
        header["row_words"] = self.row_words
        header["checksums"] = sum(len(block.checksums) for block in blocks) // 4
        data = b"".join(
            (
                header.tobytes(),
                *(block.rows.tobytes() for block in blocks),
                *(block.words.tobytes() for block in blocks),
                *(block.row_sets for block in blocks),
                *(block.counts.tobytes() for block in blocks),
                *(block.checksums for block in blocks),
            )
        )
        if len(data) > MAX_TABLE_BYTES:
            raise error(
                "UCP-E-LIMIT",
                f"a chunk table of {len(data)} bytes exceeds {MAX_TABLE_BYTES}; use larger chunks",
            )
        return data
