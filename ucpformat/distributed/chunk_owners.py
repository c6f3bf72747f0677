"""Whole chunks where several ranks hold parts of one: each chunk gets one owner, to whom the others send theirs.

Storage plain and compressed slots take whole chunks (SPEC sections 16.3 and 16.4). The owner of a chunk is a rank that
holds the most bytes of it; of several, the one that owns the least of what just the holders of such a chunk share.
What the owner does not hold is sent once, by the one of its holders that has sent least in the same company. So no more
is sent than what an owner lacks, and what a rank does follows from the chunks of which it holds a part, without a look
at those of others: all who hold some of a chunk look at the same chunks in the same order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ucpformat.distributed.share import Assigned, Portion, held_by_all, pieces_of
from ucpformat.gc_pause import paused
from ucpformat.geometry import Box, BoxIndex

if TYPE_CHECKING:
    from ucpformat.distributed.share import SlotToShare

__all__ = ["SharedChunk", "Wave", "WholeChunks", "whole_chunks"]

_WAVE_BYTES: Final = 1 << 28  # of chunks that one rank owns, while they are put together
_Cast = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SharedChunk:
    """A chunk of which a rank gets parts from others, or gives one: all parts on its owner, else the rank's own."""

    slot: SlotToShare
    chunk: int
    parts: tuple[Assigned, ...]
    owner: int

    @property
    def box(self) -> Box:
        """The chunk's box of the slot."""
        return self.slot.grid.box_at(self.chunk)

    @property
    def nbytes(self) -> int:
        """Logical bytes of the chunk."""
        return self.box.size * self.slot.item_bytes


@dataclass(slots=True)
class Wave:
    """Chunks that are put together at once, by ranks that hold parts of chunks together.

    No rank owns more than a bound of one, or one chunk. ``last`` is the place of its last slot, among all slots, and
    chunk, whoever takes part in that: ranks that meet in several waves meet in their order.
    """

    chunks: list[SharedChunk]
    last: tuple[int, int]
    last_slot: tuple[str, str]


@dataclass(frozen=True, slots=True)
class WholeChunks:
    """One rank's part: what it writes or sends, in the order of slots, and the waves that it takes part in."""

    portions: list[Portion]
    waves: list[Wave]


@dataclass(slots=True)
class _Company:
    """Ranks that hold chunks in one way, and what each has been given of these."""

    loads: list[tuple[int, int, int]]
    sent: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    owned: dict[int, int] = field(default_factory=dict)
    era: int = -1
    wave: Wave | None = None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of a kind of slot: boxes of it with their holders, and who holds most."""

    number: int
    size: int
    boxes: tuple[Box, ...]
    holders: tuple[frozenset[int], ...]
    cast: _Cast
    company: _Company | None
    """None if no rank holds some parts, which the commit will report."""


def whole_chunks(slots: Iterable[SlotToShare], rank: int, *, most: int = _WAVE_BYTES) -> WholeChunks:
    """Plan for ``rank`` the slots of all ranks of which whole chunks are stored, in order; ``most`` bytes to a wave.

    Raises:
        LayoutError: as `share.portions`.
    """
    planner = _Planner(rank, most)
    with paused:
        for number, slot in enumerate(slots):
            planner.add(number, slot)
    waves = sorted((wave for wave in planner.waves if wave.chunks), key=lambda wave: wave.last)
    return WholeChunks(planner.portions, waves)


class _Planner:
    def __init__(self, rank: int, most: int) -> None:
        self.portions: list[Portion] = []
        self.waves: list[Wave] = []
        self._rank = rank
        self._most = most
        self._passed = 0
        self._kinds: dict[tuple[object, ...], list[_Chunk]] = {}
        self._companies: dict[tuple[_Cast, tuple[int, ...]], _Company] = {}

    def add(self, number: int, slot: SlotToShare) -> None:
        # An era is as many slots as hold about a wave's bytes for each rank: parts of more do not wait for a wave.
        holders = max(len(source.ranks) for source in slot.sources)
        self._passed += math.prod(slot.grid.shape) * slot.item_bytes // holders
        if not any(self._rank in source.ranks for source in slot.sources):
            return
        key = (slot.sources, slot.grid)
        chunks = self._kinds.get(key)
        if chunks is None:
            chunks = self._kinds[key] = list(self._chunks(slot))
        pieces = pieces_of(slot, self._rank) if chunks else ()
        for chunk in chunks:
            parts = self._parts(number, slot, chunk)
            for part in parts:
                if part.rank == self._rank:
                    clipped = (piece.clip(part.box) for piece in pieces)
                    self.portions += [Portion(slot.name, piece) for piece in clipped if piece is not None]

    def _chunks(self, slot: SlotToShare) -> Iterable[_Chunk]:
        """Yield the chunks of which the rank holds a part."""
        held = held_by_all(slot)
        boxes = [one.box for one in held]
        index = BoxIndex(boxes)
        mine = {chunk for one in held if self._rank in one.holders for chunk in slot.grid.chunks_for(one.box)}
        for number in sorted(mine):
            box = slot.grid.box_at(number)
            found = [
                (part, held[one].holders)
                for one in index.overlapping(box)
                if (part := boxes[one].intersect(box)) is not None
            ]
            cast = tuple(holders for _, holders in found)
            sizes: dict[int, int] = {}
            for part, holders in found:
                for rank in holders:
                    sizes[rank] = sizes.get(rank, 0) + part.size
            company = None
            if sum(part.size for part, _ in found) == box.size:
                largest = max(sizes.values())
                candidates = tuple(sorted(rank for rank, size in sizes.items() if size == largest))
                company = self._companies.setdefault(
                    (cast, candidates), _Company([(0, at, rank) for at, rank in enumerate(candidates)])
                )
            yield _Chunk(
                number,
                box.size,
                tuple(part for part, _ in found),
                tuple(map(frozenset, cast)),
                cast,
                company,
            )

    def _parts(self, number: int, slot: SlotToShare, chunk: _Chunk) -> Sequence[Assigned]:
        """Return what the rank gives of a chunk, and all of it where it owns it; its wave learns of it."""
        company = chunk.company
        if company is None:
            owner = None
        else:
            load, at, owner = company.loads[0]
            nbytes = chunk.size * slot.item_bytes
            heapq.heapreplace(company.loads, (load + nbytes, at, owner))
        parts = []
        is_shared = False
        for number, box in enumerate(chunk.boxes):
            giver = owner
            if owner is None:
                giver = chunk.cast[number][0]
            elif owner not in chunk.holders[number]:
                is_shared = True
                giver = self._giver(chunk, number, box.size * slot.item_bytes)
            if giver is not None and self._rank in (owner, giver):
                parts.append(Assigned(box, giver, chunk.cast[number]))
        if company is not None and owner is not None and is_shared:
            wave = self._wave(company, owner, chunk.size * slot.item_bytes)
            wave.last, wave.last_slot = (number, chunk.number), slot.name
            if parts:
                wave.chunks.append(SharedChunk(slot, chunk.number, tuple(parts), owner))
        return parts

    @staticmethod
    def _giver(chunk: _Chunk, number: int, nbytes: int) -> int:
        holders = chunk.cast[number]
        if len(holders) == 1 or chunk.company is None:
            return holders[0]
        loads = chunk.company.sent.get(number)
        if loads is None:
            loads = [(0, at, rank) for at, rank in enumerate(holders)]
            chunk.company.sent[number] = loads
        load, at, rank = loads[0]
        heapq.heapreplace(loads, (load + nbytes, at, rank))
        return rank

    def _wave(self, company: _Company, owner: int, nbytes: int) -> Wave:
        era = self._passed // self._most
        owned = company.owned.get(owner, 0)
        if company.wave is None or company.era != era or (owned and owned + nbytes > self._most):
            company.wave, company.era, owned = Wave([], (0, 0), ("", "")), era, 0
            company.owned.clear()
            self.waves.append(company.wave)
        company.owned[owner] = owned + nbytes
        return company.wave
