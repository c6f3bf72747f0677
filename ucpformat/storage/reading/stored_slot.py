"""A slot of an index part with its rows of the chunk table: where each of its chunks lies (SPEC 11.2, 16.1, 16.4)."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from ucpformat.errors import error
from ucpformat.geometry import Box, chunk_grid, exact_cover
from ucpformat.jsonio import pointer
from ucpformat.model.dtype import dtype
from ucpformat.model.table import OBJECT_TRAILER, OWN_OBJECT
from ucpformat.storage.reading.layers import are_layered, check_layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ucpformat.geometry import ChunkGrid
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.atom import Atom, Slot
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.dtype import DType
    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.part import StoredPart

__all__ = ["StoredSlot", "slot_form"]


# The slots of a model repeat few types and shapes.
@lru_cache(maxsize=4096)
def slot_form(dtype_name: str, shape: tuple[int, ...], chunk_bytes: int) -> tuple[DType, ChunkGrid]:
    """Return the data type and the chunk grid of a slot whose extents are known to be integers.

    Raises:
        UcpError: ``UCP-E-DTYPE`` or ``UCP-E-SHAPE``, with no place.
    """
    kind = dtype(dtype_name, at="")
    return kind, chunk_grid(shape, kind.item_bytes, chunk_bytes)


class StoredSlot(NamedTuple):
    """A slot and its rows of the chunk table. Its segments are checked as they are asked for.

    ``number`` counts the slots of the part, ``position`` its atoms.
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
        return math.prod(self.grid.shape) * self.dtype.item_bytes

    @property
    def prefix(self) -> str:
        """Key of the Zarr array, in storage plain."""
        return f"atoms/{self.part.keys[self.position]}/{self.name}"

    @property
    def at(self) -> str:
        """The location of the slot in its index part."""
        return pointer(self.part.index_key, "atoms", self.position, "slots", self.name)

    def chunk_key(self, chunk: int) -> str:
        """Return the Zarr key of the chunk at a position in C order, such as ``c/0/1``."""
        return self.grid.key(self.grid.index_of(chunk))

    def logical_start(self, chunk: int) -> int:
        """Return the first byte of a chunk within the slot's logical bytes."""
        if chunk == 0:
            return 0
        return self.grid.chunk_start(self.grid.index_of(chunk)) * self.dtype.item_bytes

    def chunk_at(self, chunk: int) -> str:
        """Return how messages name a chunk: the table that has it, its key, and the slot."""
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

    def raw_bytes(self, chunk: int) -> int:
        """Return size of a chunk, clipped, before compression."""
        return self.grid.box_at(chunk).size * self.dtype.item_bytes

    def meeting(
        self, chunk: int, segments: Iterable[Segment], box: Box
    ) -> Iterator[tuple[Segment, Box, Box]]:
        """Yield segments of a chunk with cells of ``box``: each with the box of the slot that it holds, and those."""
        chunk_box = self.grid.box_at(chunk)
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
        return math.prod(self.grid.chunk_shape) * self.dtype.item_bytes

    def segments(self, chunk: int) -> tuple[Segment, ...]:
        """Return the checked segments of a chunk; none is a zero entry.

        Raises:
            InvalidCheckpointError: ``UCP-E-SEGMENT`` or ``UCP-E-TABLE`` (SPEC UCP-D-101 to UCP-D-107, UCP-D-115).
        """
        segments = self.part.table.segments(self.first_row + chunk, len(self.grid.shape))
        if len(segments) > 1 or (segments and segments[0].box is not None):
            self._check_boxes(chunk, segments)
        elif segments and self.compressor is None:
            # The object of an edge chunk is not clipped to the shape.
            expected = self.raw_bytes(chunk) if self.part.packed else self.whole_bytes() + OBJECT_TRAILER
            if segments[0].length != expected:
                message = f"the segment has {segments[0].length} bytes, the chunk takes {expected}"
                raise error("UCP-E-SEGMENT", message, at=self.chunk_at(chunk))
        return segments

    def _check_boxes(self, chunk: int, segments: tuple[Segment, ...]) -> None:
        shape, item = self.grid.box_at(chunk).shape, self.dtype.item_bytes
        if self.compressor is None and not are_layered(segments):
            sizes = sizes_of_tiles(tuple([segment.box for segment in segments]), shape)
            if sizes is not None and [one.length for one in segments] == [size * item for size in sizes]:
                return
        at = self.chunk_at(chunk)
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


_MEMORABLE: Final = 64
"""Boxes: what is remembered of a table is bounded, whatever it claims."""


def sizes_of_tiles(boxes: tuple[Box | None, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return how many elements boxes have, in order of offset, that tile a chunk of ``shape``.

    None where they do not, or are too many to be remembered.
    """
    return _sizes(boxes, shape) if len(boxes) <= _MEMORABLE else None


@lru_cache(maxsize=256)
def _sizes(boxes: tuple[Box | None, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    whole = Box.whole(shape)
    tiles = [box for box in boxes if box is not None and not box.is_empty and whole.contains(box)]
    in_order = all(before.offset < after.offset for before, after in pairwise(tiles))
    if len(tiles) < len(boxes) or not in_order or exact_cover(tiles, shape) is not None:
        return None
    return tuple(tile.size for tile in tiles)
