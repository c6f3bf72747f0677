"""Receipts come out as they went in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ucpformat.geometry import Box
from ucpformat.model.references import Pack
from ucpformat.model.table import OWN_OBJECT, Segment
from ucpformat.storage.writing.chunk_writer import StoredChunk
from ucpformat.storage.writing.stored_columns import Receipt, StoredColumns

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

SLOTS = [("a", "value"), ("b", "exp_avg"), ("b", "value")]
INTEGERS = st.integers(0, 2**53 - 1)
CHECKSUMS = st.integers(0, 5).flatmap(lambda count: st.binary(min_size=4 * count, max_size=4 * count))
BOXES = st.lists(st.tuples(INTEGERS, INTEGERS), max_size=3).map(
    lambda pairs: Box(tuple(first for first, _ in pairs), tuple(extent for _, extent in pairs))
)
CONTAINERS = st.sampled_from([0, 1, OWN_OBJECT])
ROW_SETS = st.integers(1, 3).flatmap(lambda words: st.binary(min_size=8 * words, max_size=8 * words))
SEGMENTS = st.one_of(
    st.builds(Segment, CONTAINERS, INTEGERS, INTEGERS, st.none() | BOXES, CHECKSUMS, st.none()),
    st.builds(Segment, CONTAINERS, INTEGERS, INTEGERS, BOXES, CHECKSUMS, ROW_SETS),
)
CHUNKS = st.builds(StoredChunk, st.none() | SEGMENTS, INTEGERS, INTEGERS, st.none() | CHECKSUMS)


@given(
    st.lists(st.builds(Pack, st.text(max_size=5), INTEGERS, st.booleans()), max_size=2),
    st.lists(st.tuples(st.sampled_from(SLOTS), INTEGERS, CHUNKS), max_size=6),
)
def test_receipts_survive_the_way(
    packs: list[Pack], stored: list[tuple[tuple[str, str], int, StoredChunk]]
) -> None:
    values: dict[str, JsonValue] = {"epoch": 3, "ü": [1.5, None]}
    entries: dict[str, list[JsonValue]] = {"seed": [[0, 1]]}
    columns = StoredColumns.of(stored, SLOTS)
    assert list(columns.entries()) == stored
    receipt = Receipt.unpack(Receipt(packs, columns, values, entries).pack(), SLOTS)
    assert (receipt.packs, receipt.values, receipt.entries) == (packs, values, entries)
    assert list(receipt.stored.entries()) == stored
