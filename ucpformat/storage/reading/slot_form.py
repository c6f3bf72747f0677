"""How slots are cut into chunks (SPEC sections 11.2 and 16.1), and those that are one chunk, looked up by columns.

Chunks are mostly cut alike into boxes of segments, so that whether these tile a chunk is known already.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.geometry import Box, chunk_grid, element_count, exact_cover
from ucpformat.model.dtype import dtype
from ucpformat.model.table import BLOCK_BYTES, OBJECT_TRAILER, OWN_OBJECT, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from ucpformat.geometry import ChunkGrid
    from ucpformat.model.dtype import DType
    from ucpformat.model.table import ChunkTable

__all__ = [
    "NO_SINGLE_CHUNKS",
    "SingleChunks",
    "single_chunks",
    "sizes_of_tiles",
    "slot_form",
    "stored_bytes",
]


# The slots of a model repeat few types and shapes.
@lru_cache(maxsize=4096)
def slot_form(dtype_name: str, shape: tuple[int, ...], chunk_bytes: int) -> tuple[DType, ChunkGrid]:
    """Return the data type and the chunk grid of a slot whose extents are known to be integers.

    Raises:
        UcpError: ``UCP-E-DTYPE`` or ``UCP-E-SHAPE``, with no place.
    """
    kind = dtype(dtype_name, at="")
    return kind, chunk_grid(shape, kind.item_bytes, chunk_bytes)


def stored_bytes(kind: DType, grid: ChunkGrid, shape: tuple[int, ...], *, packed: bool) -> int:
    """Return bytes of an uncompressed chunk of clipped ``shape`` in one segment; its own object is not clipped."""
    if packed:
        return element_count(shape) * kind.item_bytes
    return element_count(grid.chunk_shape) * kind.item_bytes + OBJECT_TRAILER


class SingleChunks(NamedTuple):
    """Columns, in derived order: numbers of slots, where the segment of each lies, and its first checksum's place."""

    slots: NDArray[np.int64]
    containers: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.int64]

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in the columns the slots of these numbers stand; -1 for those that do not."""
        found = np.full(numbers.size, -1, np.int64)
        places = np.searchsorted(self.slots, numbers)
        (inside,) = np.nonzero(places < self.slots.size)
        inside = inside[self.slots[places[inside]] == numbers[inside]]
        found[inside] = places[inside]
        return found

    def covered(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many bytes of segments the checksums cover, which are all of the slot."""
        lengths = self.lengths[places]
        lengths[self.containers[places] == OWN_OBJECT] -= OBJECT_TRAILER
        return lengths

    def segment(self, place: int, table: ChunkTable) -> Segment:
        """Return one of them as an object."""
        at = np.array([place])
        first, last = int(self.checksums[place]), int(-(-self.covered(at)[0] // BLOCK_BYTES))
        checksums = table.checksums[first : first + last].tobytes()
        where = (self.containers[place], self.offsets[place], self.lengths[place])
        container, offset, length = map(int, where)
        return Segment(container, offset, length, None, checksums)


NO_SINGLE_CHUNKS: Final = SingleChunks(*(np.zeros(0, np.int64) for _ in SingleChunks._fields))


def single_chunks(
    table: ChunkTable,
    forms: Sequence[tuple[DType, ChunkGrid]],
    first_rows: Sequence[int],
    compressed: Iterable[int],
    *,
    packed: bool,
) -> SingleChunks:
    """Return slots of a part that are one uncompressed chunk in one segment that is as long as it has to be.

    ``forms`` are those of its slots, ``first_rows`` where in the table they begin, ``compressed`` numbers of slots.
    """
    # The slots of a model repeat few forms.
    of_form = {
        key: stored_bytes(kind, grid, grid.shape, packed=packed) if grid.chunk_shape == grid.shape else -1
        for key, (kind, grid) in {id(form): form for form in forms}.items()
    }
    sizes = np.array([of_form[id(form)] for form in forms], np.int64)
    sizes[[*compressed]] = -1
    slots = np.flatnonzero(sizes >= 0)
    chunks = np.array(first_rows[:-1], np.int64)[slots]
    one = table.counts[chunks] == 1
    slots, chunks = slots[one], chunks[one]
    segments = table.first_segment[chunks]
    rows = table.rows[segments]
    lengths = rows["length"].astype(np.int64)
    fit = (rows["box"] == 0) & (lengths == sizes[slots])
    return SingleChunks(
        slots[fit],
        rows["container"][fit].astype(np.int64),
        rows["offset"][fit].astype(np.int64),
        lengths[fit],
        table.first_checksum[segments][fit],
    )


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
