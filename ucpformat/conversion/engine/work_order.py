"""What a worker is told: where the job comes from, where the checkpoint goes, and which attempt this is."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ucpformat.conversion.contract.admission import admitted
from ucpformat.conversion.contract.foreign import ImportOptions, Lost
from ucpformat.conversion.contract.registry import UCP, check_settings, registry
from ucpformat.conversion.contract.weights import Weights, weights_of
from ucpformat.conversion.engine.dropped_items import without
from ucpformat.conversion.engine.out_directory import refuse_unfinished
from ucpformat.conversion.engine.rewriting import checkpoint_job, rewrite_job
from ucpformat.conversion.engine.unread import unread_files
from ucpformat.errors import error, naming
from ucpformat.gc_pause import paused
from ucpformat.model.compression_rule import compressor_of
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.urls import local_path
from ucpformat.tensor_files.source_files import watched

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job
    from ucpformat.model.compression_rule import Compression
    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.store import Durability

__all__ = ["Opened", "Order", "Recipe", "compressed", "job_digest", "require_same", "url_of"]


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
        """The job, for as long as it is used.

        Raises:
            UcpError: what reading the source and `without` raise.
        """
        if self.source_format == UCP:
            check_settings(UCP, (), self.options.settings, "read")
            with open_checkpoint(self.source) as checkpoint:
                with paused(), naming(self.source):
                    job = rewrite_job(checkpoint) if self.is_rewritten else checkpoint_job(checkpoint)
                    opened = self._opened(job)
                yield opened
            return
        foreign = registry().format(self.source_format)
        if foreign.plan is None:
            raise error("UCP-E-SOURCE", f"{self.source_format} is written and not read", at=self.source)
        check_settings(self.source_format, tuple(foreign.import_settings), self.options.settings, "read")
        refuse_unfinished(self.source)
        with paused(), naming(self.source), watched() as seen:
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
    """The job with its slots compressed so, if a compressor is given."""
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
    """What two processes that plan one job must agree on: names, shapes, types, compressors, order, chunks."""
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
        """Where the receipt of a batch is kept while the attempt lasts."""
        return f"packs/{self.attempt}-{batch}.receipt"

    @property
    def plan_key(self) -> str:
        """Where the attempt says what it is of."""
        return f"packs/{self.attempt}.plan"


def url_of(path: str | os.PathLike[str]) -> str:
    """Return a URL, or a path that other processes find as well."""
    local = None if "://" in os.fspath(path) else local_path(path)
    return os.fspath(path) if local is None else str(Path(local).absolute())
