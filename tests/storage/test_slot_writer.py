"""Slots that are written in the background: each once, by as many threads as there are, and no more after an error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import bits, guillotine, region
from tests.geometry.strategies import shapes
from ucpformat.declared import AtomSpec, SlotSpec, slot_place
from ucpformat.geometry import Box
from ucpformat.model.dtype import DTYPES
from ucpformat.reader import open_checkpoint
from ucpformat.storage.writing.chunk_writer import ChunkPiece, PlainChunkWriter, StoredChunk
from ucpformat.storage.writing.piece_writer import Entry
from ucpformat.storage.writing.slot_writer import SlotBox, SlotWriter
from ucpformat.validation import validate
from ucpformat.writer import CheckpointWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Recorded(PlainChunkWriter):
    """Notes what it is given, and how many threads are in it."""

    def __init__(self, meet: Callable[[], None] = lambda: None) -> None:
        super().__init__(lambda _key, _buffers: None)
        self.meet = meet
        self.pieces: list[tuple[str, int, bytes]] = []
        self.most = 0
        self._inside = 0
        self._lock = threading.Lock()

    def write_many(self, pieces: Sequence[ChunkPiece], *, keep: bool = False) -> list[StoredChunk]:
        assert keep
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        try:
            self.meet()
            self.pieces += [(piece.place.key, piece.chunk, bytes(piece.data)) for piece in pieces]
            return super().write_many(pieces, keep=keep)
        finally:
            with self._lock:
                self._inside -= 1


def box(number: int, elements: int) -> SlotBox:
    """A slot of bytes, in chunks of at most 64."""
    place = slot_place(f"k{number}", f"a{number}", "value", SlotSpec("uint8", (elements,)), 64)
    data = np.full(elements, 1 + number % 255, np.uint8)
    return SlotBox((f"a{number}", "value"), place, place.grid.whole, data)


@given(
    sizes=st.lists(st.integers(0, 400), max_size=30),
    workers=st.integers(1, 4),
    threshold=st.integers(1, 300),
)
def test_every_chunk_is_written_once_by_no_more_threads_than_there_are(
    sizes: list[int], workers: int, threshold: int
) -> None:
    chunks = Recorded()
    ledger: list[Entry] = []
    boxes = [box(number, size) for number, size in enumerate(sizes)]
    with (
        patch("ucpformat.storage.writing.slot_writer._BATCH_BYTES", threshold),
        ThreadPoolExecutor(workers) as executor,
    ):
        writer = SlotWriter(chunks, ledger, executor, workers, None)
        for one in boxes[::2]:
            writer.submit(one)
        writer.drain()
        for one in boxes[1::2]:
            writer.submit(one)
        writer.drain()
    expected = [
        (one.place.key, chunk, bytes(one.data[chunk * step : (chunk + 1) * step]))
        for one in boxes
        for step in one.place.grid.chunk_shape
        for chunk in range(one.place.grid.count)
    ]
    assert sorted(chunks.pieces) == sorted(expected)
    assert chunks.most <= workers
    assert sorted((name, chunk) for name, chunk, _ in ledger) == sorted(
        ((f"a{key[1:]}", "value"), chunk) for key, chunk, _ in expected
    )


@given(st.data())
def test_submitted_boxes_make_the_tensor(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Gathered, or one by one; those without elements, as ranks have that hold nothing of a slot, as well."""
    shape = data.draw(shapes(max_elements=400))
    tensor = bits(data.draw(st.integers(0, 99)), shape, DTYPES["int8"])
    boxes = data.draw(guillotine(Box.whole(shape), data.draw(st.integers(0, 8))))
    boxes += [Box(box.offset, (0, *box.shape[1:])) for box in boxes if shape]
    path = tmp_path_factory.mktemp("submitted") / "c"
    spec = AtomSpec("a", {"value": SlotSpec("int8", shape)})
    chunk_bytes = data.draw(st.sampled_from([64, 1024]))
    with (
        patch(
            "ucpformat.storage.writing.slot_writer._BATCH_BYTES", data.draw(st.sampled_from([1, 8, 1 << 20]))
        ),
        CheckpointWriter(path, [spec], chunk_bytes=chunk_bytes, workers=2, durability="none") as writer,
    ):
        for box in data.draw(st.permutations(boxes)):
            writer.submit("a", "value", tensor[region(box)], offset=box.offset)
    assert validate(path, workers=2) == []
    with open_checkpoint(path, workers=1) as checkpoint:
        assert checkpoint["a"]["value"].read().tobytes() == tensor.tobytes()


def test_after_an_error_nothing_more_is_begun() -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    chunks = Recorded(fail)
    with patch("ucpformat.storage.writing.slot_writer._BATCH_BYTES", 1), ThreadPoolExecutor(1) as executor:
        started = threading.Event()
        executor.submit(started.wait)  # until all has been submitted
        writer = SlotWriter(chunks, [], executor, 1, None)
        for number in range(5):
            writer.submit(box(number, 10))
        started.set()
        with pytest.raises(OSError, match="the disk is full"):
            writer.drain()
        chunks.meet = lambda: None
    assert not chunks.pieces


def test_of_what_waits_nothing_is_begun_after_a_stop() -> None:
    inside, may_go_on = threading.Event(), threading.Event()

    def stay() -> None:
        inside.set()
        may_go_on.wait()

    chunks = Recorded(stay)
    with patch("ucpformat.storage.writing.slot_writer._BATCH_BYTES", 1), ThreadPoolExecutor(1) as executor:
        writer = SlotWriter(chunks, [], executor, 1, None)
        for number in range(5):
            writer.submit(box(number, 10))
        inside.wait()
        writer.stop()
        may_go_on.set()
        with suppress(OSError):
            writer.drain()
    assert [key for key, _, _ in chunks.pieces] == ["k0"]
