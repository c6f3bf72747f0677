"""An index part joined with its chunk table: which rows of the table are of which slot (SPEC section 16)."""

from __future__ import annotations

import bisect
import math
from array import array
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.jsonio import pointer
from ucpformat.model.table import BLOCK_BYTES, OBJECT_TRAILER, OWN_OBJECT, Segment
from ucpformat.storage.reading.stored_slot import StoredSlot, slot_form

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ucpformat.model.index_part import IndexPart, PartColumns
    from ucpformat.model.references import Pack
    from ucpformat.model.table import ChunkTable

__all__ = ["SingleChunks", "StoredPart"]


class SingleChunks(NamedTuple):
    """Columns, in derived order: numbers of slots, where the segment of each lies, and which checksum is its first."""

    slots: NDArray[np.int64]
    containers: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.int64]

    def positions(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in the columns the slots of these numbers stand; -1 for those that do not."""
        found = np.full(numbers.size, -1, np.int64)
        positions = np.searchsorted(self.slots, numbers)
        (inside,) = np.nonzero(positions < self.slots.size)
        inside = inside[self.slots[positions[inside]] == numbers[inside]]
        found[inside] = positions[inside]
        return found

    def covered(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many bytes of segments the checksums cover, which are all of the slot."""
        lengths = self.lengths[positions]
        lengths[self.containers[positions] == OWN_OBJECT] -= OBJECT_TRAILER
        return lengths

    def segment(self, position: int, table: ChunkTable) -> Segment:
        """Return the segment of the slot at a position of the columns."""
        at = np.array([position])
        first, last = int(self.checksums[position]), int(-(-self.covered(at)[0] // BLOCK_BYTES))
        checksums = table.checksums[first : first + last].tobytes()
        where = (self.containers[position], self.offsets[position], self.lengths[position])
        container, offset, length = map(int, where)
        return Segment(container, offset, length, None, checksums)


class StoredPart:
    """An index part and its table, with rows assigned to slots.

    ``packs`` is None in storage plain.

    Raises:
        UcpError: ``UCP-E-TABLE``, ``UCP-E-SEGMENT``, ``UCP-E-DTYPE``, ``UCP-E-SHAPE``.
    """

    def __init__(
        self,
        index: IndexPart,
        table: ChunkTable,
        *,
        packs: tuple[Pack, ...] | None,
        chunk_bytes: int,
        index_key: str,
        table_key: str,
    ) -> None:
        self.index = index
        self.table = table
        self.packed = packs is not None
        self.packs: tuple[Pack, ...] = packs if packs is not None else ()
        self.index_key = index_key
        self.table_key = table_key
        columns = index.columns()
        self.names = columns.atoms
        self.keys = columns.keys
        self._first_slots = array("q", accumulate(columns.counts, initial=0))
        self._slot_names = columns.slots
        self.aliases = [*chain.from_iterable(columns.aliases.values())]
        self.spread = bool(columns.places) or columns.highest_layout >= 0
        self.contents = columns.contents
        self.annotations = columns.annotations
        self.compressors = columns.compressors
        try:
            self.forms = [
                slot_form(dtype, shape, chunk_bytes)
                for dtype, shape in zip(columns.dtypes, columns.shapes, strict=True)
            ]
        except UcpError:
            self._refuse_form(columns, chunk_bytes)
            raise
        # Of two atoms of one name, in a part that is only validated, the last is found, and both are listed.
        self.positions = dict(zip(columns.atoms, range(len(columns.atoms)), strict=True))
        chunks = sum(grid.count for _, grid in self.forms)
        if chunks != table.counts.size:
            message = f"the slots have {chunks} chunks, the table {table.counts.size}"
            raise error("UCP-E-TABLE", message, at=table_key)
        self._first_rows = array("q", accumulate((grid.count for _, grid in self.forms), initial=0))
        if packs is None:
            self._check_plain()
        else:
            self._check_packed()

    def _refuse_form(self, columns: PartColumns, chunk_bytes: int) -> None:
        for number, (dtype, shape) in enumerate(zip(columns.dtypes, columns.shapes, strict=True)):
            try:
                slot_form(dtype, shape, chunk_bytes)
            except UcpError as refusal:
                position = bisect.bisect_right(self._first_slots, number) - 1
                at = pointer(self.index_key, "atoms", position, "slots", columns.slots[number])
                raise error(refusal.code, refusal.message, at=at) from None

    def number(self, atom: str, slot: str) -> int | None:
        """Return the number of a slot among those of the part; None if there is none."""
        position = self.positions.get(atom)
        if position is None:
            return None
        first = self._first_slots[position]
        if self._slot_names[first] == slot:
            return first
        try:
            return self._slot_names.index(slot, first + 1, self._first_slots[position + 1])
        except ValueError:
            return None

    def find(self, atom: str, slot: str) -> StoredSlot | None:
        """Return one slot; None if there is none."""
        number = self.number(atom, slot)
        return None if number is None else self.slot(number)

    def slot(self, number: int) -> StoredSlot:
        """Return the slot of a number."""
        kind, grid = self.forms[number]
        return StoredSlot(
            self,
            number,
            bisect.bisect_right(self._first_slots, number) - 1,
            self._slot_names[number],
            kind,
            grid,
            self.compressors.get(number),
            self._first_rows[number],
        )

    def slots(self) -> Iterator[StoredSlot]:
        """Yield all slots, in derived order."""
        return map(self.slot, range(len(self.forms)))

    @cached_property
    def single_chunks(self) -> SingleChunks:
        """Slots that are one uncompressed chunk in one segment that is as long as it has to be.

        There is nothing else to say of their segments: `StoredSlot.segments` would not refuse one.
        """
        trailer_bytes = 0 if self.packed else OBJECT_TRAILER
        # The slots of a model repeat few forms.
        of_form = {
            key: math.prod(grid.shape) * kind.item_bytes + trailer_bytes
            if grid.chunk_shape == grid.shape
            else -1
            for key, (kind, grid) in {id(form): form for form in self.forms}.items()
        }
        sizes = np.array([of_form[id(form)] for form in self.forms], np.int64)
        sizes[[*self.compressors]] = -1
        slots = np.flatnonzero(sizes >= 0)
        chunks = np.array(self._first_rows[:-1], np.int64)[slots]
        one = self.table.counts[chunks] == 1
        slots, chunks = slots[one], chunks[one]
        segments = self.table.first_segment[chunks]
        rows = self.table.rows[segments]
        lengths = rows["length"].astype(np.int64)
        fit = (rows["box"] == 0) & (lengths == sizes[slots])
        return SingleChunks(
            slots[fit],
            rows["container"][fit].astype(np.int64),
            rows["offset"][fit].astype(np.int64),
            lengths[fit],
            self.table.first_checksum[segments][fit],
        )

    def _check_plain(self) -> None:
        rows = self.table.rows
        if (self.table.counts > 1).any() or (rows["container"] != OWN_OBJECT).any():
            raise error("UCP-E-TABLE", "a chunk of storage plain is one object of its own", at=self.table_key)
        if rows["offset"].any() or rows["box"].any() or rows["row_set"].any():
            message = "a chunk of storage plain has offset 0, no box and no row set"
            raise error("UCP-E-TABLE", message, at=self.table_key)

    def _check_packed(self) -> None:
        rows = self.table.rows
        if (rows["container"] >= len(self.packs)).any():
            raise error("UCP-E-TABLE", "a segment lies in a pack that is not listed", at=self.table_key)
        if rows.size == 0:
            return
        lengths = np.array([pack.length for pack in self.packs], np.uint64)
        # Both are at most 2^53-1 (ChunkTable.parse), so the sum does not overflow.
        if (rows["offset"] + rows["length"] > lengths[rows["container"]]).any():
            raise error("UCP-E-SEGMENT", "a segment ends beyond its pack", at=self.table_key)
        alignment = np.where(rows["length"] >= 65536, np.uint64(4096), np.uint64(64))
        shared = np.array([pack.shared for pack in self.packs])[rows["container"]]
        if shared.any():
            items = np.array([dtype.item_bytes for dtype, _ in self.forms], np.uint64)[self._slot_of_rows()]
            if (rows["offset"][shared] % items[shared]).any():
                message = "a segment of a shared pack is not aligned to the size of its elements"
                raise error("UCP-E-SEGMENT", message, at=self.table_key)
            alignment[shared] = 1
        (unaligned,) = np.nonzero(rows["offset"] % alignment)
        if unaligned.size and not self._follow(unaligned):
            message = "a segment is neither aligned nor right behind another one of its slot"
            raise error("UCP-E-SEGMENT", message, at=self.table_key)
        self._check_box_words()
        if self.table.row_words.size:
            self._check_row_sets()

    def _slot_of_rows(self) -> NDArray[np.int64]:
        """Return the number of the slot that each segment is of."""
        chunks = np.array([grid.count for _, grid in self.forms], np.int64)
        return np.repeat(np.repeat(np.arange(chunks.size), chunks), self.table.counts)

    def _follow(self, numbers: NDArray[np.intp]) -> bool:
        """Return whether each segment of these numbers begins where another one of its slot ends, in the same pack."""
        rows = self.table.rows
        slots = self._slot_of_rows()
        ends = np.empty(rows.size, [("slot", np.int64), ("container", np.uint32), ("at", np.uint64)])
        ends["slot"], ends["container"] = slots, rows["container"]
        ends["at"] = rows["offset"] + rows["length"]
        begins = ends[numbers]
        begins["at"] = rows["offset"][numbers]
        return bool(np.isin(begins, ends).all())

    def _check_row_sets(self) -> None:
        """Check that row sets are as long as their boxes say, one behind another, and end with their last row."""
        rows, words = self.table.rows, self.table.words
        (having,) = np.nonzero(rows["row_set"])
        dims = [len(grid.shape) for _, grid in self.forms]
        slots = self._slot_of_rows()
        position = 1
        for number in having.tolist():
            box, ndim = int(rows["box"][number]), dims[slots[number]]
            if not box:
                raise error("UCP-E-SEGMENT", "a segment without a box has a row set", at=self.table_key)
            extents = words[box - 1 + ndim : box - 1 + 2 * ndim].tolist()
            count = next((extent for extent in extents if extent != 1), 1)
            stop = position + -(-count // 64)
            if int(rows["row_set"][number]) != position or stop - 1 > self.table.row_words.size:
                raise error(
                    "UCP-E-TABLE", "row sets do not stand in order of their segments", at=self.table_key
                )
            if count % 64 and int(self.table.row_words[stop - 2]) >> count % 64:
                raise error("UCP-E-TABLE", "a row set has bits behind its last row", at=self.table_key)
            position = stop
        if position - 1 != self.table.row_words.size:
            raise error("UCP-E-TABLE", "there are row words that no segment has", at=self.table_key)

    def _check_box_words(self) -> None:
        boxes = self.table.rows["box"]
        boxed = boxes > 0
        if not self.table.words.size and not boxed.any():
            return
        dims = np.array([len(grid.shape) for _, grid in self.forms], np.int64)
        per_segment = dims[self._slot_of_rows()][boxed]
        ends = np.cumsum(2 * per_segment)
        total = int(ends[-1]) if ends.size else 0
        if (
            total != self.table.words.size
            or (boxes[boxed].astype(np.int64) != ends - 2 * per_segment + 1).any()
        ):
            raise error("UCP-E-TABLE", "box words do not stand in order of their segments", at=self.table_key)
