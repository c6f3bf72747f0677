"""What damage means: which tensors, and which of their elements, no reader gets back (SPEC section 18)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.geometry import Box, decompose_flat_range, joined
from ucpformat.model.dtype import DTYPES
from ucpformat.model.table import rows_of
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.reading.layers import row_dim
from ucpformat.validation.findings import as_runs, joined_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ucpformat.model.index_part import IndexPart
    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.validation.findings import Damage, SegmentDamage
    from ucpformat.validation.semantics import CheckedCheckpoint

__all__ = ["Loss", "Survey", "UnreadPart", "as_slices", "surveyed"]


@dataclass(frozen=True, slots=True)
class Loss:
    """Elements of one tensor that cannot be read: those of ``boxes``, which are disjoint and in order.

    ``atom`` and ``slot`` name the tensor; ``shape`` counts elements; ``nbytes`` are logical bytes of what is lost.

    >>> from ucpformat.geometry import Box
    >>> print(ucp.Loss("fc1.weight", "value", "float32", (256, 64), (Box((64, 0), (64, 64)),), 16384))
    fc1.weight value [64:128, :] of [256, 64]
    """

    atom: str
    slot: str
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    nbytes: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the tensor is left.

        >>> loss.is_whole
        False
        """
        return self.boxes == (Box.whole(self.shape),)

    @property
    def ranges(self) -> tuple[str, ...]:
        """What is lost, as slices.

        >>> loss.ranges
        ('[64:128, :]',)
        """
        return tuple(as_slices(box, self.shape) for box in self.boxes)

    def __str__(self) -> str:
        what = "all" if self.is_whole else ", ".join(self.ranges)
        return f"{self.atom} {self.slot} {what} of {list(self.shape)}"

    def to_json(self) -> dict[str, object]:
        """Return the object that ``ucp validate --format json`` prints.

        >>> loss.to_json()["bytes"], loss.to_json()["ranges"]
        (16384, ['[64:128, :]'])
        """
        return {
            "atom": self.atom,
            "slot": self.slot,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "whole": self.is_whole,
            "ranges": list(self.ranges),
            "boxes": [{"offset": list(box.offset), "shape": list(box.shape)} for box in self.boxes],
            "bytes": self.nbytes,
        }


def as_slices(box: Box, shape: tuple[int, ...]) -> str:
    """Write a box of a tensor of ``shape`` as indices of Python, such as ``[64:128, :]``."""
    words = []
    for first, stop, extent in zip(box.offset, box.stop, shape, strict=True):
        if (first, stop) == (0, extent):
            words.append(":")
        elif stop == first + 1:
            words.append(str(first))
        else:
            words.append(f"{first or ''}:{'' if stop == extent else stop}")
    return f"[{', '.join(words)}]"


@dataclass(frozen=True, slots=True)
class UnreadPart:
    """Atoms of an index part that cannot be read, so that only the first and the last are known by name."""

    first: str
    last: str
    atoms: int

    def __str__(self) -> str:
        if self.atoms == 1:
            return f"{self.first}: the atom, with all its slots"
        return f"{self.first} to {self.last}: {self.atoms:,} atoms, with all their slots"


@dataclass(frozen=True, slots=True)
class Survey:
    """What is lost of a checkpoint, and what survives.

    ``losses`` are tensors of which something is lost, in the order of their names; ``parts`` atoms that only the root
    document still knows; ``blobs`` the names of blobs, and of files of process images; ``state`` whether values,
    optimizers and blobs are all lost.
    ``tensors`` counts the tensors that are known, ``nbytes`` their logical bytes; ``unchecked`` counts those of them
    that would have been too much work (``UCP-W-UNCHECKED``), and that survive as far as is known.

    >>> ucp.Survey(tensors=2, nbytes=4096).is_whole
    True
    """

    losses: tuple[Loss, ...] = ()
    parts: tuple[UnreadPart, ...] = ()
    blobs: tuple[str, ...] = ()
    state: bool = False
    tensors: int = 0
    nbytes: int = 0
    unchecked: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost.

        >>> ucp.examine("example.ucp").survey.is_whole
        True
        """
        return not (self.losses or self.parts or self.blobs or self.state)

    @property
    def gone(self) -> int:
        """How many tensors are lost altogether, of those that are known.

        >>> ucp.Survey(losses=(loss,), tensors=2, nbytes=4096).gone
        0
        """
        return sum(loss.is_whole for loss in self.losses)

    @property
    def partly(self) -> int:
        """How many tensors are lost in part.

        >>> ucp.Survey(losses=(loss,), tensors=2, nbytes=4096).partly
        1
        """
        return len(self.losses) - self.gone

    @property
    def lost_bytes(self) -> int:
        """Logical bytes that are lost, of the tensors that are known.

        >>> ucp.Survey(losses=(loss,), tensors=2, nbytes=4096).lost_bytes
        16384
        """
        return sum(loss.nbytes for loss in self.losses)

    def to_json(self) -> dict[str, object]:
        """Return the object that ``ucp validate --format json`` prints.

        >>> sorted(ucp.Survey(losses=(loss,)).to_json())[:3]
        ['lost', 'survives']
        """
        return {
            "lost": {
                "tensors": [loss.to_json() for loss in self.losses],
                "parts": [
                    {"first": part.first, "last": part.last, "atoms": part.atoms} for part in self.parts
                ],
                "blobs": list(self.blobs),
                "state": self.state,
            },
            "survives": {
                "tensors": {
                    "whole": self.tensors - len(self.losses),
                    "unchecked": self.unchecked,
                    "partly": self.partly,
                    "lost": self.gone,
                },
                "bytes": {"whole": self.nbytes - self.lost_bytes, "lost": self.lost_bytes},
            },
        }


def surveyed(checked: CheckedCheckpoint, damage: Damage) -> Survey:
    """Return what ``damage`` means for a checkpoint."""
    losses: list[Loss] = []
    unread: list[UnreadPart] = []
    tensors = nbytes = 0
    has_packs = checked.root.packs is None or checked.root.packs.key not in damage.documents
    usable = {
        part.index_key: part
        for part in checked.parts
        if has_packs and damage.documents.keys().isdisjoint((part.index_key, part.table_key))
    }
    for entry in checked.root.parts:
        part = usable.get(entry.index.key)
        if part is not None:
            sizes = [math.prod(grid.shape) * kind.item_bytes for kind, grid in part.forms]
        elif entry.index.key in checked.indexes and entry.index.key not in damage.documents:
            whole = [*_of_index(checked.indexes[entry.index.key])]
            sizes = [loss.nbytes for loss in whole]
            losses += [loss for loss in whole if loss.nbytes]
        else:
            unread.append(UnreadPart(entry.first, entry.last, entry.atoms))
            continue
        tensors += len(sizes)
        nbytes += sum(sizes)
    losses += _of_stored(damage, usable)
    reference = checked.root.state
    has_state = reference is None or (checked.state is not None and reference.key not in damage.documents)
    losses.sort(key=lambda loss: (loss.atom, loss.slot))
    blobs = tuple(name for name, _ in damage.blobs) if has_state else ()
    named = {(loss.atom, loss.slot) for loss in losses}
    unchecked = sum(
        (stored.part.names[stored.position], stored.name) not in named for stored in damage.unchecked
    )
    return Survey(tuple(losses), tuple(unread), blobs, not has_state, tensors, nbytes, unchecked)


def _of_index(index: IndexPart) -> Iterator[Loss]:
    """Return every tensor of a part whose chunks cannot be found."""
    for atom in index.atoms:
        for slot in atom.slots:
            kind = DTYPES.get(slot.dtype)
            if kind is not None:
                nbytes = math.prod(slot.shape) * kind.item_bytes
                yield Loss(atom.name, slot.name, slot.dtype, slot.shape, (Box.whole(slot.shape),), nbytes)


class _Lost:
    """What of one slot is lost: ranges of its elements in row-major order, and boxes."""

    def __init__(self, stored: StoredSlot) -> None:
        self.stored = stored
        self.ranges: list[tuple[int, int]] = []
        self.boxes: list[Box] = []

    def loss(self) -> Loss | None:
        stored = self.stored
        shape = stored.grid.shape
        merged = joined_runs((start, stop) for start, stop in self.ranges if start < stop)
        flat = [box for start, stop in merged for box in decompose_flat_range(shape, start, stop)]
        boxes = joined((*flat, *self.boxes))
        if not boxes:
            return None
        nbytes = sum(box.size for box in boxes) * stored.dtype.item_bytes
        atom = stored.part.names[stored.position]
        return Loss(atom, stored.name, stored.dtype.name, shape, tuple(boxes), nbytes)


def _of_stored(damage: Damage, usable: Mapping[str, StoredPart]) -> Iterator[Loss]:
    found: dict[tuple[str, int], _Lost] = {}

    def lost(stored: StoredSlot) -> _Lost:
        return found.setdefault((stored.part.index_key, stored.number), _Lost(stored))

    for one in damage.segments:
        if one.blocks:
            _add_segment(lost(one.stored), one)
    for stored, chunk in damage.chunks:
        lost(stored).ranges.append(_chunk_range(stored, chunk))
    for stored in damage.contradicted:
        lost(stored).ranges.append((0, math.prod(stored.grid.shape)))
    for (key, _), one_lost in found.items():
        loss = one_lost.loss()
        if key in usable and loss is not None:
            yield loss


def _chunk_range(stored: StoredSlot, chunk: int) -> tuple[int, int]:
    """Return the elements of a chunk, which is one run of its slot."""
    item = stored.dtype.item_bytes
    first = stored.logical_start(chunk) // item
    return first, first + stored.raw_bytes(chunk) // item


def _add_segment(lost: _Lost, one: SegmentDamage) -> None:
    stored, chunk = one.stored, one.chunk
    segment = stored.segments(chunk)[one.number]
    first, stop = _chunk_range(stored, chunk)
    if stored.compressor is not None:
        lost.ranges.append((first, stop))
        return
    item = stored.dtype.item_bytes
    if segment.row_set is not None and segment.box is not None:
        lost.boxes += _rows_lost(stored, chunk, one)
        return
    size = stop - first if segment.box is None else segment.box.size
    for low, high in one.blocks:
        start, end = low * BLOCK_BYTES // item, min(size, -(-high * BLOCK_BYTES // item))
        if start >= end:
            continue  # what lies beyond the shape
        if segment.box is None:
            lost.ranges.append((first + start, first + end))
        else:
            offset = tuple(map(int.__add__, segment.box.offset, stored.grid.box_at(chunk).offset))
            boxes = decompose_flat_range(segment.box.shape, start, end)
            lost.boxes += [box.translate(offset) for box in boxes]


def _rows_lost(stored: StoredSlot, chunk: int, one: SegmentDamage) -> Iterator[Box]:
    """Yield the rows, in coordinates of the slot, that a damaged layer gave."""
    segments = stored.segments(chunk)
    segment = segments[one.number]
    box = segment.box
    if box is None:
        return
    rows = segment.row_numbers()
    row_bytes = segment.length // rows.size
    is_seen = np.ones(rows_of(box), bool)
    for other in segments[one.number + 1 :]:
        if other.box == box:
            is_seen &= ~other.present()
    dim = row_dim(box.shape)
    origin = tuple(map(int.__add__, box.offset, stored.grid.box_at(chunk).offset))
    for low, high in one.blocks:
        bad = rows[low * BLOCK_BYTES // row_bytes : -(-high * BLOCK_BYTES // row_bytes)]
        for first, stop in as_runs(bad[is_seen[bad]].tolist()):
            offset = (*origin[:dim], origin[dim] + first, *origin[dim + 1 :])
            yield Box(offset, (*box.shape[:dim], stop - first, *box.shape[dim + 1 :]))
