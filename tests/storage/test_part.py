"""Where the chunks of a slot lie (SPEC 16)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.builders import STORAGES, Tensor, save
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.part import StoredSlot


def slot_of(path: Path, storage: Storage, shape: tuple[int, ...]) -> StoredSlot:
    data = np.ones(shape, np.int16)
    save(path, {("a/b", "value"): Tensor(data, "int16")}, storage=storage, chunk_bytes=16)
    with open_checkpoint(path) as checkpoint:
        return checkpoint["a/b"]["value"].stored


@pytest.mark.parametrize("storage", STORAGES)
def test_sizes_and_places(tmp_path: Path, storage: Storage) -> None:
    """UCP-D-037, UCP-D-047, UCP-D-068: chunks of 2 rows and of 1, of 6 bytes a row."""
    stored = slot_of(tmp_path / "c", storage, (5, 3))
    assert stored.grid.chunk_shape == (2, 3)
    assert (stored.nbytes, stored.whole_bytes()) == (30, 12)
    assert [stored.raw_bytes(chunk) for chunk in range(3)] == [12, 12, 6]
    assert [stored.chunk_shape(chunk) for chunk in range(3)] == [(2, 3), (2, 3), (1, 3)]
    assert stored.place(2).endswith("#chunk c/2/0 of a/b/value")
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
