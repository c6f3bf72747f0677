"""Chunk tables, byte by byte (SPEC 16.5), against a second reading of them in tests/builders.py."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import HEADER, MIB, RawTable, result_or_refusal
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.model.table import OWN_OBJECT, ChunkTable, Segment, TableBuilder, row_set_bytes

LARGEST = 2**53 - 1


@st.composite
def chunks(draw: st.DrawFn) -> list[list[Segment]]:
    """Chunks of one slot with one to three dimensions: zero entries, whole segments, segments with boxes."""
    ndim = draw(st.integers(1, 3))
    number = st.integers(0, 2**20)
    found: list[list[Segment]] = []
    for _ in range(draw(st.integers(0, 5))):
        boxed = draw(st.booleans())
        segments = []
        for _ in range(draw(st.integers(0, 3 if boxed else 1))):
            container = draw(st.sampled_from([0, 1, 7, OWN_OBJECT]))
            covered = draw(st.sampled_from([1, MIB - 4, MIB, MIB + 1, 2 * MIB]) | st.integers(1, 3 * MIB))
            length = covered + (4 if container == OWN_OBJECT else 0)
            sums = draw(
                st.lists(st.integers(0, 2**32 - 1), min_size=-(-covered // MIB), max_size=-(-covered // MIB))
            )
            box = Box(*(tuple(draw(number) for _ in range(ndim)) for _ in range(2))) if boxed else None
            segments.append(
                Segment(
                    container,
                    draw(st.integers(0, LARGEST)),
                    length,
                    box,
                    struct.pack(f"<{len(sums)}I", *sums),
                )
            )
        found.append(segments)
    return found


def build(of: list[list[Segment]]) -> bytes:
    builder = TableBuilder()
    for segments in of:
        builder.add_chunk(segments)
    return builder.build()


def plain(segment: Segment) -> tuple[object, ...]:
    return segment.container, segment.offset, segment.length, segment.box, segment.checksums


@given(chunks())
def test_what_was_built_is_parsed(of: list[list[Segment]]) -> None:
    """UCP-D-111, UCP-D-114, UCP-D-117."""
    data = build(of)
    ndim = next((s.box.ndim for segments in of for s in segments if s.box is not None), 1)
    table = ChunkTable.parse(data, at="t")
    assert [[plain(s) for s in table.segments(row, ndim)] for row in range(len(of))] == [
        [plain(s) for s in segments] for segments in of
    ]


@given(chunks())
def test_the_bytes_are_those_that_the_specification_says(of: list[list[Segment]]) -> None:
    """SPEC 16.5, read and written a second time: header, rows, words, counts, checksums, little-endian."""
    raw = RawTable.parse(build(of))
    assert raw.build() == build(of)
    assert raw.counts == [len(segments) for segments in of]
    flat = [segment for segments in of for segment in segments]
    word = 0
    for row, segment in zip(raw.rows, flat, strict=True):
        assert (row[0], row[1], row[2], row[3]) == (segment.container, 0, segment.offset, segment.length)
        if segment.box is None:
            assert row[4] == 0
        else:
            assert row[4] == word + 1
            size = 2 * segment.box.ndim
            assert raw.words[word : word + size] == [*segment.box.offset, *segment.box.shape]
            word += size
    assert word == len(raw.words)
    assert raw.checksums == [
        value for segment in flat for (value,) in struct.iter_unpack("<I", segment.checksums)
    ]


@given(chunks(), st.data())
def test_a_flipped_or_missing_byte_never_crashes(of: list[list[Segment]], data: st.DataObject) -> None:
    """UCP-S-003: whatever the bytes say, the answer is a table or a registered refusal."""
    content = bytearray(build(of))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    length = data.draw(st.sampled_from([len(content), len(content), len(content) - 1, len(content) // 2, 0]))
    table = result_or_refusal(lambda: ChunkTable.parse(bytes(content[:length]), at="t"))
    if isinstance(table, UcpError):
        assert table.code in ("UCP-E-TABLE", "UCP-E-SEGMENT")
        assert table.at == "t"
    else:
        assert sum(len(table.segments(row, 0)) for row in range(table.counts.size)) == len(table.rows)


def table() -> RawTable:
    """Two chunks of a matrix: one of two boxes in pack 0, one whole in pack 1."""
    return RawTable(
        rows=[[0, 0, 0, 8, 1], [0, 0, 64, 8, 5], [1, 0, 0, MIB + 1, 0]],
        words=[0, 0, 1, 2, 1, 0, 1, 2],
        counts=[2, 1],
        checksums=[1, 2, 3, 4],
    )


def test_the_table_that_is_broken_below_is_good() -> None:
    assert len(ChunkTable.parse(table().build(), at="t").segments(0, 2)) == 2


def header(**values: object) -> Callable[[RawTable], object]:
    return lambda raw: raw.header.update(values)


def row(number: int, member: int, value: int) -> Callable[[RawTable], object]:
    return lambda raw: raw.rows[number].__setitem__(member, value)


def tail(content: bytes) -> Callable[[RawTable], object]:
    return lambda raw: setattr(raw, "tail", content)


@pytest.mark.parametrize(
    ("requirement", "change", "code"),
    [
        ("UCP-D-111", header(magic=b"UCPTABLF"), "UCP-E-TABLE"),
        ("UCP-D-111", header(version=1), "UCP-E-TABLE"),
        ("UCP-D-111", header(block=MIB - 1), "UCP-E-TABLE"),
        ("UCP-D-111", header(zero=b"\1" + bytes(15)), "UCP-E-TABLE"),
        ("UCP-D-111", header(zero=bytes(15) + b"\1"), "UCP-E-TABLE"),
        ("UCP-D-111", header(chunks=3), "UCP-E-TABLE"),
        ("UCP-D-111", header(segments=2), "UCP-E-TABLE"),
        ("UCP-D-111", header(segments=2**64 - 1, words=2**64 - 1), "UCP-E-TABLE"),
        ("UCP-D-111", header(chunks=2**62, checksums=2**62), "UCP-E-TABLE"),
        ("UCP-D-111", header(words=7, chunks=4), "UCP-E-TABLE"),
        ("UCP-D-111", tail(b"\0"), "UCP-E-TABLE"),
        ("UCP-D-111", lambda raw: raw.counts.__setitem__(0, 3), "UCP-E-TABLE"),
        ("UCP-D-111", lambda raw: raw.counts.__setitem__(0, 2**32 - 1), "UCP-E-TABLE"),
        ("UCP-D-111", lambda raw: raw.checksums.pop(), "UCP-E-TABLE"),
        ("UCP-D-111", lambda raw: raw.checksums.append(0), "UCP-E-TABLE"),
        ("UCP-D-111", row(2, 3, MIB), "UCP-E-TABLE"),
        ("UCP-D-114", row(0, 3, 0), "UCP-E-TABLE"),
        ("UCP-D-114", lambda raw: raw.rows.__setitem__(0, [OWN_OBJECT, 0, 0, 4, 1]), "UCP-E-TABLE"),
        ("UCP-D-114", lambda raw: raw.rows.__setitem__(0, [OWN_OBJECT, 0, 0, 1, 1]), "UCP-E-TABLE"),
        ("UCP-D-111", row(1, 1, 1), "UCP-E-TABLE"),
        ("UCP-S-003", row(0, 2, 2**53), "UCP-E-SEGMENT"),
        ("UCP-S-003", row(0, 2, 2**64 - 1), "UCP-E-SEGMENT"),
        ("UCP-S-003", row(0, 3, 2**64 - 1), "UCP-E-SEGMENT"),
        ("UCP-S-003", row(0, 3, 2**53), "UCP-E-SEGMENT"),
        ("UCP-S-003", lambda raw: raw.words.__setitem__(0, 2**53), "UCP-E-SEGMENT"),
        ("UCP-S-003", lambda raw: [r.__setitem__(3, LARGEST) for r in raw.rows], "UCP-E-SEGMENT"),
        ("UCP-D-117", row(0, 4, 2), "UCP-E-TABLE"),
        ("UCP-D-117", row(1, 4, 1), "UCP-E-TABLE"),
        ("UCP-D-117", row(1, 4, 9), "UCP-E-TABLE"),
        ("UCP-D-117", row(1, 4, 2**64 - 1), "UCP-E-TABLE"),
        ("UCP-D-117", lambda raw: [r.__setitem__(4, 0) for r in raw.rows], "UCP-E-TABLE"),
    ],
)
def test_every_rule_of_the_table_is_checked(
    requirement: str, change: Callable[[RawTable], object], code: str
) -> None:
    raw = table()
    change(raw)
    with pytest.raises(UcpError) as refusal:
        ChunkTable.parse(raw.build(), at="t")
    assert (refusal.value.code, refusal.value.at) == (code, "t"), requirement


@pytest.mark.parametrize("length", [0, 7, HEADER.size - 1])
def test_less_than_a_header_is_refused(length: int) -> None:
    with pytest.raises(UcpError, match="UCP-E-TABLE"):
        ChunkTable.parse(table().build()[:length], at="t")


def test_counts_in_the_header_take_no_memory() -> None:
    """UCP-S-002."""
    raw = table()
    raw.header.update(segments=2**40, chunks=2**40, words=2**40, checksums=2**40)
    data = raw.build()
    tracemalloc.start()
    with pytest.raises(UcpError, match="UCP-E-TABLE"):
        ChunkTable.parse(data, at="t")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB


def test_tables_over_the_limit_are_neither_read_nor_written() -> None:
    """UCP-S-005, and the limit of section 19, lowered here."""
    data = table().build()
    with patch("ucpformat.model.table.MAX_TABLE_BYTES", len(data) - 1):
        with pytest.raises(UcpError, match="UCP-E-LIMIT"):
            ChunkTable.parse(data, at="t")
        builder = TableBuilder()
        for _ in range(3):
            builder.add_chunk([Segment(0, 0, 1, Box((0,), (1,)), bytes(4))] * 2)
        with pytest.raises(UcpError, match="UCP-E-LIMIT"):
            builder.build()


@given(rows=st.sets(st.integers(0, 999), min_size=1), extra=st.integers(0, 500))
def test_the_rows_of_a_segment_are_those_of_its_set(rows: set[int], extra: int) -> None:
    """However many they are: few are looked for in another way."""
    count = max(rows) + 1 + extra
    packed = sum(1 << row for row in rows).to_bytes(row_set_bytes(count), "little")
    segment = Segment(0, 0, len(rows), Box((0, 0), (count, 1)), b"", packed)
    assert segment.row_numbers().tolist() == np.flatnonzero(segment.present()).tolist() == sorted(rows)
    assert segment.row_count() == len(rows)
    assert segment._replace(row_set=None).row_numbers().tolist() == [*range(count)]
