"""What has been written of slots, and whether that is all of each, once (SPEC sections 11.3 and 16.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ucpformat.errors import error
from ucpformat.geometry import exact_cover
from ucpformat.storage.checksum import ContentDigest, whole_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ucpformat.model.table import Segment, TableBuilder
    from ucpformat.storage.writing.chunk_writer import SlotPlace, StoredChunk

__all__ = ["Entry", "Ledger", "SettledEntries", "Settlement", "settled"]

Entry = tuple[tuple[str, str], int, "StoredChunk"]
"""Names of atom and slot, a chunk of the slot, and what became of it or of a box of it."""


class Ledger:
    """Entries in the order in which they come in, from any thread."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def extend(self, entries: Iterable[Entry]) -> None:
        """Record what became of chunks, or of boxes of them."""
        self.entries += list(entries)  # in one step, whatever other threads do

    def by_slot(self) -> dict[tuple[str, str], list[tuple[int, StoredChunk]]]:
        """What was written of each slot of which anything was, chunk by chunk in the order of entries."""
        found: dict[tuple[str, str], list[tuple[int, StoredChunk]]] = {}
        for name, chunk, stored in self.entries:
            if name in found:
                found[name].append((chunk, stored))
            else:
                found[name] = [(chunk, stored)]
        return found


class Settlement(Protocol):
    """Everything that was written of slots, in the order of table rows."""

    def settle(self, names: Sequence[tuple[str, str]], table: TableBuilder) -> list[str | None]:
        """Add the chunks of the next slots to ``table``; their content digests, as `settled` has them.

        Raises:
            UcpError: ``UCP-E-COVER`` as `settled`.
        """
        ...


class SettledEntries:
    """What one writer has written of ``places``, entry by entry: most slots that one process writes have one."""

    def __init__(self, places: Mapping[tuple[str, str], SlotPlace], ledger: Ledger) -> None:
        self._places = places
        self._written = ledger.by_slot()

    def settle(self, names: Sequence[tuple[str, str]], table: TableBuilder) -> list[str | None]:
        """As `Settlement.settle`."""
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
    """Segments per chunk of a slot, in order, and its content digest (SPEC 11.3).

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
    boxes = [segment.box for segment in segments if segment.box is not None]
    if boxes:
        fault = exact_cover(boxes, place.grid.box_at(chunk).shape)
        if fault is not None:
            message = f"what was written of chunk {key} does not tile it: {fault}"
            raise error("UCP-E-COVER", message, at=at)
        segments.sort(key=lambda segment: segment.box.offset if segment.box is not None else ())
    if len(written) > max(1, len(boxes)):
        raise error("UCP-E-COVER", f"chunk {key} was written more than once", at=at)
    return segments
