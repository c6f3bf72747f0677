"""A save, and a load under another arrangement, as one rank of very many plans them, without a byte of data.

A fixed model is spread over more and more ranks. Descriptions, shares, receipts and documents are those of the
library; only the other ranks, and the bytes, are not there.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from benchmarks.giant import Grid, Size, arranged
from benchmarks.growth.curves import Point, best_of
from ucpformat.distributed.chunk_owners import whole_chunks
from ucpformat.distributed.description import Described, Description, describe, merged
from ucpformat.distributed.local_state import LocalState, SlotName
from ucpformat.distributed.share import Assigned, SlotToShare, assignments, portions
from ucpformat.gc_pause import paused
from ucpformat.geometry import Layout, chunk_grid, lower, runs
from ucpformat.model.arrangement import Arrangement
from ucpformat.model.atom import Slot
from ucpformat.model.dtype import dtype
from ucpformat.model.references import Pack
from ucpformat.model.root import ROOT_KEY
from ucpformat.model.table import BLOCK_BYTES, Segment
from ucpformat.reader import open_checkpoint
from ucpformat.storage.reading.read_plan import planned_reads
from ucpformat.storage.writing.chunk_writer import StoredChunk, segment_alignment
from ucpformat.storage.writing.stored_columns import Receipt, StoredColumns
from ucpformat.writer import DEFAULT_CHUNK_BYTES, AtomSpec, CheckpointWriter, SlotSpec

__all__ = ["GRIDS", "MODEL", "Job", "at_ranks"]

MODEL: Final = Size(layers=16, experts=16, hidden=2048, inner=2048)
"""4.5 * 10^9 parameters in 576 tensors, three states each."""
GRIDS: Final[Mapping[int, tuple[int, int, int, int]]] = {
    16: (2, 2, 2, 2),
    64: (4, 4, 2, 2),
    256: (4, 8, 4, 2),
    1024: (8, 8, 4, 4),
    4096: (16, 8, 8, 4),
    16384: (16, 8, 16, 8),
}
"""Degrees of pipeline, tensor, expert and (inside of it) data parallelism, by the number of ranks."""


_CRC_BYTES: Final = 4


def _nothing() -> Any:
    raise AssertionError("nothing is written here")


@dataclass(frozen=True)
class Job:
    """A model on a grid of ranks that is about to be saved."""

    model: Size
    grid: Grid

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Of all slots."""
        return self._arrangement.layouts

    @cached_property
    def _arrangement(self) -> Arrangement:
        return arranged(self.model, self.grid)

    @cached_property
    def atoms(self) -> list[AtomSpec]:
        """Of all ranks."""
        return [
            AtomSpec(
                atom.name,
                {
                    slot.name: SlotSpec(slot.dtype, slot.shape, self._layout(slot), None, {}, slot.place)
                    for slot in atom.slots
                },
            )
            for atom in self._arrangement.atoms
        ]

    def _layout(self, slot: Slot) -> Layout | None:
        return None if slot.layout is None else self.layouts[slot.layout]

    def local(self, rank: int) -> LocalState:
        """What one rank says that it holds: the slots of its stage and of its group of experts."""
        holds = [layout.holds(rank) for layout in self.layouts]
        atoms = [
            spec
            for spec, atom in zip(self.atoms, self._arrangement.atoms, strict=True)
            if any(slot.layout is not None and holds[slot.layout] for slot in atom.slots)
        ]
        return LocalState(atoms, {(atom.name, slot): _nothing for atom in atoms for slot in atom.slots})

    @cached_property
    def kinds(self) -> dict[tuple[int, int], list[int]]:
        """Ranks that hold the same slots: those of one stage and one group of experts."""
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        mesh = self.grid.mesh
        for rank in range(mesh.size):
            stage, _, experts, _ = mesh.coordinate_of(rank)
            found[stage, experts].append(rank)
        return dict(found)

    def descriptions(self) -> list[tuple[bytes, list[int]]]:
        """What all ranks say: one description for those who say the same."""
        return [(describe(self.local(ranks[0]), {}).pack(), ranks) for ranks in self.kinds.values()]


def _merged(descriptions: list[tuple[bytes, list[int]]]) -> Described:
    known: dict[Layout, Layout] = {}
    return merged((Description.unpack(data, known), ranks) for data, ranks in descriptions)


def _to_share(whole: Described, name: SlotName) -> SlotToShare:
    slot = whole.atoms[name[0]].slots[name[1]]
    item = dtype(slot.dtype).item_bytes
    grid = chunk_grid(slot.shape, item, DEFAULT_CHUNK_BYTES)
    return SlotToShare(name, tuple(whole.sources[name]), grid, item)


def _stored(slot: SlotToShare, one: Assigned, offset: int) -> Iterator[tuple[int, StoredChunk]]:
    """What the one who writes a box reports of it, chunk by chunk."""
    for chunk in slot.grid.chunks_for(one.box):
        whole = slot.grid.box_at(chunk)
        part = whole.intersect(one.box)
        if part is None:
            continue
        inner = part.relative_to(whole)
        lines = runs(inner, whole.shape)
        start = (slot.grid.chunk_start(slot.grid.index_of(chunk)) + lines.first) * slot.item_bytes
        size = part.size * slot.item_bytes
        offset += -offset % segment_alignment(size)
        checksums = bytes(_CRC_BYTES * -(-size // BLOCK_BYTES))
        segment = Segment(0, offset, size, None if part == whole else inner, checksums)
        yield chunk, StoredChunk(segment, start, size, _cuts(start, size) if lines.count == 1 else None)
        offset += size


def _cuts(start: int, size: int) -> bytes:
    """A checksum for each logical block that a run of bytes meets."""
    return bytes(_CRC_BYTES * (-(-(start + size) // BLOCK_BYTES) - start // BLOCK_BYTES))


def _receipts(
    slots: Sequence[SlotToShare], assigned: Mapping[SlotName, Sequence[Assigned]], ranks: int
) -> Iterator[bytes]:
    """What every rank sends to the first."""
    stored: defaultdict[int, list[tuple[SlotName, int, StoredChunk]]] = defaultdict(list)
    ends: defaultdict[int, int] = defaultdict(int)
    for slot in slots:
        for one in assigned.get(slot.name, ()):
            for chunk, entry in _stored(slot, one, ends[one.rank]):
                stored[one.rank].append((slot.name, chunk, entry))
                ends[one.rank] = 0 if entry.segment is None else entry.segment.offset + entry.segment.length
    names = [slot.name for slot in slots]
    for rank in range(ranks):
        packs = [Pack(f"packs/00000000-{rank}-0.pack", ends[rank])] if ends[rank] else []
        yield Receipt(packs, StoredColumns.of(stored[rank], names), {}).pack()


def _committed(path: Path, whole: Described, names: Sequence[SlotName], receipts: Sequence[bytes]) -> int:
    """What the first rank does when it has all receipts; bytes of the root document."""
    writer = CheckpointWriter(path, whole.atoms.values(), durability="none")
    with paused:
        for data in receipts:
            receipt = Receipt.unpack(data, names)
            writer.admit(receipt.packs, receipt.stored)
    writer.commit()
    return (path / ROOT_KEY).stat().st_size


def _reads(path: Path, job: Job, rank: int) -> int:
    """Plan what one rank of another job reads; how many reads."""
    count = 0
    with open_checkpoint(path) as checkpoint:
        for atom in job.local(rank).atoms:
            for name, spec in atom.slots.items():
                if spec.layout is None:
                    continue
                coordinate = spec.layout.mesh.coordinate_of(rank)
                lowering = lower(spec.layout, spec.shape, place=spec.place)
                held = lowering.at(coordinate)
                if held is not None and held.pieces:
                    stored = checkpoint[atom.name][name].stored
                    count += sum(1 for _ in planned_reads(stored, lowering.view, held.pieces))
    return count


def _segments(slots: Sequence[SlotToShare]) -> int:
    """How many segments all ranks write, packed: counted once for slots that are spread alike."""
    counts: dict[tuple[object, ...], int] = {}
    total = 0
    for slot in slots:
        key = (slot.sources, slot.grid)
        if key not in counts:
            parts = assignments([slot])[slot.name]
            counts[key] = sum(sum(1 for _ in slot.grid.chunks_for(one.box)) for one in parts)
        total += counts[key]
    return total


def at_ranks(job: Job, target: Job, repeats: int, *, commits: bool = True) -> Point:
    """Everything at one size: ``job`` saves, one rank of ``target`` plans to read it.

    Without ``commits``, what one rank plans to write, and no more.
    """
    rank = job.grid.ranks // 3
    local, described = best_of(repeats, partial(_description, job, rank))
    descriptions = job.descriptions()
    whole, merging = best_of(repeats, lambda: _merged(descriptions))
    names = sorted(whole.sources)
    mine = [_to_share(whole, name) for name in names if name in local.arrays]
    found, sharing = best_of(repeats, lambda: portions(mine, rank))
    slots = [_to_share(whole, name) for name in names]
    chunks, owning = best_of(repeats, lambda: whole_chunks(slots, rank))
    values = {
        "one rank describes, s": described.cpu_seconds,
        "every rank merges descriptions, s": merging.cpu_seconds,
        "descriptions, MiB": sum(len(data) for data, _ in descriptions) / (1 << 20),
        "one rank finds its share, packed, s": sharing.cpu_seconds,
        "its portions": len(found),
        "segments of all ranks": _segments(slots),
        "one rank finds its share, plain or compressed, s": owning.cpu_seconds,
        "its shared chunks": sum(len(wave.chunks) for wave in chunks.waves),
        "waves in which it meets others": len(chunks.waves),
    }
    if not commits:
        return Point(job.grid.ranks, values)
    receipts = [*_receipts(slots, assignments(slots), job.grid.ranks)]
    with tempfile.TemporaryDirectory() as room:
        paths = iter(range(repeats))
        root, committing = best_of(
            repeats, lambda: _committed(Path(room, f"{next(paths)}.ucp"), whole, names, receipts)
        )
        path = Path(room, "0.ucp")
        target.local(target.grid.ranks // 3)  # what the job knows anyhow
        reads, planning = best_of(repeats, lambda: _reads(path, target, target.grid.ranks // 3))
        index = sum(file.stat().st_size for file in path.glob("index/*"))
    return Point(
        job.grid.ranks,
        values
        | {
            "receipts, MiB": sum(map(len, receipts)) / (1 << 20),
            "first rank merges receipts and commits, s": committing.cpu_seconds,
            "its memory, MiB": committing.peak_bytes / (1 << 20),
            "index parts and tables, MiB": index / (1 << 20),
            "root document, KiB": root / 1024,
            "one rank opens and plans a resharded load, s": planning.cpu_seconds,
            "its reads": reads,
        },
    )


def _description(job: Job, rank: int) -> LocalState:
    local = job.local(rank)
    describe(local, {}).pack()
    return local
