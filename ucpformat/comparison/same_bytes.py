"""Which elements of two slots nobody has to read to know that they are equal (SPEC section 8.5).

Two increments of a run, or an increment and its base, have packs in common. Where both refer to the same bytes of one
file, for the same elements, these are equal: whatever the file holds. In an object store each has copies of its own;
there, and between checkpoints that share nothing, the recorded checksums tell, of which content digests are made
(section 11.3): as surely as these, and no surer.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import UcpError
from ucpformat.geometry import Box, runs
from ucpformat.model.table import rows_of
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.reading.layers import are_layered, row_dim
from ucpformat.storage.stores.local_objects import LocalObjects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.stores.store import Objects

__all__ = ["Files", "unshared_boxes"]

_NEAR_BYTES: Final = 1 << 16
"""Rows that differ are read together with what is between them, where that is less."""


class Files:
    """Tells files from one another: by number on a file system, by URL and key in any other store."""

    def __init__(self, store: Objects) -> None:
        self._store = store
        self._known: dict[str, object] = {}

    def of(self, key: str) -> object:
        """Return what is equal for the same file alone; one that is missing equals no other."""
        if key not in self._known:
            self._known[key] = self._look(key)
        return self._known[key]

    def _look(self, key: str) -> object:
        if not isinstance(self._store, LocalObjects):
            return self._store.url, key
        with suppress(UcpError), self._store.sharable(key) as source:
            return source.identity
        return object()


def unshared_boxes(
    a: StoredSlot, b: StoredSlot, files_of_a: Files, files_of_b: Files, *, by_checksums: bool = False
) -> Iterator[tuple[Box, ...]]:
    """Yield, for each chunk of ``a``, disjoint boxes of the slot that have all elements that may differ in ``b``.

    Both have the same shape and data type. None are yielded for a chunk that both have from the same bytes.
    ``by_checksums``: nor are elements of which both record the same checksums.

    Raises:
        UcpError: what the segments of a chunk raise.
    """
    is_alike = a.grid == b.grid and a.compressor == b.compressor
    for chunk in range(a.grid.count):
        whole = a.grid.box_at(chunk)
        if is_alike:
            pair = _Chunks(a, b, chunk, files_of_a, files_of_b, by_checksums=by_checksums)
            found = tuple(box.translate(whole.offset) for box in pair.unshared())
        else:
            found = (whole,)
        if found:
            yield found


class _Chunks:
    """The same chunk of two slots; boxes are in coordinates of the chunk."""

    def __init__(
        self,
        a: StoredSlot,
        b: StoredSlot,
        chunk: int,
        files_of_a: Files,
        files_of_b: Files,
        *,
        by_checksums: bool,
    ) -> None:
        self._by_checksums = by_checksums
        self._whole = Box.whole(a.grid.box_at(chunk).shape)
        self._item = a.dtype.item_bytes
        self._is_compressed = a.compressor is not None
        self._chunk = chunk
        self._sides = ((a, files_of_a), (b, files_of_b))

    def unshared(self) -> Iterator[Box]:
        """Yield disjoint boxes that have all elements that may differ."""
        layers_of_a, layers_of_b = (self._by_box(*side) for side in self._sides)
        if not layers_of_a and not layers_of_b:
            return  # zeros
        if self._by_checksums:
            layers_of_b = {
                box: _known_as(layers_of_a.get(box, ()), of_b) for box, of_b in layers_of_b.items()
            }
        if self._is_compressed or not layers_of_a or not layers_of_b:
            if [*map(_places, layers_of_a.values())] != [*map(_places, layers_of_b.values())]:
                yield self._whole
        elif layers_of_a.keys() == layers_of_b.keys():
            for box, layers in layers_of_a.items():
                yield from self._in_box(box, layers, layers_of_b[box])
        elif any(len(one) > 1 for one in (*layers_of_a.values(), *layers_of_b.values())):
            yield self._whole
        else:
            yield from self._where_boxes_meet(layers_of_a, layers_of_b)

    def _by_box(self, stored: StoredSlot, files: Files) -> dict[Box, list[_Placed]]:
        found: dict[Box, list[_Placed]] = {}
        for segment in stored.segments(self._chunk):
            box = segment.box or self._whole
            placed = (files.of(stored.object_key(self._chunk, segment)), segment._replace(box=box))
            found.setdefault(box, []).append(placed)
        return found

    def _in_box(self, box: Box, of_a: list[_Placed], of_b: list[_Placed]) -> Iterator[Box]:
        if _places(of_a) == _places(of_b):
            return
        row_bytes = box.size // rows_of(box) * self._item
        if are_layered([segment for _, segment in (*of_a, *of_b)]):
            numbers: dict[object, int] = {}
            rows = [self._rows(box, layers, numbers) for layers in (of_a, of_b)]
            (different,) = np.nonzero((rows[0] != rows[1]).any(axis=0))
        else:
            blocks = self._blocks(of_a[0][1], of_b[0][1])
            if blocks is None:
                yield box
                return
            different = _rows_of_blocks(blocks, row_bytes, rows_of(box))
        dim = row_dim(box.shape)
        edges = np.flatnonzero(np.diff(different) > max(1, _NEAR_BYTES // row_bytes)) + 1
        for some in np.split(different, edges) if different.size else ():
            first, extent = int(some[0]), int(some[-1] - some[0]) + 1
            offset = (*box.offset[:dim], box.offset[dim] + first, *box.offset[dim + 1 :])
            yield Box(offset, (*box.shape[:dim], extent, *box.shape[dim + 1 :]))

    def _blocks(self, a: Segment, b: Segment) -> NDArray[np.intp] | None:
        """Return the blocks of one box that have other checksums in both; None where all of it is to be read."""
        if not self._by_checksums or len(a.checksums) <= 4 or len(a.checksums) != len(b.checksums):
            return None
        sums = (np.frombuffer(one.checksums, "<u4") for one in (a, b))
        return np.flatnonzero(np.not_equal(*sums))

    def _rows(self, box: Box, layers: list[_Placed], numbers: dict[object, int]) -> NDArray[np.int64]:
        """Return of each row the number of its file, and where in that it begins."""
        row_bytes = box.size // rows_of(box) * self._item
        found = np.zeros((2, rows_of(box)), np.int64)
        for file, segment in layers:
            present = segment.present()
            found[0, present] = numbers.setdefault(file, len(numbers))
            found[1, present] = segment.offset + row_bytes * np.arange(np.count_nonzero(present))
        return found

    def _where_boxes_meet(
        self, of_a: dict[Box, list[_Placed]], of_b: dict[Box, list[_Placed]]
    ) -> Iterator[Box]:
        """Yield what of boxes that are cut in another way is not the same run of bytes."""
        for box, ((file, segment),) in of_a.items():
            for other_box, ((other_file, other),) in of_b.items():
                both = box.intersect(other_box)
                if both is None:
                    continue
                lines, other_lines = (runs(both.relative_to(one), one.shape) for one in (box, other_box))
                is_run = lines.count == other_lines.count == 1
                begins = segment.offset + lines.first * self._item
                begins_there = other.offset + other_lines.first * self._item
                if not (is_run and file == other_file and begins == begins_there):
                    yield both


_Placed = tuple[object, "Segment"]


def _known_as(of_a: Sequence[_Placed], of_b: Sequence[_Placed]) -> list[_Placed]:
    """Return layers of a box, those as if they lay where ``of_a`` has as many bytes with the same checksums."""
    known = {(one.length, one.checksums): (file, one.offset) for file, one in of_a}
    found: list[_Placed] = []
    for file, one in of_b:
        place = known.get((one.length, one.checksums))
        found.append((file, one) if place is None else (place[0], one._replace(offset=place[1])))
    return found


def _rows_of_blocks(blocks: NDArray[np.intp], row_bytes: int, count: int) -> NDArray[np.intp]:
    """Return the rows, of so many, that have bytes in these blocks."""
    rows = np.zeros(count, bool)
    for block in blocks.tolist():
        rows[block * BLOCK_BYTES // row_bytes : -(-(block + 1) * BLOCK_BYTES // row_bytes)] = True
    return np.flatnonzero(rows)


def _places(layers: Sequence[_Placed]) -> list[tuple[object, int, int, bytes | None]]:
    return [(file, one.offset, one.length, one.row_set) for file, one in layers]
