"""Rows of a box that have changed since the base of an increment, and which layers of it are kept (SPEC section 16.4).

What is written again is chosen as log-structured file systems clean their segments (Rosenblum and Ousterhout, 1992):
the layer of which the smallest share is still read goes first, and its rows go into the new layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.model.table import row_set_bytes, rows_of
from ucpformat.storage.checksum import block_checksums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.table import Segment
    from ucpformat.storage.stores.sharing import Sharable

__all__ = [
    "NewLayer",
    "are_few",
    "chosen",
    "has_rows",
    "old_rows",
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
_SAMPLES: Final = 64
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
    same = sum(source.has(rows[row].data, segment.offset + row * width) for row in sample)
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


def old_rows(
    sources: Sequence[Sharable], segments: Sequence[Segment], box: Box, width: int
) -> tuple[NDArray[np.uint8], NDArray[np.int16], list[bool]]:
    """Read all layers of a box: its rows, the layer that gives each, and whether the bytes of each layer are right.

    ``width`` is that of a row, in bytes. Raises OSError where a layer cannot be read.
    """
    count = rows_of(box)
    found = np.empty((count, width), np.uint8)
    owner = np.full(count, -1, np.int16)
    are_right = []
    for number, (source, segment) in enumerate(zip(sources, segments, strict=True)):
        data = source.read(segment.offset, segment.length)
        is_right = len(data) == segment.length and block_checksums([memoryview(data)]) == segment.checksums
        are_right.append(is_right)
        if not is_right:
            continue
        if segment.row_set is None:
            found[:] = np.frombuffer(data, np.uint8).reshape(count, width)
            owner[:] = number
        else:
            where = np.flatnonzero(segment._replace(box=box).present())
            found[where] = np.frombuffer(data, np.uint8).reshape(-1, width)
            owner[where] = number
    return found, owner, are_right


def owners(segments: Sequence[Segment], box: Box) -> NDArray[np.int16]:
    """Return the number of the layer that gives each row of a box, -1 for a row that none has."""
    found = np.full(rows_of(box), -1, np.int16)
    for number, segment in enumerate(segments):
        np.copyto(found, np.int16(number), where=segment._replace(box=box).present())
    return found


def chosen(
    changed: NDArray[np.bool_], owner: NDArray[np.int16], sizes: Sequence[int], may_keep: Sequence[bool]
) -> NewLayer | None:
    """Choose which layers are kept; None where the box is best written as a whole.

    ``changed`` says which rows are to be written in any case, ``owner`` which layer gives each of the others, ``sizes``
    how many rows each layer has, and ``may_keep`` which of them there is a choice about.

    >>> changed = np.array([True, False, False, False])
    >>> chosen(changed, np.array([0, 0, 1, 0]), [4, 1], [True, True])
    NewLayer(kept=[0, 1], rows=array([ True, False, False, False]))
    """
    count = changed.size
    is_written = np.ones(
        len(sizes) + 1, np.bool_
    )  # by layer; the last one is of rows that none has: owner -1
    is_written[:-1] = np.logical_not(may_keep)
    rows = changed | is_written[owner]
    used = np.bincount(owner[~rows], minlength=len(sizes)).tolist()
    kept = [number for number, rows_used in enumerate(used) if rows_used]
    written = count - sum(used)
    while len(kept) >= _MOST_LAYERS or written + sum(sizes[number] for number in kept) > _MOST_STORED * count:
        worst = min(kept, key=lambda number: used[number] / sizes[number])
        kept.remove(worst)
        written += used[worst]
        is_written[worst] = True
    if not kept or written > _LEAST_GAIN * count:
        return None
    return NewLayer(kept, changed | is_written[owner])
