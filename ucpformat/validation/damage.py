"""What the validator found damaged, as places in objects: what is lost by it, and what a repair has to bring back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ucpformat.storage.reading.part import StoredSlot

__all__ = ["Damage", "SegmentDamage", "as_runs", "joined_runs"]


class SegmentDamage(NamedTuple):
    """A segment whose stored bytes are not all there: ``number`` among those of its chunk.

    ``blocks`` are half-open ranges of its checksum blocks, in order. There are none where the blocks are good and what
    surrounds them is not: the length of a chunk's own object, or the four bytes of Zarr's codec at its end.
    """

    stored: StoredSlot
    chunk: int
    number: int
    blocks: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Damage:
    """Everything that was found damaged, in the order it was found.

    ``segments``: stored bytes that are wrong, or not there. ``chunks``: those that cannot be read though their bytes
    are as recorded. ``contradicted``: slots whose bytes are not those of their content digest. ``documents``: keys of
    documents and tables. ``metadata``: keys of Zarr documents. ``packs``: numbers of packs that are missing, of another
    length, or not zero between segments. ``blobs``: names. ``unchecked``: slots that nobody looked at.
    """

    segments: list[SegmentDamage] = field(default_factory=list)
    chunks: list[tuple[StoredSlot, int]] = field(default_factory=list)
    contradicted: list[StoredSlot] = field(default_factory=list)
    documents: dict[str, None] = field(default_factory=dict)
    metadata: dict[str, None] = field(default_factory=dict)
    packs: dict[int, None] = field(default_factory=dict)
    blobs: list[str] = field(default_factory=list)
    unchecked: list[StoredSlot] = field(default_factory=list)

    @property
    def is_any(self) -> bool:
        """Whether anything was found that other bytes could put right."""
        return bool(self.segments or self.documents or self.metadata or self.packs or self.blobs)


def as_runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as half-open ranges."""
    return joined_runs([(number, number + 1) for number in numbers])


def joined_runs(runs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return half-open ranges in order, those that meet or overlap as one."""
    found: list[tuple[int, int]] = []
    for first, stop in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((first, stop))
    return tuple(found)
