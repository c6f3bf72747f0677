"""Kinds of checkpoints, how to tell them apart, and conversion between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.frameworks.conversion import Job, SlotSource, run_job
from ucpformat.frameworks.foreign import BUILT_IN, ExportOptions, ForeignKind, ImportOptions
from ucpformat.model.root import ROOT_KEY
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage.store import open_store
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from ucpformat.frameworks.torch_dcp.importer import ForeignObjects
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.root import Storage

__all__ = ["KINDS", "ConversionReport", "Kind", "convert_checkpoint", "detect_kind", "rewrite_job"]

Kind = str
_UCP: Final = "ucp"
_FOREIGN: Final[Mapping[str, ForeignKind]] = {kind.name: kind for kind in BUILT_IN}
KINDS: Final[tuple[Kind, ...]] = (_UCP, *_FOREIGN)


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion carried: tensors, their logical bytes, other values; the root digest of a ucp result."""

    tensors: int
    nbytes: int
    objects: int
    digest: str | None = None


def detect_kind(path: str | os.PathLike[str]) -> Kind:
    """The kind of the checkpoint at ``path``.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` if it is none that is known.
    """
    store = open_store(path)
    try:
        if store.size(ROOT_KEY) is not None:
            return _UCP
    finally:
        store.close()
    for kind in _FOREIGN.values():
        if kind.detect(path):
            return kind.name
    raise error(
        "UCP-E-SOURCE",
        f"no checkpoint of a known kind ({', '.join(KINDS)}) lies here; check the path, or say --from",
        at=str(path),
    )


def convert_checkpoint(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    source_kind: Kind,
    destination_kind: Kind,
    storage: Storage = "packed",
    compressor: Compressor | None = None,
    foreign_objects: ForeignObjects = "refuse",
    shard_count: int | None = None,
    settings: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> ConversionReport:
    """Convert a checkpoint; the destination must not exist.

    ``settings`` are those of the destination's kind (`ExportOptions`).
    ``expect`` is told how many logical bytes there are, then ``progress`` of every so many that are done.

    Raises:
        UcpError: what the importer, the reader, the exporter and the writer raise.
    """
    if source_kind == _UCP:
        with open_checkpoint(source) as checkpoint:
            if destination_kind != _UCP:
                export = _foreign(destination_kind).export
                if export is None:
                    raise error("UCP-E-SOURCE", f"{destination_kind} is read and not written")
                sizes = [stored.nbytes for stored in checkpoint.slots()]
                expect(sum(sizes))
                count = export(checkpoint, destination, ExportOptions(progress, settings or {}))
                return ConversionReport(len(sizes), sum(sizes), count)
            job = rewrite_job(checkpoint)
            expect(job.nbytes)
            return _write(job, destination, storage, compressor, progress)
    if destination_kind != _UCP:
        raise error(
            "UCP-E-SOURCE", f"there is no way from {source_kind} to {destination_kind} but through ucp"
        )
    plan = _foreign(source_kind).plan
    if plan is None:
        raise error("UCP-E-SOURCE", f"{source_kind} is written and not read", at=str(source))
    job = plan(source, ImportOptions(foreign_objects, shard_count))
    expect(job.nbytes)
    return _write(job, destination, storage, compressor, progress)


def _foreign(kind: Kind) -> ForeignKind:
    found = _FOREIGN.get(kind)
    if found is None:
        raise error("UCP-E-SOURCE", f"the kind {kind!r} is none of {', '.join(KINDS)}")
    return found


def _write(
    job: Job,
    destination: str | os.PathLike[str],
    storage: Storage,
    compressor: Compressor | None,
    progress: Callable[[int], None],
) -> ConversionReport:
    digest = run_job(job, destination, storage=storage, compressor=compressor, progress=progress)
    objects = len(job.state.values) + len(job.state.optimizers) + len(job.blobs)
    return ConversionReport(len(job.sources), job.nbytes, objects, digest)


def rewrite_job(checkpoint: Checkpoint) -> Job:
    """A copy of a universal checkpoint, in whatever storage it is then run (SPEC 17.5).

    Raises:
        UnsupportedError: ``UCP-E-FEATURE`` for a write feature that this software does not know.
    """
    envelope = checkpoint.root.envelope
    if envelope.write_features:
        names = ", ".join(envelope.write_features)
        raise error(
            "UCP-E-FEATURE", f"rewriting takes features that this software lacks: {names}", at=ROOT_KEY
        )
    atoms = []
    sources = []
    for view in checkpoint.values():
        slots = {}
        for name, slot in view.items():
            kept = slot.stored.slot
            slots[name] = SlotSpec(
                kept.dtype, kept.shape, slot.layout, kept.compressor, kept.annotations, kept.place
            )
            sources.append(SlotSource(view.atom.name, name, partial(checkpoint.read_box, slot.stored)))
        atoms.append(AtomSpec(view.atom.name, slots, view.atom.aliases, view.atom.annotations))
    progress = checkpoint.root.progress
    return Job(
        atoms=atoms,
        sources=sources,
        state=checkpoint.state,
        blobs={
            name: (blob.media_type, checkpoint.blob(name)) for name, blob in checkpoint.state.blobs.items()
        },
        step=None if progress is None else progress.step,
        chunk_bytes=checkpoint.root.chunk_bytes,
        annotations=envelope.annotations,
        extensions={name: e for name, e in envelope.extensions.items() if e.safe_to_copy},
    )
