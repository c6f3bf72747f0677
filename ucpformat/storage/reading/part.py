"""An index part joined with its chunk table: where every chunk of every slot lies (SPEC section 16)."""

from __future__ import annotations

import bisect
from array import array
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box, element_count, exact_cover
from ucpformat.jsonio import pointer
from ucpformat.model.table import OWN_OBJECT
from ucpformat.storage.reading.layers import are_layered, check_layers
from ucpformat.storage.reading.slot_form import (
    SingleChunks,
    single_chunks,
    sizes_of_tiles,
    slot_form,
    stored_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from ucpformat.geometry import ChunkGrid
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.atom import Atom, Slot
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.dtype import DType
    from ucpformat.model.index_part import IndexPart
    from ucpformat.model.part_columns import PartColumns
    from ucpformat.model.references import Pack
    from ucpformat.model.table import ChunkTable, Segment

__all__ = ["StoredPart", "StoredSlot"]


class StoredSlot(NamedTuple):
    """A slot and its rows of the chunk table. Its segments are checked as they are asked for.

    ``number`` is its place among the slots of the part, ``position`` that of its atom among the atoms.
    """

    part: StoredPart
    number: int
    position: int
    name: str
    dtype: DType
    grid: ChunkGrid
    compressor: Compressor | None
    first_row: int

    @property
    def atom(self) -> Atom:
        """The atom, made when it is asked for."""
        return self.part.index.atoms[self.position]

    @property
    def slot(self) -> Slot:
        """The slot as the index has it."""
        return self.atom.slot(self.name)

    @property
    def annotations(self) -> Mapping[str, JsonValue]:
        """Notes about the slot, as the index has them."""
        return self.part.annotations.get(self.number, {})

    @property
    def content(self) -> str | None:
        """The content digest that the index records."""
        return self.part.contents[self.number]

    @property
    def label(self) -> str:
        """What messages to callers call it: the names of atom and slot."""
        return f"{self.part.names[self.position]}/{self.name}"

    @property
    def nbytes(self) -> int:
        """Logical bytes."""
        return element_count(self.grid.shape) * self.dtype.item_bytes

    @property
    def prefix(self) -> str:
        """Key of the Zarr array, in storage plain."""
        return f"atoms/{self.part.keys[self.position]}/{self.name}"

    @property
    def at(self) -> str:
        """The place of the slot in its index part."""
        return pointer(self.part.index_key, "atoms", self.position, "slots", self.name)

    def chunk_key(self, chunk: int) -> str:
        """Return the Zarr key of the chunk at a position in C order, such as ``c/0/1``."""
        return self.grid.key(self.grid.index_of(chunk))

    def chunk_box(self, chunk: int) -> Box:
        """Return the chunk's box of the slot, clipped to the shape."""
        return self.grid.box_at(chunk)

    def logical_start(self, chunk: int) -> int:
        """Return the first byte of a chunk within the slot's logical bytes."""
        if chunk == 0:
            return 0
        return self.grid.chunk_start(self.grid.index_of(chunk)) * self.dtype.item_bytes

    def place(self, chunk: int) -> str:
        """Return the location of a chunk, for messages."""
        return f"{self.part.table_key}#chunk {self.chunk_key(chunk)} of {self.label}"

    def object_key(self, chunk: int, segment: Segment) -> str:
        """Return key of the object that holds a segment."""
        if segment.container == OWN_OBJECT:
            return f"{self.prefix}/{self.chunk_key(chunk)}"
        return self.part.packs[segment.container].key

    def has_object(self, key: str) -> bool:
        """Return whether ``key`` is that of one of this slot's chunk objects, zero entries included (storage plain)."""
        try:
            index = tuple(int(step) for step in key.removeprefix(f"{self.prefix}/c").split("/")[1:])
        except ValueError:
            return False
        counts = self.grid.counts
        known = len(index) == len(counts) and all(0 <= at < n for at, n in zip(index, counts, strict=True))
        return known and key == f"{self.prefix}/{self.grid.key(index)}"

    def chunk_shape(self, chunk: int) -> tuple[int, ...]:
        """Return extents of a chunk clipped to the shape."""
        if self.grid.chunk_shape == self.grid.shape:
            return self.grid.shape
        return self.chunk_box(chunk).shape

    def raw_bytes(self, chunk: int) -> int:
        """Return size of a chunk, clipped, before compression."""
        return element_count(self.chunk_shape(chunk)) * self.dtype.item_bytes

    def meeting(
        self, chunk: int, segments: Iterable[Segment], box: Box
    ) -> Iterator[tuple[Segment, Box, Box]]:
        """Yield segments of a chunk with cells of ``box``: each with the box of the slot that it holds, and those."""
        chunk_box = self.chunk_box(chunk)
        wanted = chunk_box.intersect(box)
        if wanted is None:
            return
        within = wanted.relative_to(chunk_box)
        for segment in segments:
            if segment.box is None:
                yield segment, chunk_box, wanted
                continue
            part = segment.box.intersect(within)
            if part is not None:
                offset = chunk_box.offset
                yield segment, segment.box.translate(offset), part.translate(offset)

    def whole_bytes(self) -> int:
        """Return size of an unclipped chunk before compression."""
        return element_count(self.grid.chunk_shape) * self.dtype.item_bytes

    def segments(self, chunk: int) -> tuple[Segment, ...]:
        """Return the checked segments of a chunk; none is a zero entry.

        Raises:
            InvalidCheckpointError: ``UCP-E-SEGMENT`` or ``UCP-E-TABLE`` (SPEC UCP-D-101 to UCP-D-107, UCP-D-115).
        """
        segments = self.part.table.segments(self.first_row + chunk, len(self.grid.shape))
        if segments:
            self._check(chunk, segments)
        return segments

    def _check(self, chunk: int, segments: tuple[Segment, ...]) -> None:
        if len(segments) != 1 or segments[0].box is not None:
            self._check_boxes(chunk, segments)
            return
        if self.compressor is None:
            packed = self.part.packed
            expected = stored_bytes(self.dtype, self.grid, self.chunk_shape(chunk), packed=packed)
            if segments[0].length != expected:
                raise error(
                    "UCP-E-SEGMENT",
                    f"the segment has {segments[0].length} bytes, the chunk takes {expected}",
                    at=self.place(chunk),
                )

    def _check_boxes(self, chunk: int, segments: tuple[Segment, ...]) -> None:
        shape, item = self.chunk_shape(chunk), self.dtype.item_bytes
        if self.compressor is None and not are_layered(segments):
            sizes = sizes_of_tiles(tuple([segment.box for segment in segments]), shape)
            if sizes is not None and [one.length for one in segments] == [size * item for size in sizes]:
                return
        at = self.place(chunk)
        if all(segment.box is None for segment in segments):
            raise error("UCP-E-SEGMENT", "several segments claim the whole chunk", at=at)
        if self.compressor is not None:
            raise error("UCP-E-SEGMENT", "a compressed chunk has one segment without a box", at=at)
        whole = Box.whole(shape)
        for segment in segments:
            if segment.box is None:
                raise error("UCP-E-SEGMENT", "segments with and without a box claim one chunk", at=at)
            if segment.box.is_empty:
                raise error("UCP-E-SEGMENT", "a segment's box is empty", at=at)
            if not whole.contains(segment.box):
                raise error("UCP-E-SEGMENT", f"{segment.box} lies outside the chunk", at=at)
        boxes = [*check_layers(segments, item, at)]
        if boxes != sorted(boxes, key=lambda box: box.offset):
            raise error("UCP-E-SEGMENT", "segments are not sorted by box offset", at=at)
        fault = exact_cover(boxes, whole.shape)
        if fault is not None:
            raise error("UCP-E-SEGMENT", f"segments do not tile the chunk: {fault}", at=at)


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
        self._positions = dict(zip(columns.atoms, range(len(columns.atoms)), strict=True))
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

    def position(self, atom: str) -> int | None:
        """Return where an atom stands in the part; None if it has none of that name."""
        return self._positions.get(atom)

    def number(self, atom: str, slot: str) -> int | None:
        """Return the number of a slot among those of the part; None if there is none."""
        position = self._positions.get(atom)
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
        return self._slot(bisect.bisect_right(self._first_slots, number) - 1, number)

    def _slot(self, position: int, number: int) -> StoredSlot:
        kind, grid = self.forms[number]
        return StoredSlot(
            self,
            number,
            position,
            self._slot_names[number],
            kind,
            grid,
            self.compressors.get(number),
            self._first_rows[number],
        )

    def slots(self) -> Iterator[StoredSlot]:
        """Yield all slots, in derived order."""
        for position in range(len(self.names)):
            for number in range(self._first_slots[position], self._first_slots[position + 1]):
                yield self._slot(position, number)

    def dtype_of(self, number: int) -> DType:
        """Return the data type of the slot of a number."""
        return self.forms[number][0]

    def slots_at(self, numbers: Iterable[int]) -> Iterator[StoredSlot]:
        """Yield the slots of these numbers."""
        for number in numbers:
            yield self.slot(number)

    @cached_property
    def single_chunks(self) -> SingleChunks:
        """Slots that are one uncompressed chunk in one segment that is as long as it has to be.

        There is nothing else to say of their segments: `StoredSlot.segments` would not refuse one.
        """
        return single_chunks(self.table, self.forms, self._first_rows, self.compressors, packed=self.packed)

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
