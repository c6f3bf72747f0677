"""A universal checkpoint as the source of a job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.errors import error
from ucpformat.image_files import ImageSource, SourceFile
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.reading.documents import verified_pieces
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from ucpformat.model.process_image import ProcessImage
    from ucpformat.reader import Checkpoint

__all__ = ["checkpoint_job", "rewrite_job"]


def rewrite_job(checkpoint: Checkpoint) -> Job:
    """Return a copy of a universal checkpoint, in whatever storage it is then run (SPEC 17.5).

    Raises:
        UnsupportedError: ``UCP-E-FEATURE`` for a write feature that this software does not know.
    """
    features = checkpoint.root.envelope.write_features
    if features:
        names = ", ".join(features)
        raise error(
            "UCP-E-FEATURE", f"rewriting takes features that this software lacks: {names}", at=ROOT_KEY
        )
    return checkpoint_job(checkpoint)


def checkpoint_job(checkpoint: Checkpoint) -> Job:
    """Return what a universal checkpoint holds, for an exporter; it stays open meanwhile."""
    atoms = []
    sources = []
    for view in checkpoint.values():
        slots = {}
        for name, slot in view.items():
            kept = slot.stored.slot
            slots[name] = SlotSpec(
                kept.dtype, kept.shape, slot.layout, kept.compressor, kept.annotations, kept.place
            )
            read = partial(checkpoint.read_box, slot.stored)
            sources.append(SlotSource(view.atom.name, name, read, kept.content))
        atoms.append(AtomSpec(view.atom.name, slots, view.atom.aliases, view.atom.annotations))
    envelope = checkpoint.root.envelope
    return Job(
        atoms=atoms,
        sources=sources,
        state=checkpoint.state,
        blobs={
            name: (blob.media_type, checkpoint.blobs[name]) for name, blob in checkpoint.state.blobs.items()
        },
        images={name: _image(checkpoint, image) for name, image in checkpoint.images.items()},
        step=checkpoint.root.step,
        log=checkpoint.root.log,
        chunk_bytes=checkpoint.root.chunk_bytes,
        annotations=envelope.annotations,
        extensions={name: e for name, e in envelope.extensions.items() if e.safe_to_copy},
    )


def _image(checkpoint: Checkpoint, image: ProcessImage) -> ImageSource:
    """Return a process image of a checkpoint as one to write anew."""
    files = [
        SourceFile(file.path, partial(verified_pieces, checkpoint.store, file.object), file.is_executable)
        for file in image.files
    ]
    producer = image.producer.name, image.producer.version
    return ImageSource(image.media_type, producer, files, image.host, image.is_required, image.rank)
