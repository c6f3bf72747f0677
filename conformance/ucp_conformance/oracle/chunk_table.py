"""The chunk table (SPEC 16.5), row by row."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ucp_conformance.oracle.bytes_of import BLOCK
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.strict_json import LARGEST

__all__ = ["OWN_OBJECT", "Segment", "Table", "check_row", "check_row_set", "parse_table"]

OWN_OBJECT = 0xFFFFFFFF


@dataclass(frozen=True)
class Segment:
    """A row with what belongs to it; ``box`` and ``rows`` are the raw indexes of their first words plus 1, or 0."""

    container: int
    offset: int
    length: int
    box: int
    checksums: tuple[int, ...]
    rows: int = 0


@dataclass(frozen=True)
class Table:
    """Segments per chunk in derived order, the box words and the row words."""

    chunks: tuple[tuple[Segment, ...], ...]
    words: tuple[int, ...]
    row_words: tuple[int, ...] = ()

    def rows_of(self, segment: Segment, shape: tuple[int, ...]) -> list[int]:
        """Return the rows of a box of this shape that a segment has."""
        count = next((extent for extent in shape if extent != 1), 1)
        if not segment.rows:
            return list(range(count))
        words = self.row_words[segment.rows - 1 :]
        return [row for row in range(count) if words[row // 64] >> row % 64 & 1]


def parse_table(data: bytes, at: str) -> Table:
    """Check everything that can be checked of a table alone; refuses with UCP-E-TABLE."""

    def require(good: bool, why: str) -> None:
        if not good:
            raise RefusalError("UCP-E-TABLE", at, why)

    require(len(data) >= 64, "shorter than its header")
    magic, version, block, chunks, segments, words, checksums, sets = struct.unpack("<8sIIQQQQQ", data[:56])
    require((magic, version, block) == (b"UCPTABLE", 0, BLOCK), "magic, version or block")
    require(not any(data[56:64]), "reserved bytes of the header")
    require(len(data) == 64 + 32 * segments + 8 * (words + sets) + 4 * chunks + 4 * checksums, "length")
    place = 64
    rows = [struct.unpack_from("<IIQQQ", data, place + 32 * row) for row in range(segments)]
    place += 32 * segments
    box_words = struct.unpack_from(f"<{words}Q", data, place)
    place += 8 * words
    row_words = struct.unpack_from(f"<{sets}Q", data, place)
    place += 8 * sets
    counts = struct.unpack_from(f"<{chunks}I", data, place)
    sums = struct.unpack_from(f"<{checksums}I", data, place + 4 * chunks)
    require(sum(counts) == segments, "segment counts")
    found: list[Segment] = []
    used = 0
    for container, row_set, offset, length, box in rows:
        # The last four bytes of a chunk's own object are Zarr's checksum, and not covered by ours.
        covered = length - 4 if container == OWN_OBJECT else length
        require(covered >= 1, "a segment without covered bytes")
        if offset > LARGEST or length > LARGEST:
            raise RefusalError("UCP-E-SEGMENT", at, "beyond 2^53-1")
        blocks = -(-covered // BLOCK)
        require(used + blocks <= checksums, "number of checksums")
        found.append(Segment(container, offset, length, box, tuple(sums[used : used + blocks]), row_set))
        used += blocks
    require(used == checksums, "number of checksums")
    grouped: list[tuple[Segment, ...]] = []
    first = 0
    for count in counts:
        grouped.append(tuple(found[first : first + count]))
        first += count
    return Table(tuple(grouped), tuple(box_words), tuple(row_words))


def check_row_set(table: Table, segment: Segment, ndim: int, expected: int, at: str) -> int:
    """Check UCP-D-137, UCP-D-141, UCP-D-142 of a segment with a row set; return where the next must begin."""
    if not segment.box:
        raise RefusalError("UCP-E-SEGMENT", at, "rows of no box")
    shape = table.words[segment.box - 1 + ndim : segment.box - 1 + 2 * ndim]
    count = next((extent for extent in shape if extent != 1), 1)
    after = expected - -count // 64
    if segment.rows != expected or after - 1 > len(table.row_words):
        raise RefusalError("UCP-E-TABLE", at, "row words out of order")
    if count % 64 and table.row_words[after - 2] >> count % 64:
        raise RefusalError("UCP-E-TABLE", at, "bits behind the last row")
    return after


def check_row(
    segment: Segment, packs: list[dict[str, Any]] | None, ends: set[Any], item: int, key: str
) -> None:
    """Check UCP-D-105, UCP-D-107, UCP-D-115, UCP-D-116 and UCP-D-136 of one segment; no ``packs`` in storage plain."""
    if packs is None:
        if (segment.container, segment.offset, segment.box, segment.rows) != (OWN_OBJECT, 0, 0, 0):
            raise RefusalError("UCP-E-TABLE", key, "not the chunk's own object")
        return
    if segment.container >= len(packs):
        raise RefusalError("UCP-E-TABLE", key, "no such pack")
    pack = packs[segment.container]
    if segment.offset + segment.length > pack["length"]:
        raise RefusalError("UCP-E-SEGMENT", key, "beyond its pack")
    alignment = 4096 if segment.length >= 65536 else 64
    follows = (segment.container, segment.offset) in ends
    if segment.offset % item if "shared" in pack else segment.offset % alignment and not follows:
        raise RefusalError("UCP-E-SEGMENT", key, "alignment")
