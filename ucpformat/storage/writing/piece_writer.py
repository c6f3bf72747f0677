"""One writer of an attempt: boxes of declared slots into a store, in several threads (SPEC section 17.4).

A checkpoint has one such writer for each process that holds some of it. What each has written is in its `ledger`, in
the order in which it was written; whoever commits puts them together.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ucpformat.errors import error
from ucpformat.geometry import Box, exact_cover
from ucpformat.storage.checksum import ContentDigest, whole_digest
from ucpformat.storage.writing.chunk_writer import ChunkWriter, PlainChunkWriter
from ucpformat.storage.writing.packed_chunks import PackedChunkWriter
from ucpformat.storage.writing.slot_writer import SlotBox, SlotWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ucpformat.model.references import Pack
    from ucpformat.model.root import Storage
    from ucpformat.model.table import Segment, TableBuilder
    from ucpformat.storage.stores.store import Store
    from ucpformat.storage.writing.chunk_writer import BaseChunks, SlotPlace, StoredChunk

__all__ = ["Entry", "PieceWriter", "SettledEntries", "Settlement", "settled"]

Entry = tuple[tuple[str, str], int, "StoredChunk"]
"""Names of atom and slot, a chunk of the slot, and what became of it or of a box of it."""


class Settlement(Protocol):
    """Everything that was written of slots, in the order of table rows.

    A commit calls `settle` once for each index part, in order, after all chunks were written.
    """

    def settle(self, names: Sequence[tuple[str, str]], table: TableBuilder) -> list[str | None]:
        """Add the chunks of the next slots to ``table``; return their content digests, as `settled` has them.

        Raises:
            UcpError: ``UCP-E-COVER`` as `settled`.
        """
        ...


class SettledEntries:
    """What one writer has written of ``places``, entry by entry: most slots that one process writes have one."""

    def __init__(self, places: Mapping[tuple[str, str], SlotPlace], ledger: Iterable[Entry]) -> None:
        self._places = places
        self._written: dict[tuple[str, str], list[tuple[int, StoredChunk]]] = {}
        for name, chunk, stored in ledger:
            if name in self._written:
                self._written[name].append((chunk, stored))
            else:
                self._written[name] = [(chunk, stored)]

    def settle(self, names: Sequence[tuple[str, str]], table: TableBuilder) -> list[str | None]:
        """Do as `Settlement.settle`."""
        contents = []
        for name in names:
            chunks, content = settled(self._places[name], self._written.get(name, ()), atom=name[0])
            for segments in chunks:
                table.add_chunk(segments)
            contents.append(content)
        return contents


def settled(
    place: SlotPlace, written: Sequence[tuple[int, StoredChunk]], *, atom: str
) -> tuple[list[list[Segment]], str | None]:
    """Return segments per chunk of a slot, in order, and its content digest (SPEC 11.3).

    The digest is None where boxes are no runs of the slot.

    Raises:
        UcpError: ``UCP-E-COVER`` where something was not written or written twice.
    """
    if place.grid.count == 1 and len(written) == 1:
        segment, _, _, cuts = written[0][1]
        if cuts is not None and (segment is None or segment.box is None):  # as with most slots
            return [[] if segment is None else [segment]], whole_digest(cuts)
    by_chunk: dict[int, list[StoredChunk]] = {}
    for chunk, stored in written:
        by_chunk.setdefault(chunk, []).append(stored)
    chunks = [
        _segments_of_chunk(place, chunk, by_chunk.get(chunk, ()), atom) for chunk in range(place.grid.count)
    ]
    return chunks, _content_of(place, written)


def _content_of(place: SlotPlace, written: Sequence[tuple[int, StoredChunk]]) -> str | None:
    digest = ContentDigest(place.nbytes)
    for _, (_, start, size, cuts) in written:
        if cuts is None:
            return None
        if size:  # layers of a box have its cuts once
            digest.add(start, size, cuts)
    return digest.value()


def _segments_of_chunk(
    place: SlotPlace, chunk: int, written: Sequence[StoredChunk], atom: str
) -> list[Segment]:
    segments = [stored.segment for stored in written if stored.segment is not None]
    if len(written) == 1 and written[0].fills_chunk:
        return segments
    at = f"{atom}/{place.slot}"
    key = place.grid.key(place.grid.index_of(chunk))
    if not written:
        raise error("UCP-E-COVER", f"chunk {key} was never written", at=at)
    boxes = [segment.box for segment in segments if segment.box is not None and segment.row_set is None]
    layers = [segment for segment in segments if segment.row_set is not None]
    boxes += dict.fromkeys(layer.box for layer in layers if layer.box is not None and layer.box not in boxes)
    if boxes:
        fault = exact_cover(boxes, place.grid.box_at(chunk).shape)
        if fault is not None:
            message = f"what was written of chunk {key} does not tile it: {fault}"
            raise error("UCP-E-COVER", message, at=at)
        segments.sort(key=lambda segment: segment.box.offset if segment.box is not None else ())
    if len(written) > max(1, len(boxes)) + len(layers):
        raise error("UCP-E-COVER", f"chunk {key} was written more than once", at=at)
    return segments


class PieceWriter:
    """Writes boxes of slots, given by names of atom and slot.

    ``name`` is that of its packs, which no other writer may use: an attempt identifier and the writer's number.
    What ``base`` has is not written again; it is closed with the writer.
    """

    def __init__(
        self,
        store: Store,
        places: Mapping[tuple[str, str], SlotPlace],
        *,
        storage: Storage,
        name: str,
        workers: int,
        progress: Callable[[int], None] | None = None,
        base: BaseChunks | None = None,
    ) -> None:
        self.places = places
        self._base = base
        self.ledger: list[Entry] = []
        self._chunks: ChunkWriter
        if storage == "plain":
            self._chunks = PlainChunkWriter(store.create, base)
        else:
            packs = min(store.packs_at_once, workers)
            self._chunks = PackedChunkWriter(store, name=name, packs=packs, base=base)
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="ucp-write")
        shared = base if storage == "packed" else None  # in plain, each object is looked for as it is made
        self._slot_writer = SlotWriter(
            self._chunks, self.ledger, self._executor, workers, progress, base=shared
        )

    def begin(self) -> None:
        """Write the metadata documents of storage plain; one writer of an attempt does, before any chunk."""
        if isinstance(self._chunks, PlainChunkWriter):
            self._chunks.begin(list(self.places.values()))

    def write(
        self, atom: str, slot: str, data: NDArray[np.generic], offset: tuple[int, ...] | None = None
    ) -> None:
        """Write a whole slot, or the box of it at ``offset`` with the shape of ``data``.

        The call returns when the bytes are handed to the store; ``data`` may then be changed.

        Raises:
            UcpError: ``UCP-E-MISMATCH`` where dtype or shape are not those declared; ``UCP-E-STORE`` for a box
                that cuts chunks, where storage is plain or the slot compressed.
        """
        self._slot_writer.write(self._checked(atom, slot, data, offset))

    def submit(
        self, atom: str, slot: str, data: NDArray[np.generic], offset: tuple[int, ...] | None = None
    ) -> None:
        """Write as `write` does, in the background: ``data`` must not change before `finish` returns."""
        self._slot_writer.submit(self._checked(atom, slot, data, offset))

    def _checked(
        self, atom: str, slot: str, data: NDArray[np.generic], offset: tuple[int, ...] | None
    ) -> SlotBox:
        name = (atom, slot)
        place = self.places.get(name)
        if place is None:
            raise error("UCP-E-MISMATCH", "this slot was not declared", at=f"{atom}/{slot}")
        kind, grid = place.dtype, place.grid
        if data.dtype is not kind.numpy and data.dtype != kind.numpy:
            message = f"the data are {data.dtype}, declared is {kind.name}"
            raise error("UCP-E-MISMATCH", message, at=f"{atom}/{slot}")
        if data.shape == grid.shape and not (offset and any(offset)):
            return SlotBox(name, place, grid.whole, data)
        box = Box((0,) * data.ndim if offset is None else offset, data.shape)
        if box.ndim != len(grid.shape) or offset is None or not grid.whole.contains(box):
            message = f"{box} does not fit the declared shape {grid.shape}"
            raise error("UCP-E-MISMATCH", message, at=f"{atom}/{slot}")
        return SlotBox(name, place, box, data)

    def drain(self) -> None:
        """Wait for everything submitted; raises the first error of a background write."""
        self._slot_writer.drain()

    def finish(self) -> list[Pack]:
        """Wait for everything submitted, and close the packs; raises the first error of a background write."""
        self.drain()
        return self._chunks.finish()

    @property
    def shared_bytes(self) -> int:
        """Bytes of the objects of chunks that are those of the base (storage plain)."""
        return 0 if self._base is None else self._base.shared_bytes

    def close(self) -> None:
        """Release threads, and the base."""
        self._executor.shutdown()
        if self._base is not None:
            self._base.close()

    def abort(self) -> None:
        """Stop: what was submitted and is not written yet is dropped."""
        self._slot_writer.stop()
        self._executor.shutdown(cancel_futures=True)
        with suppress(Exception):
            self._chunks.abort()
        if self._base is not None:
            self._base.close()
