"""The chunk table (SPEC 16.5), row by row."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ucp_conformance.oracle.bytes_of import BLOCK
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.strict_json import LARGEST

__all__ = ["OWN_OBJECT", "Segment", "Table", "parse_table"]

OWN_OBJECT = 0xFFFFFFFF


@dataclass(frozen=True)
class Segment:
    """A row with what belongs to it; ``box`` is the raw index of its first word plus 1, or 0."""

    container: int
    offset: int
    length: int
    box: int
    checksums: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """Segments per chunk in derived order, and the box words."""

    chunks: tuple[tuple[Segment, ...], ...]
    words: tuple[int, ...]


def parse_table(data: bytes, at: str) -> Table:
    """Check everything that can be checked of a table alone; refuses with UCP-E-TABLE."""

    def require(good: bool, why: str) -> None:
        if not good:
            raise RefusalError("UCP-E-TABLE", at, why)

    require(len(data) >= 64, "shorter than its header")
    magic, version, block, chunks, segments, words, checksums = struct.unpack("<8sIIQQQQ", data[:48])
    require((magic, version, block) == (b"UCPTABLE", 0, BLOCK), "magic, version or block")
    require(not any(data[48:64]), "reserved bytes of the header")
    require(len(data) == 64 + 32 * segments + 8 * words + 4 * chunks + 4 * checksums, "length")
    place = 64
    rows = [struct.unpack_from("<IIQQQ", data, place + 32 * row) for row in range(segments)]
    place += 32 * segments
    box_words = struct.unpack_from(f"<{words}Q", data, place)
    place += 8 * words
    counts = struct.unpack_from(f"<{chunks}I", data, place)
    sums = struct.unpack_from(f"<{checksums}I", data, place + 4 * chunks)
    require(sum(counts) == segments, "segment counts")
    found: list[Segment] = []
    used = 0
    for container, zero, offset, length, box in rows:
        require(zero == 0, "reserved bytes of a row")
        # The last four bytes of a chunk's own object are Zarr's checksum, and not covered by ours.
        covered = length - 4 if container == OWN_OBJECT else length
        require(covered >= 1, "a segment without covered bytes")
        if offset > LARGEST or length > LARGEST:
            raise RefusalError("UCP-E-SEGMENT", at, "beyond 2^53-1")
        blocks = -(-covered // BLOCK)
        require(used + blocks <= checksums, "number of checksums")
        found.append(Segment(container, offset, length, box, tuple(sums[used : used + blocks])))
        used += blocks
    require(used == checksums, "number of checksums")
    grouped: list[tuple[Segment, ...]] = []
    first = 0
    for count in counts:
        grouped.append(tuple(found[first : first + count]))
        first += count
    return Table(tuple(grouped), tuple(box_words))
