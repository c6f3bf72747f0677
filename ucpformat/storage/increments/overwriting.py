"""Rows of a box that have changed since the base of an increment, and which layers of it are kept (SPEC section 16.4).

What is written again is chosen as log-structured file systems clean their segments (Rosenblum and Ousterhout, 1992):
the layer of which the smallest share is still read goes first, and its rows go into the new layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ucpformat.model.table import row_set_bytes, rows_of
from ucpformat.storage.checksum import BLOCK_BYTES, block_checksums

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.table import Segment
    from ucpformat.storage.stores.sharing import Sharable

__all__ = [
    "NewLayer",
    "are_few",
    "chosen",
    "differing_rows",
    "has_rows",
    "owners",
    "row_count",
    "row_set_of",
    "rows_in",
]

_LEAST_ROWS: Final = 16
_LEAST_ROW_BYTES: Final = 32
"""A row set takes a bit for each row in each layer: of shorter rows, 32 layers would take an eighth of the tensor."""
_MOST_LAYERS: Final = 24
_MOST_STORED: Final = 2.2
"""Stored bytes of all layers for each byte of the box: a reader of all of it reads so many times as much."""
_LEAST_GAIN: Final = 0.6
"""A new layer with a larger share of the rows is written as a whole box."""
_WORDS: Final = tuple(np.dtype(kind) for kind in (np.uint64, np.uint32, np.uint16, np.uint8))
_SAMPLES: Final = 64
_TURNS: Final = 4
_FAR_SAMPLES: Final = 4
_FAR_BYTES: Final = 1 << 17
"""Of each sample of what is far; rows of an embedding are often sorted by how often they change."""


class NewLayer(NamedTuple):
    """What a box is to consist of: layers that are ``kept``, by number, and over them ``rows``, a truth value each."""

    kept: list[int]
    rows: NDArray[np.bool_]


def has_rows(box: Box, item_bytes: int) -> bool:
    """Say whether rows of a box are worth to be told apart: whether there are enough, and long enough ones."""
    count = rows_of(box)
    return count >= _LEAST_ROWS and box.size // count * item_bytes >= _LEAST_ROW_BYTES


def rows_in(data: memoryview, box: Box) -> NDArray[np.uint8]:
    """Return the bytes of a box as an array of rows (rows, bytes of each)."""
    return np.frombuffer(data, np.uint8).reshape(rows_of(box), -1)


def row_set_of(rows: NDArray[np.bool_]) -> bytes:
    """Return a row set as the chunk table has it."""
    return np.packbits(rows, bitorder="little").tobytes().ljust(row_set_bytes(rows.size), b"\0")


def row_count(segment: Segment, box: Box) -> int:
    """Return how many rows of a box, which is its own or the chunk, a segment has."""
    return rows_of(box) if segment.row_set is None else segment.row_count()


def are_few(source: Sharable, segment: Segment, data: memoryview, box: Box) -> bool:
    """Say whether few rows of a box may have changed, by some of them, compared with a segment that has them all."""
    rows = rows_in(data, box)
    if source.mark is not None:
        return _are_few_far(source, segment, rows)
    step = max(1, len(rows) // _SAMPLES)
    sample = range(step // 2, len(rows), step)
    width = rows.shape[1]
    same = 0
    for first in range(_TURNS):  # every fourth of them, and then those between
        some = sample[first::_TURNS]
        same += sum(source.has(rows[row].data, segment.offset + row * width) for row in some)
        if not same and len(some) * _TURNS >= _SAMPLES:
            return False  # as where everything has changed: each look is a call
    return same >= (1 - _LEAST_GAIN) * len(sample)


def _are_few_far(source: Sharable, segment: Segment, rows: NDArray[np.uint8]) -> bool:
    """Do as `are_few`, by runs of rows: each is a request."""
    count, width = rows.shape
    length = max(1, min(count // _FAR_SAMPLES, _FAR_BYTES // width))
    same = total = 0
    for number in range(_FAR_SAMPLES):
        first = number * (count // _FAR_SAMPLES)
        data = source.read(segment.offset + first * width, length * width)
        found = np.frombuffer(data, np.uint8).reshape(-1, width)
        same += int((found == rows[first : first + length]).all(axis=1).sum())
        total += length
    return same >= (1 - _LEAST_GAIN) * total


def differing_rows(
    sources: Sequence[Sharable], segments: Sequence[Segment], box: Box, new: NDArray[np.uint8]
) -> tuple[NDArray[np.bool_], NDArray[np.uint8], list[bool]]:
    """Read all layers of a box, and compare the rows that they give with ``new``, the bytes of each.

    Returns which rows differ; as `owners`; and whether the bytes of each layer are right. Raises OSError or `UcpError`
    where a layer cannot be read.
    """
    owner = owners(segments, box)
    changed = owner == 0
    width = new.shape[1]
    words = new.view(next(word for word in _WORDS if width % word.itemsize == 0))
    are_right = []
    for number, (source, segment) in enumerate(zip(sources, segments, strict=True), 1):
        rows = owner == number
        if segment.row_set is not None:
            rows = segment._replace(box=box).row_numbers()
        checksums, position = [], 0
        for data in _blocks(source, segment, width):
            checksums.append(block_checksums([memoryview(data)]))
            if len(data) % width:
                break
            found = np.frombuffer(data, words.dtype).reshape(-1, words.shape[1])
            here = rows[position : position + len(found)]
            position += len(found)
            if segment.row_set is None:
                differs = _any_of_row(found != words[position - len(found) : position])
                changed[position - len(found) : position] |= differs & here
            else:
                is_read = owner[here] == number
                here = here[is_read]
                changed[here] |= _any_of_row(found[is_read] != words[here])
        are_right.append(b"".join(checksums) == segment.checksums)
    return changed, owner, are_right


def _blocks(source: Sharable, segment: Segment, width: int) -> Iterator[bytes]:
    """Read a layer, a checksum block at a time where that has whole rows, for which the processor's cache has room.

    The last is shorter where the object ends.
    """
    is_cut = source.mark is None and BLOCK_BYTES % width == 0
    size = BLOCK_BYTES if is_cut else segment.length
    for start in range(0, segment.length, size):
        yield source.read(segment.offset + start, min(size, segment.length - start))


def _any_of_row(differs: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return of each row whether any of its words differs: few do, so that looking for them is faster than a sum."""
    found = np.zeros(len(differs), np.bool_)
    columns: NDArray[Any] = differs.view(np.uint64) if differs.shape[1] % 8 == 0 else differs
    found[np.flatnonzero(columns) // columns.shape[1]] = True
    return found


def owners(segments: Sequence[Segment], box: Box) -> NDArray[np.uint8]:
    """Return which layer gives each row of a box, counted from 1; 0 for a row that none has."""
    count = rows_of(box)
    found = np.zeros(count, np.uint8)
    for number, segment in enumerate(segments, 1):
        if segment.row_set is None:
            found[:] = number
        else:
            bits = np.unpackbits(np.frombuffer(segment.row_set, np.uint8), count=count, bitorder="little")
            np.maximum(found, np.multiply(bits, np.uint8(number), out=bits), out=found)
    return found


def chosen(
    changed: NDArray[np.bool_], owner: NDArray[np.uint8], sizes: Sequence[int], may_keep: Sequence[bool]
) -> NewLayer | None:
    """Choose which layers are kept; None where the box is best written as a whole.

    ``changed`` says which rows are to be written in any case, ``owner`` which layer gives each of the others, as
    `owners`, ``sizes`` how many rows each layer has, and ``may_keep`` which of them there is a choice about.

    >>> changed = np.array([True, False, False, False])
    >>> chosen(changed, np.array([1, 1, 2, 1], np.uint8), [4, 1], [True, True])
    NewLayer(kept=[0, 1], rows=array([ True, False, False, False]))
    """
    count = changed.size
    is_written = np.array([True, *(not may for may in may_keep)])  # by owner
    rows = changed | is_written[owner]
    used = np.bincount(np.where(rows, np.uint8(0), owner), minlength=len(sizes) + 1)[1:].tolist()
    kept = [number for number, rows_used in enumerate(used) if rows_used]
    written = before = count - sum(used)
    while len(kept) >= _MOST_LAYERS or written + sum(sizes[number] for number in kept) > _MOST_STORED * count:
        worst = min(kept, key=lambda number: used[number] / sizes[number])
        kept.remove(worst)
        written += used[worst]
        is_written[worst + 1] = True
    if not kept or written > _LEAST_GAIN * count:
        return None
    return NewLayer(kept, rows if written == before else changed | is_written[owner])
