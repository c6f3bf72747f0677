"""What has been written of a slot, and whether that is all of it, once (SPEC sections 11.3 and 16.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucpformat.errors import error
from ucpformat.geometry import exact_cover
from ucpformat.storage.checksum import ContentDigest, block_digest

if TYPE_CHECKING:
    import threading

    from ucpformat.model.table import Segment
    from ucpformat.storage.chunk_writer import SlotPlace, StoredChunk

__all__ = ["WrittenSlot"]


class WrittenSlot:
    """Chunks of one slot as they come in, from any thread. Slots may share a ``lock``: it is held for moments."""

    __slots__ = ("_lock", "place", "written")

    def __init__(self, place: SlotPlace, lock: threading.Lock) -> None:
        self.place = place
        self.written: dict[int, list[StoredChunk]] = {}
        self._lock = lock

    def add(self, chunk: int, stored: StoredChunk) -> None:
        """Record what became of a chunk or of a box of it."""
        with self._lock:
            self.written.setdefault(chunk, []).append(stored)

    def content(self) -> str | None:
        """The content digest (SPEC 11.3) of a slot that is `finished`; None where boxes are no runs of it."""
        stored = [one for written in self.written.values() for one in written]
        if len(stored) == 1 and (cuts := stored[0].cuts) is not None and len(cuts) == 1:
            return block_digest(cuts[0].crc)  # as with most slots
        digest = ContentDigest(self.place.nbytes)
        for _, start, cuts in stored:
            if cuts is None:
                return None
            digest.add(start, cuts)
        return digest.value()

    def finished(self, name: str) -> list[list[Segment]]:
        """Segments per chunk in order, or ``UCP-E-COVER`` where something was not written or written twice."""
        grid, chunks = self.place.grid, []
        for chunk in range(grid.count):
            written = self.written.get(chunk)
            if written is not None and len(written) == 1 and written[0].fills_chunk:
                segment = written[0].segment
                chunks.append([] if segment is None else [segment])
                continue
            at = f"{name}/{self.place.slot}"
            key = grid.key(grid.index_of(chunk))
            if written is None:
                raise error("UCP-E-COVER", f"chunk {key} was never written", at=at)
            segments = [stored.segment for stored in written if stored.segment is not None]
            boxes = [segment.box for segment in segments if segment.box is not None]
            if boxes:
                fault = exact_cover(boxes, grid.box_at(chunk).shape)
                if fault is not None:
                    raise error(
                        "UCP-E-COVER", f"what was written of chunk {key} does not tile it: {fault}", at=at
                    )
                segments.sort(key=lambda segment: segment.box.offset if segment.box is not None else ())
            if len(written) > max(1, len(boxes)):
                raise error("UCP-E-COVER", f"chunk {key} was written more than once", at=at)
            chunks.append(segments)
        return chunks
