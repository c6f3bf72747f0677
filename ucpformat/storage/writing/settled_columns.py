"""What several writers have written of slots, settled by columns (SPEC sections 11.3 and 16.4).

What is seen to be whole at a glance is: boxes that tile a chunk in rows, rows cut in columns, and so on. Of anything
else, and of all that is to be refused, `piece_writer.settled` has the word, slot by slot.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.model.atom import CONTENT_PREFIX
from ucpformat.model.table import prefix_sums
from ucpformat.storage.checksum import BLOCK_BYTES, block_values
from ucpformat.storage.writing.piece_writer import settled
from ucpformat.storage.writing.stored_columns import (
    CHUNK,
    CONTAINER,
    CUTS,
    LENGTH,
    NDIM,
    NONE,
    OFFSET,
    ROWS,
    SIZE,
    SLOT,
    START,
    SUMS,
    StoredColumns,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ucpformat.model.table import TableBuilder
    from ucpformat.storage.writing.chunk_writer import SlotPlace

__all__ = ["SettledColumns"]

_CRC_BYTES: Final = 4
_ROWS: Final = 1 << 15
"""How many are settled at once, but for those of a slot that has more."""


class SettledColumns:
    """Everything written of ``places``, which are in the order of table rows, by all writers.

    ``parts`` as `StoredColumns.joined` has them.
    """

    def __init__(
        self,
        places: Mapping[tuple[str, str], SlotPlace],
        parts: Sequence[tuple[StoredColumns, Sequence[int]]],
    ) -> None:
        names = list(places)
        self._places = list(places.values())
        self._stored = StoredColumns.joined(parts, names)
        slots = self._stored.rows[:, SLOT].astype(np.int32)
        self._order = np.argsort(slots, kind="stable")
        self._edges = prefix_sums(np.bincount(slots, minlength=len(names)))
        self._first_words = self._stored.first_words()
        self._first_checksums = self._stored.first_checksums()
        self._next = 0

    def settle(self, names: Sequence[tuple[str, str]], table: TableBuilder) -> list[str | None]:
        """Add the chunks of the next slots to ``table``; return their content digests (`settled`).

        Raises:
            UcpError: ``UCP-E-COVER`` as `settled`.
        """
        contents: list[str | None] = []
        stop = self._next + len(names)
        while self._next < stop:
            # As many slots as have few rows, so that what is made of rows on the way takes little memory.
            room = self._edges[self._next] + _ROWS
            last = int(np.searchsorted(self._edges[: stop + 1], room, "right")) - 1
            some = names[len(contents) : len(contents) + max(1, last - self._next)]
            contents += self._settle_some(some, table)
        return contents

    def _settle_some(self, names: Sequence[tuple[str, str]], table: TableBuilder) -> list[str | None]:
        first, stop = self._next, self._next + len(names)
        self._next = stop
        places = self._places[first:stop]
        edges = self._edges[first : stop + 1] - self._edges[first]
        picked = self._order[self._edges[first] : self._edges[stop]]
        some = self._part(places, picked, edges)
        contents = some.contents(places)
        whole = some.whole.tolist()
        slot = 0
        while slot < len(places):
            after = slot + 1
            if whole[slot]:
                while after < len(places) and whole[after]:
                    after += 1
                some.add_to(table, slot, after)
            else:
                mine = picked[edges[slot] : edges[after]]
                contents[slot] = self._settle_one(places[slot], mine, table, names[slot][0])
            slot = after
        return contents

    def _part(
        self, places: Sequence[SlotPlace], picked: NDArray[np.int64], edges: NDArray[np.int64]
    ) -> _Part:
        stored = self._stored
        rows = stored.rows[picked]
        slots = np.repeat(np.arange(len(places)), np.diff(edges))
        boxes = _boxes(places, slots, rows, self._first_words[picked], stored.words)
        order = np.lexsort((*boxes.offsets[::-1], rows[:, CHUNK], slots))
        picked, rows, boxes = picked[order], rows[order], boxes.taken(order)
        return _Part(
            stored,
            rows,
            slots,
            edges,
            self._first_words[picked],
            self._first_checksums[picked] // _CRC_BYTES,
            _whole(places, slots, rows, boxes, edges),
        )

    def _settle_one(
        self, place: SlotPlace, picked: NDArray[np.int64], table: TableBuilder, atom: str
    ) -> str | None:
        found = zip(
            self._stored.rows[picked].tolist(),
            self._first_words[picked].tolist(),
            self._first_checksums[picked].tolist(),
            strict=True,
        )
        written = [(row[CHUNK], self._stored.stored(row, word, at)) for row, word, at in found]
        chunks, content = settled(place, written, atom=atom)
        for segments in chunks:
            table.add_chunk(segments)
        return content


class _Boxes(NamedTuple):
    """One for each row, by dim: a row without a box has all of its chunk. Dims that a slot lacks are 1 long."""

    offsets: list[NDArray[np.int64]]
    extents: list[NDArray[np.int64]]
    of_chunk: list[NDArray[np.int64]]
    are_sound: NDArray[np.bool_]

    def taken(self, order: NDArray[np.int64]) -> _Boxes:
        return _Boxes(
            [one[order] for one in self.offsets],
            [one[order] for one in self.extents],
            [one[order] for one in self.of_chunk],
            self.are_sound[order],
        )


def _boxes(
    places: Sequence[SlotPlace],
    slots: NDArray[np.int64],
    rows: NDArray[np.int64],
    first_words: NDArray[np.int64],
    words: NDArray[np.int64],
) -> _Boxes:
    dims = np.array([len(place.grid.shape) for place in places], np.int64)[slots]
    (boxed,) = np.nonzero(rows[:, NDIM] != NONE)
    sound = np.ones(len(rows), bool)
    sound[boxed] = (rows[boxed, NDIM] == dims[boxed]) & (dims[boxed] > 0)
    boxed = boxed[sound[boxed]]
    grids = [place.grid for place in places]
    left = rows[:, CHUNK]
    columns: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    for dim in reversed(range(max((len(grid.shape) for grid in grids), default=0))):
        shape, step, count = (
            np.array([one[dim] if dim < len(one) else 1 for one in those], np.int64)[slots]
            for those in (
                [grid.shape for grid in grids],
                [grid.chunk_shape for grid in grids],
                [grid.counts for grid in grids],
            )
        )
        np.maximum(count, 1, out=count)  # what has no chunks is not whole anyhow
        left, index = np.divmod(left, count)
        of_chunk = np.minimum(step, shape - index * step)
        offset, extent = np.zeros(len(rows), np.int64), of_chunk.copy()
        held = boxed[dims[boxed] > dim]
        offset[held] = words[first_words[held] + dim]
        extent[held] = words[first_words[held] + dims[held] + dim]
        sound &= extent > 0
        columns.insert(0, (offset, extent, of_chunk))
    return _Boxes(
        [offset for offset, _, _ in columns],
        [extent for _, extent, _ in columns],
        [of_chunk for _, _, of_chunk in columns],
        sound,
    )


def _whole(
    places: Sequence[SlotPlace],
    slots: NDArray[np.int64],
    rows: NDArray[np.int64],
    boxes: _Boxes,
    edges: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return which slots are seen to have all of their chunks, each tiled; rows are sorted by chunk and offset of box.

    Dim by dim, rows with the same offset have to be equally long, and the next to begin where they end; that holds
    for chunks too, which are one long. Where nothing fails, there is no gap and no overlap.
    """
    counts = np.array([place.grid.count for place in places], np.int64)[slots]
    bad = ~boxes.are_sound | (rows[:, ROWS] > 0)
    together = slots[1:] == slots[:-1]
    ones = np.ones(len(rows), np.int64)
    for offset, extent, room in zip(
        (rows[:, CHUNK], *boxes.offsets), (ones, *boxes.extents), (counts, *boxes.of_chunk), strict=True
    ):
        stop = offset + extent
        bad[:1] |= offset[:1] != 0
        bad[-1:] |= stop[-1:] != room[-1:]
        bad[1:] |= ~together & (offset[1:] != 0)
        bad[:-1] |= ~together & (stop[:-1] != room[:-1])
        same = together & (offset[1:] == offset[:-1])
        bad[1:] |= same & (extent[1:] != extent[:-1])
        bad[1:] |= together & ~same & (offset[1:] != stop[:-1])
        together = same
    bad[1:] |= together
    whole = edges[1:] > edges[:-1]
    whole[slots[bad]] = False
    return whole


class _Part(NamedTuple):
    """Rows of slots in the order of the table, and where their boxes and checksums (in fours) begin.

    ``edges`` are the rows at which slots begin, ``whole`` says which slots need no closer look.
    """

    stored: StoredColumns
    rows: NDArray[np.int64]
    slots: NDArray[np.int64]
    edges: NDArray[np.int64]
    first_words: NDArray[np.int64]
    first_checksums: NDArray[np.int64]
    whole: NDArray[np.bool_]

    @property
    def checksums(self) -> NDArray[np.uint32]:
        return self.stored.checksums.view("<u4")

    def contents(self, places: Sequence[SlotPlace]) -> list[str | None]:
        """Return the content digests of slots that are whole; those with gaps between runs are not."""
        found: list[str | None] = [None] * len(places)
        nbytes = np.array([place.nbytes for place in places], np.int64)
        has = self.whole.copy()
        has[self.slots[self.rows[:, CUTS] == NONE]] = False
        start, stop = self.rows[:, START], self.rows[:, START] + self.rows[:, SIZE]
        counts = -(-stop // BLOCK_BYTES) - start // BLOCK_BYTES
        bad = (stop <= start) | (counts * _CRC_BYTES != self.rows[:, CUTS])
        together = self.slots[1:] == self.slots[:-1]
        bad[1:] |= np.where(together, stop[:-1], 0) != start[1:]
        bad[:1] |= start[:1] != 0
        bad[:-1] |= ~together & (stop[:-1] != nbytes[self.slots[:-1]])
        bad[-1:] |= stop[-1:] != nbytes[self.slots[-1:]]
        bad &= has[self.slots]
        self.whole[self.slots[bad]] = False
        has &= self.whole
        mine = has[self.slots]
        first = self.first_checksums[mine] + self.rows[mine, SUMS] // _CRC_BYTES
        cuts = self.checksums[_each(first, counts[mine])]
        values = block_values(cuts, counts[mine], start[mine], stop[mine], nbytes[self.slots[mine]])
        data = values.astype("<u4", copy=False).tobytes()
        at = 0
        for slot, size in zip(
            np.nonzero(has)[0].tolist(), (-(-nbytes[has] // BLOCK_BYTES)).tolist(), strict=True
        ):
            end = at + _CRC_BYTES * size
            found[slot] = CONTENT_PREFIX + hashlib.sha256(data[at:end]).hexdigest()
            at = end
        return found

    def add_to(self, table: TableBuilder, first: int, stop: int) -> None:
        """Add the chunks of slots that are whole."""
        some = slice(int(self.edges[first]), int(self.edges[stop]))
        rows, slots = self.rows[some], self.slots[some]
        begins = np.ones(len(rows), bool)
        begins[1:] = (slots[1:] != slots[:-1]) | (rows[1:, CHUNK] != rows[:-1, CHUNK])
        stored = rows[:, CONTAINER] != NONE
        counts = np.add.reduceat(stored, np.nonzero(begins)[0], dtype=np.int64)
        rows = rows[stored]
        words = 2 * np.maximum(rows[:, NDIM], 0)
        table.add_columns(
            counts,
            rows[:, CONTAINER],
            rows[:, OFFSET],
            rows[:, LENGTH],
            words,
            self.stored.words[_each(self.first_words[some][stored], words)],
            self.checksums[_each(self.first_checksums[some][stored], rows[:, SUMS] // _CRC_BYTES)].tobytes(),
        )


def _each(first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``first[i], first[i] + 1, ...``, ``counts[i]`` of them, for every ``i``."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(first - ends + counts, counts) + np.arange(total)
