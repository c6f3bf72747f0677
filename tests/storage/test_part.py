"""Where the chunks of a slot lie (SPEC 16)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import STORAGES, ZSTD, Tensor, result_or_refusal, save
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.reading.part import StoredPart
from ucpformat.storage.reading.stored_slot import StoredSlot


def slot_of(path: Path, storage: Storage, shape: tuple[int, ...]) -> StoredSlot:
    data = np.ones(shape, np.int16)
    save(path, {("a/b", "value"): Tensor(data, "int16")}, storage=storage, chunk_bytes=16)
    with open_checkpoint(path) as checkpoint:
        return checkpoint["a/b"]["value"].stored


@pytest.mark.parametrize("storage", STORAGES)
def test_sizes_and_places(tmp_path: Path, storage: Storage) -> None:
    """UCP-D-092, UCP-D-104, UCP-D-098: chunks of 2 rows and of 1, of 6 bytes a row."""
    stored = slot_of(tmp_path / "c", storage, (5, 3))
    assert stored.grid.chunk_shape == (2, 3)
    assert (stored.nbytes, stored.whole_bytes()) == (30, 12)
    assert [stored.raw_bytes(chunk) for chunk in range(3)] == [12, 12, 6]
    assert [stored.grid.box_at(chunk).shape for chunk in range(3)] == [(2, 3), (2, 3), (1, 3)]
    assert stored.chunk_at(2).endswith("#chunk c/2/0 of a/b/value")
    key = stored.object_key(2, stored.segments(2)[0])
    assert key == f"{stored.prefix}/c/2/0" if storage == "plain" else key.startswith("packs/")


def test_keys_of_chunk_objects_are_told_from_others(tmp_path: Path) -> None:
    stored = slot_of(tmp_path / "c", "plain", (5, 3))
    assert all(stored.has_object(f"{stored.prefix}/c/{row}/0") for row in range(3))
    others = (
        "c",
        "c/0",
        "c/3/0",
        "c/0/1",
        "c/0/0/0",
        "c/00/0",
        "c/+0/0",
        "c/x/0",
        "c/-1/0",
        "d/0/0",
        "zarr.json",
    )
    assert not any(stored.has_object(f"{stored.prefix}/{other}") for other in others)


def test_a_tensor_without_dimensions_has_one_object(tmp_path: Path) -> None:
    """SPEC 16.1: its key is ``c``."""
    stored = slot_of(tmp_path / "c", "plain", ())
    assert stored.has_object(f"{stored.prefix}/c")
    assert not stored.has_object(f"{stored.prefix}/c/0")


@given(
    shapes=st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=8),
    zeros=st.sets(st.integers(0, 7)),
    compressed=st.sets(st.integers(0, 7)),
    shorter=st.sets(st.integers(0, 7)),
    storage=st.sampled_from(STORAGES),
)
def test_single_chunks_are_those_whose_segments_are_sound_and_one(
    shapes: list[list[int]], zeros: set[int], compressed: set[int], shorter: set[int], storage: Storage
) -> None:
    state = {
        (f"t{number}", "value"): Tensor(np.full(shape, number not in zeros, np.int16), "int16")
        for number, shape in enumerate(shapes)
    }
    with TemporaryDirectory() as directory:
        save(Path(directory, "c"), state, storage=storage, chunk_bytes=64)
        with open_checkpoint(Path(directory, "c")) as checkpoint:
            (whole,) = checkpoint.parts()
    rows = whole.table.rows.copy()
    # Whatever begins where it ends, because it is of the same slot, would be refused with it (UCP-D-107).
    followed = {int(row["offset"]) for row in rows if row["offset"] % 64}
    ends = (rows["offset"] + rows["length"]).tolist()
    rows["length"][[number for number in shorter if number < rows.size and ends[number] not in followed]] -= 1
    part = StoredPart(
        whole.index,
        replace(whole.table, rows=rows),
        packs=whole.packs if whole.packed else None,
        chunk_bytes=64,
        index_key=whole.index_key,
        table_key=whole.table_key,
    )
    part.compressors.update({number: ZSTD for number in compressed if number < len(shapes)})
    expected = {}
    for stored in part.slots():
        found = result_or_refusal(partial(stored.segments, 0)) if stored.grid.count == 1 else ()
        if stored.compressor is None and isinstance(found, tuple) and len(found) == 1:
            expected[stored.number] = (
                found[0].container,
                found[0].offset,
                found[0].length,
                found[0].checksums[:4],
            )
    single = part.single_chunks
    checksums = [part.table.checksums[first].tobytes() for first in single.checksums]
    columns = zip(single.containers, single.offsets, single.lengths, checksums, strict=True)
    assert dict(zip(single.slots.tolist(), columns, strict=True)) == expected
    assert [stored.number for stored in map(part.slot, [*expected])] == [*expected]
    positions = single.positions(np.arange(len(part.contents)))
    assert positions.tolist() == [
        [*expected].index(number) if number in expected else -1 for number in range(positions.size)
    ]
    for place, stored in enumerate(map(part.slot, [*expected])):
        assert (single.segment(place, part.table),) == stored.segments(0)
        assert single.covered(np.array([place])) == stored.nbytes
