"""Conversion jobs: a foreign checkpoint, described and readable box by box, written as a universal one.

Memory stays within one chunk per worker, whatever the size of the model; nothing is staged on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype
from ucpformat.model.envelope import Extension
from ucpformat.model.state import StateDocument
from ucpformat.storage.workers import worker_count
from ucpformat.writer import DEFAULT_CHUNK_BYTES, AtomSpec, CheckpointWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.frameworks.foreign import Lost
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.root import Storage

__all__ = ["Job", "SlotSource", "run_job"]

ReadBox = Callable[[Box, "NDArray[np.generic]"], None]


@dataclass(frozen=True, slots=True)
class SlotSource:
    """Where the elements of a slot come from: ``read`` fills a contiguous array with a box. Thread-safe."""

    atom: str
    slot: str
    read: ReadBox


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a checkpoint is to hold. ``blobs``: name to media type and bytes.

    ``dropped`` names what the source has and the job cannot carry: it is run only where each is allowed to be lost.
    """

    atoms: Sequence[AtomSpec]
    sources: Sequence[SlotSource]
    state: StateDocument
    blobs: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    step: int | None = None
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    annotations: Mapping[str, JsonValue] = field(default_factory=dict)
    extensions: Mapping[str, Extension] = field(default_factory=dict)
    dropped: Sequence[Lost] = ()

    @property
    def nbytes(self) -> int:
        """Logical bytes of all slots."""
        return sum(
            int(np.prod(slot.shape, dtype=object)) * dtype(slot.dtype).item_bytes
            for atom in self.atoms
            for slot in atom.slots.values()
        )


def run_job(
    job: Job,
    url: str | os.PathLike[str],
    *,
    storage: Storage = "packed",
    compressor: Compressor | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> str:
    """Write the checkpoint and commit it; returns the root digest. ``progress`` is told of logical bytes.

    Raises:
        UcpError: what the source, the writer and the store raise; nothing is visible then.
    """
    atoms = list(job.atoms)
    if compressor is not None:
        atoms = [
            replace(
                atom, slots={name: replace(slot, compressor=compressor) for name, slot in atom.slots.items()}
            )
            for atom in atoms
        ]
    workers = worker_count(workers)
    with CheckpointWriter(
        url,
        atoms,
        storage=storage,
        chunk_bytes=job.chunk_bytes,
        step=job.step,
        annotations=job.annotations,
        extensions=job.extensions,
        workers=workers,
        progress=progress,
    ) as writer:
        writer.set_state(job.state)
        for name, (media_type, data) in job.blobs.items():
            writer.add_blob(name, data, media_type)

        def copy(source: SlotSource, box: Box) -> None:
            kind = writer.dtype(source.atom, source.slot)
            data = np.empty(box.shape, kind.numpy)
            source.read(box, data)
            writer.write(source.atom, source.slot, data, box.offset)

        boxes = (
            (source, grid.chunk_box(grid.index_of(chunk)))
            for source in job.sources
            for grid in (writer.grid(source.atom, source.slot),)
            for chunk in range(grid.count)
        )
        executor = ThreadPoolExecutor(workers, thread_name_prefix="ucp-convert")
        try:
            for future in [executor.submit(copy, source, box) for source, box in boxes]:
                future.result()
        finally:
            # After a failure the boxes that are left are not copied.
            executor.shutdown(cancel_futures=True)
        return writer.commit()
