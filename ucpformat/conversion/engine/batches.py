"""A job cut into batches of chunks: what one task copies, into a pack of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.model.names import assign_keys
from ucpformat.writer import slot_place

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job, SlotSource
    from ucpformat.storage.writing.chunk_writer import SlotPlace

__all__ = ["Batch", "Cut", "Run", "batch_size", "batches", "cut_job"]

_MIN_BATCH: Final = 32 << 20
_MAX_BATCH: Final = 1 << 30
_BATCHES: Final = 64
_MAX_RUNS: Final = 4096


@dataclass(frozen=True, slots=True)
class Run:
    """Chunks ``[first, stop)`` of a slot, which is given by its number."""

    slot: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs that one task copies, and their logical bytes."""

    number: int
    runs: tuple[Run, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A job's sources in their order, with the place of each."""

    sources: Sequence[SlotSource]
    places: Sequence[SlotPlace]


def cut_job(job: Job) -> Cut:
    """The places of a job's sources, the same in every process that plans the same job."""
    keys = assign_keys(atom.name for atom in job.atoms)
    atoms = {atom.name: atom for atom in job.atoms}
    return Cut(
        job.sources,
        [
            slot_place(keys[one.atom], one.atom, one.slot, atoms[one.atom].slots[one.slot], job.chunk_bytes)
            for one in job.sources
        ],
    )


def batch_size(total: int) -> int:
    """Bytes of a task: enough to be worth sending, few enough to be done again."""
    return min(max(total // _BATCHES, _MIN_BATCH), _MAX_BATCH)


def batches(places: Sequence[SlotPlace], size: int) -> Iterator[Batch]:
    """All chunks of all slots, in order, about ``size`` bytes together, or one chunk that has more."""
    runs: list[Run] = []
    number = held = 0
    for slot, place in enumerate(places):
        grid = place.grid
        chunk_bytes = math.prod(grid.chunk_shape) * place.dtype.item_bytes
        first = 0
        while first < grid.count:
            stop = min(grid.count, first + max(1, (size - held) // max(chunk_bytes, 1)))
            runs.append(Run(slot, first, stop))
            held += sum(grid.box_at(chunk).size * place.dtype.item_bytes for chunk in range(first, stop))
            first = stop
            if held >= size or len(runs) == _MAX_RUNS:
                yield Batch(number, tuple(runs), held)
                number, runs, held = number + 1, [], 0
    if runs:
        yield Batch(number, tuple(runs), held)
