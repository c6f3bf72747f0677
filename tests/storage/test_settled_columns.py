"""What many writers have written is settled by columns as it is entry by entry, and refused in the same words."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.geometry import Box, chunk_grid, runs
from ucpformat.model.dtype import dtype
from ucpformat.model.table import OWN_OBJECT, Segment, TableBuilder
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.writing import settled_columns
from ucpformat.storage.writing.chunk_writer import SlotPlace, StoredChunk
from ucpformat.storage.writing.piece_writer import Entry, SettledEntries, Settlement
from ucpformat.storage.writing.settled_columns import SettledColumns
from ucpformat.storage.writing.stored_columns import StoredColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ITEM = 4
FAULTS = ("none", "lost", "twice", "moved", "unboxed", "zero", "late", "elsewhere", "flat")


class Written(NamedTuple):
    """What each writer has stored: entries, and how many packs they count."""

    places: dict[tuple[str, str], SlotPlace]
    writers: list[tuple[list[Entry], int]]


def _place(name: tuple[str, str], shape: tuple[int, ...], chunk_bytes: int) -> SlotPlace:
    return SlotPlace(name[0], name[1], dtype("float32"), chunk_grid(shape, ITEM, chunk_bytes), None)


def _boxes(chance: random.Random, box: Box, dims: list[int], splits: int) -> Iterator[Box]:
    """Cut a box in two, and each again; in the order of ``dims`` where those are no more than one at a time."""
    wide = [dim for dim in dims if box.shape[dim] > 1]
    if not splits or not wide:
        yield box
        return
    dim = chance.choice(wide)
    at = chance.randrange(1, box.shape[dim])
    for first, extent in ((0, at), (at, box.shape[dim] - at)):
        offset = (*box.offset[:dim], box.offset[dim] + first, *box.offset[dim + 1 :])
        yield from _boxes(
            chance, Box(offset, (*box.shape[:dim], extent, *box.shape[dim + 1 :])), dims, splits - 1
        )


def _stored(
    chance: random.Random, place: SlotPlace, chunk: int, box: Box | None, container: int
) -> StoredChunk:
    whole = place.grid.box_at(chunk)
    size = (whole if box is None else box).size * ITEM
    start = place.logical_start(chunk)
    cuts: bytes | None = b""
    if box is not None:
        lines = runs(box, whole.shape)
        cuts, start = (b"", start + lines.first * ITEM) if lines.count == 1 else (None, start)
    if cuts is not None:
        cuts = chance.randbytes(4 * (-(-(start + size) // BLOCK_BYTES) - start // BLOCK_BYTES))
    if box is None and chance.random() < 0.2:
        return StoredChunk(None, start, size, cuts)
    sums = chance.randbytes(4 * -(-size // BLOCK_BYTES))
    return StoredChunk(Segment(container, chance.randrange(1 << 40), size, box, sums), start, size, cuts)


def _entries(chance: random.Random, name: tuple[str, str], place: SlotPlace) -> Iterator[Entry]:
    cut = chance.choice(["whole", "rows", "any"])
    for chunk in range(place.grid.count):
        shape = place.grid.box_at(chunk).shape
        dims = [*range(len(shape))] if cut == "any" else [*range(len(shape))][:1]
        for box in _boxes(chance, Box.whole(shape), dims, 0 if cut == "whole" else chance.randrange(4)):
            is_whole = box.shape == shape and (not shape or chance.random() < 0.8)
            container = chance.choice([0, 1, OWN_OBJECT]) if is_whole else chance.randrange(2)
            yield name, chunk, _stored(chance, place, chunk, None if is_whole else box, container)


def _faulty(chance: random.Random, entries: list[Entry], fault: str) -> list[Entry]:
    if not entries or fault == "none":
        return entries
    at = chance.randrange(len(entries))
    name, chunk, one = entries[at]
    segment = one.segment
    box = None if segment is None else segment.box
    changed = [entries[at]]
    if fault == "lost":
        changed = []
    elif fault == "twice":
        changed *= 2
    elif fault == "moved" and segment is not None and box is not None:
        beside = Box((*box.offset[:-1], box.offset[-1] + 1), box.shape)
        changed = [(name, chunk, one._replace(segment=segment._replace(box=beside)))]
    elif fault == "flat" and segment is not None and box is not None:
        flat = Box((0,), (box.size,))
        changed = [(name, chunk, one._replace(segment=segment._replace(box=flat)))]
    elif fault == "unboxed" and segment is not None:
        changed = [(name, chunk, one._replace(segment=segment._replace(box=None)))]
    elif fault == "zero":
        changed = [(name, chunk, one._replace(segment=None))]
    elif fault == "late" and all(other.cuts is not None for whose, _, other in entries if whose == name):
        changed = [(name, chunk, one._replace(start=one.start + BLOCK_BYTES))]
    elif fault == "elsewhere":
        changed = [(name, chunk + 1, one)]
    return [*entries[:at], *changed, *entries[at + 1 :]]


@st.composite
def spreads(draw: st.DrawFn, faults: tuple[str, ...] = FAULTS) -> Written:
    """Slots of up to some forty chunks, cut into boxes that several writers have written in any order."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    shapes = draw(
        st.lists(
            st.one_of(
                st.just(()),
                st.tuples(st.sampled_from([0, 1, 7, 262_144, 700_001])),
                st.tuples(st.integers(0, 5), st.sampled_from([1, 3, 262_144, 700_001])),
                st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 5, 131_072, 300_007])),
            ),
            min_size=1,
            max_size=4,
        )
    )
    names = [(f"a{index // 2}", f"s{index % 2}") for index in range(len(shapes))]
    places = {
        name: _place(name, shape, draw(st.sampled_from([1 << 20, 3 << 20])))
        for name, shape in zip(names, shapes, strict=True)
    }
    entries = [entry for name, place in places.items() for entry in _entries(chance, name, place)]
    entries = _faulty(chance, entries, draw(st.sampled_from(faults)))
    if draw(st.booleans()):
        chance.shuffle(entries)
    count = draw(st.integers(1, 4))
    writers: list[tuple[list[Entry], int]] = [([], 2) for _ in range(count)]
    for entry in entries:
        chance.choice(writers)[0].append(entry)
    return Written(places, writers)


def _one_by_one(written: Written) -> Settlement:
    ledger: list[Entry] = []
    before = 0
    for entries, packs in written.writers:
        for name, chunk, one in entries:
            segment = one.segment
            if segment is not None and segment.container != OWN_OBJECT:
                segment = segment._replace(container=before + segment.container)
            ledger.append((name, chunk, one._replace(segment=segment)))
        before += packs
    return SettledEntries(written.places, ledger)


def _by_columns(written: Written) -> Settlement:
    parts = []
    before = 0
    for number, (entries, packs) in enumerate(written.writers):
        names = list(written.places)
        if number % 2:  # some count all slots backwards
            names.reverse()
        parts.append((StoredColumns.of(entries, names), range(before, before + packs)))
        before += packs
    return SettledColumns(written.places, parts)


def _outcome(
    written: Written, how: Callable[[Written], Settlement], stops: list[int]
) -> list[object] | tuple[str, str]:
    """Tables and content digests of index parts, or the refusal."""
    found: list[object] = []
    names = list(written.places)
    try:
        settlement = how(written)
        for first, stop in zip([0, *stops], [*stops, len(names)], strict=True):
            table = TableBuilder()
            contents = settlement.settle(names[first:stop], table)
            found += [contents, table.build(), table.nbytes]
    except (UcpError, ValueError) as refusal:
        return type(refusal).__name__, str(refusal)
    return found


@given(spreads(), st.integers(0, 4), st.sampled_from([1, 5, 1 << 15]))
def test_columns_and_entries_come_to_the_same(written: Written, stop: int, rows: int) -> None:
    stops = [min(stop, len(written.places))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settled_columns, "_ROWS", rows)
        assert _outcome(written, _by_columns, stops) == _outcome(written, _one_by_one, stops)


def _tiled(shape: tuple[int, ...], cuts: Mapping[int, int], chunk_bytes: int = 1 << 30) -> Written:
    """A slot whose chunks are written in boxes that have these extents in these dims."""
    name = ("a", "s")
    place = _place(name, shape, chunk_bytes)
    chance = random.Random(0)
    entries: list[Entry] = []
    for chunk in range(place.grid.count):
        room = place.grid.box_at(chunk).shape
        boxes = [Box.whole(room)]
        for dim, extent in cuts.items():
            boxes = [
                _with(box, dim, first, min(extent, room[dim] - first))
                for box in boxes
                for first in range(0, room[dim], extent)
            ]
        entries += [(name, chunk, _stored(chance, place, chunk, box, 0)) for box in boxes]
    chance.shuffle(entries)
    return Written({name: place}, [(entries[::2], 1), (entries[1::2], 1)])


def _with(box: Box, dim: int, first: int, extent: int) -> Box:
    return Box(
        (*box.offset[:dim], first, *box.offset[dim + 1 :]), (*box.shape[:dim], extent, *box.shape[dim + 1 :])
    )


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ((600_000,), {0: 70_001}),
        ((64, 4096), {0: 3}),
        ((64, 4096), {1: 999}),
        ((9, 8, 4096), {0: 4, 1: 3, 2: 1024}),
    ],
    ids=["flat", "rows", "columns", "blocks"],
)
def test_what_ranks_write_is_seen_at_a_glance(
    shape: tuple[int, ...], cuts: Mapping[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = _tiled(shape, cuts)
    expected = _outcome(written, _one_by_one, [0])
    assert isinstance(expected, list)

    def looked_at(*_: object, **__: object) -> None:
        raise AssertionError("a slot was settled entry by entry")

    monkeypatch.setattr(settled_columns, "settled", looked_at)
    assert _outcome(written, _by_columns, [0]) == expected


def _faults(entry: Entry) -> Iterator[list[Entry]]:
    """What may have become of a box instead, none of which is right; each time a number of elements is one off."""
    name, chunk, one = entry
    yield []
    yield [entry, entry]
    yield [(name, chunk + 1, one)]
    yield [(name, chunk, one._replace(segment=None))]
    if one.segment is None or one.segment.box is None:
        raise AssertionError("there is no box")
    box = one.segment.box
    changed: list[Box | None] = [None, Box((0,), (box.size,))]
    for dim, (first, extent) in enumerate(zip(box.offset, box.shape, strict=True)):
        changed += [_with(box, dim, first, extent + 1), _with(box, dim, first + 1, extent)]
        changed += [_with(box, dim, first, extent - 1)]
        if first:
            changed += [_with(box, dim, first - 1, extent), _with(box, dim, first - 1, extent + 1)]
    for other in changed:
        yield [(name, chunk, one._replace(segment=one.segment._replace(box=other)))]


@pytest.mark.parametrize("cuts", [{0: 2}, {0: 2, 1: 50_000}], ids=["rows", "blocks"])
def test_any_box_that_is_not_where_it_should_be_is_refused(cuts: Mapping[int, int]) -> None:
    written = _tiled((8, 131_072), cuts, 1 << 21)
    (place,) = written.places.values()
    assert place.grid.count == 2
    for entries, _ in written.writers:
        right = list(entries)
        for at, entry in enumerate(right):
            for changed in _faults(entry):
                entries[:] = [*right[:at], *changed, *right[at + 1 :]]
                outcome = _outcome(written, _by_columns, [0])
                assert outcome == _outcome(written, _one_by_one, [0])
                assert isinstance(outcome, tuple)
                assert outcome[1].startswith(("UCP-E-COVER", "UCP-E-SHAPE"))
        entries[:] = right


def test_runs_that_do_not_follow_one_another_have_no_digest() -> None:
    written = _tiled((8, 131_072), {0: 2}, 1 << 21)
    for entries, _ in written.writers:
        right = list(entries)
        for at, (name, chunk, one) in enumerate(right):
            for start, size in ((one.start + 4, one.size - 4), (one.start, one.size - 4)):
                entries[:] = [*right]
                entries[at] = (name, chunk, one._replace(start=start, size=size))
                outcome = _outcome(written, _by_columns, [0])
                assert outcome == _outcome(written, _one_by_one, [0])
                assert isinstance(outcome, list)
                assert outcome[3] == [None]
        entries[:] = right
