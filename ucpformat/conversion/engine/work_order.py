"""What a worker is told: where the job comes from, where the checkpoint goes, which attempt this is, which chunks."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.contract.foreign import ImportOptions, Lost
from ucpformat.conversion.contract.job import admitted, refuse_unfinished
from ucpformat.conversion.contract.registry import UCP, check_settings, registry
from ucpformat.conversion.contract.weights import Weights, weights_of
from ucpformat.conversion.engine.dropped_items import unread_files, without
from ucpformat.conversion.engine.rewriting import checkpoint_job, rewrite_job
from ucpformat.errors import error, naming
from ucpformat.gc_pause import paused
from ucpformat.model.compressor import compressor_of
from ucpformat.model.names import assign_keys
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.urls import local_path
from ucpformat.tensor_files.source_files import watched
from ucpformat.writer import slot_place

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job, SlotSource
    from ucpformat.model.compressor import Compression
    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.store import Durability
    from ucpformat.storage.writing.chunk_writer import SlotPlace

__all__ = [
    "Batch",
    "Cut",
    "Opened",
    "Order",
    "Recipe",
    "Run",
    "batch_size",
    "batches",
    "compressed",
    "cut_job",
    "job_digest",
    "require_same",
    "url_of",
]


@dataclass(frozen=True, slots=True)
class Opened:
    """A job that a recipe gave, and what was left out of it on request."""

    job: Job
    dropped: Sequence[Lost] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to come to a job, in any process: the same arguments give the same job."""

    source: str
    source_format: str
    options: ImportOptions
    drop: tuple[str, ...] = ()
    compressor: Compression | None = None
    is_rewritten: bool = True
    """Whether a universal checkpoint is to be one again, which takes its write features."""
    weights: Weights | None = None
    """Where weights alone are to be carried, the slot that has them."""

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Open the job for as long as it is used.

        Raises:
            UcpError: what reading the source and `without` raise.
        """
        if self.source_format == UCP:
            check_settings(UCP, (), self.options.settings, "read")
            with open_checkpoint(self.source) as checkpoint:
                with paused, naming(self.source):
                    job = rewrite_job(checkpoint) if self.is_rewritten else checkpoint_job(checkpoint)
                    if not self.is_rewritten or self.drop or self.weights is not None:
                        checkpoint.require_drained()
                        job = replace(job, state=replace(job.state, pipeline=None))
                    if not self.is_rewritten:
                        why = "no other format has process images: `ucp extract` writes it to the disk"
                        lost = [Lost(f"images/{name}", why) for name in job.images]
                        job = replace(job, images={}, dropped=[*job.dropped, *lost])
                    opened = self._opened(job)
                yield opened
            return
        foreign = registry().format(self.source_format)
        if foreign.plan is None:
            raise error("UCP-E-SOURCE", f"{self.source_format} is written and not read", at=self.source)
        check_settings(self.source_format, tuple(foreign.import_settings), self.options.settings, "read")
        refuse_unfinished(self.source)
        with paused, naming(self.source), watched() as seen:
            plan = foreign.plan(self.source, self.options)
            unread = unread_files(self.source, seen, plan.dropped)
            job = admitted(replace(plan, dropped=[*plan.dropped, *unread]), self.source, self.options.expand)
            opened = self._opened(job)
        yield opened

    def _opened(self, whole: Job) -> Opened:
        job, left = (whole, ()) if self.weights is None else weights_of(whole, self.weights)
        job, dropped = without(job, self.drop)
        return Opened(compressed(job, self.compressor), (*left, *dropped))


def compressed(job: Job, compressor: Compression | None) -> Job:
    """Return the job with its slots compressed so, if a compressor is given."""
    if compressor is None:
        return job
    return replace(
        job,
        atoms=[
            replace(
                atom,
                slots={
                    name: replace(slot, compressor=compressor_of(compressor, slot.dtype, slot.shape))
                    for name, slot in atom.slots.items()
                },
            )
            for atom in job.atoms
        ],
    )


def job_digest(job: Job) -> str:
    """Return what two processes that plan one job must agree on: names, shapes, types, compressors, order, chunks."""
    atoms = {atom.name: atom for atom in job.atoms}
    told = []
    for source in job.sources:
        slot = atoms[source.atom].slots[source.slot]
        compressor = None if slot.compressor is None else slot.compressor.to_json()
        told.append([source.atom, source.slot, slot.dtype, list(slot.shape), compressor])
    text = json.dumps([job.chunk_bytes, job.step, told], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def require_same(recipe: Recipe, actual: str, wanted: str) -> None:
    """Raise ``UCP-E-SOURCE`` where a worker plans something else than the process that sent it the order."""
    if actual != wanted:
        raise error(
            "UCP-E-SOURCE",
            "another worker sees another checkpoint here: the source changed while it was converted, "
            "or the workers' software differs",
            at=recipe.source,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt at one checkpoint, as all its workers know it."""

    url: str
    storage: Storage
    durability: Durability
    attempt: str
    digest: str
    """Of the job (`job_digest`)."""

    memory: int
    """Bytes that each process may hold."""

    is_journaled: bool
    recipe: Recipe | None = None
    """None where all workers are threads of this process."""

    def receipt_key(self, batch: int) -> str:
        """Return where the receipt of a batch is kept while the attempt lasts."""
        return f"packs/{self.attempt}-{batch}.receipt"

    @property
    def plan_key(self) -> str:
        """Where the attempt says what it is of."""
        return f"packs/{self.attempt}.plan"


def url_of(path: str | os.PathLike[str]) -> str:
    """Return a URL, or a path that other processes find as well."""
    local = None if "://" in os.fspath(path) else local_path(path)
    return os.fspath(path) if local is None else str(Path(local).absolute())


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
    """Return the places of a job's sources, the same in every process that plans the same job."""
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
    """Return bytes of a task: enough to be worth sending, few enough to be done again."""
    return min(max(total // _BATCHES, _MIN_BATCH), _MAX_BATCH)


def batches(places: Sequence[SlotPlace], size: int) -> Iterator[Batch]:
    """Yield all chunks of all slots, in order, about ``size`` bytes together, or one chunk that has more."""
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
