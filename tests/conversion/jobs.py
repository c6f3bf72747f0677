"""Jobs of arrays in memory, and what a job's sources give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype, dtype_of
from ucpformat.model.state import StateDocument
from ucpformat.writer import AtomSpec, SlotSpec

Array = np.ndarray[Any, np.dtype[Any]]


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in zip(box.offset, box.stop, strict=True))


def job_of(
    arrays: Mapping[str, Mapping[str, Array]],
    *,
    aliases: Mapping[str, Sequence[str]] | None = None,
    state: StateDocument | None = None,
    blobs: Mapping[str, tuple[str, bytes]] | None = None,
) -> Job:
    """A job whose atoms and slots are arrays; ``aliases`` are by atom."""

    def source(atom: str, slot: str, array: Array) -> SlotSource:
        def read(box: Box, out: Array) -> None:
            out[...] = array[slices(box)]

        return SlotSource(atom, slot, read)

    return Job(
        atoms=[
            AtomSpec(
                name,
                {slot: SlotSpec(dtype_of(array.dtype).name, array.shape) for slot, array in slots.items()},
                tuple((aliases or {}).get(name, ())),
            )
            for name, slots in arrays.items()
        ],
        sources=[
            source(name, slot, array) for name, slots in arrays.items() for slot, array in slots.items()
        ],
        state=state or StateDocument({}, {}, {}),
        blobs=dict(blobs or {}),
    )


def whole(job: Job, parts: int = 1) -> dict[tuple[str, str], Array]:
    """Every slot of a job, read in ``parts`` boxes along the first dim."""
    shapes = {(atom.name, name): slot for atom in job.atoms for name, slot in atom.slots.items()}
    found = {}
    for source in job.sources:
        spec = shapes[source.atom, source.slot]
        out = np.empty(spec.shape, dtype(spec.dtype).numpy)
        extent = spec.shape[0] if spec.shape else 1
        edges = sorted({extent * part // parts for part in range(parts + 1)}) if spec.shape else [0, 1]
        for low, high in pairwise(edges):
            box = (
                Box((low, *(0 for _ in spec.shape[1:])), (high - low, *spec.shape[1:]))
                if spec.shape
                else Box((), ())
            )
            piece = np.empty(box.shape, out.dtype)
            source.read(box, piece)
            out[slices(box)] = piece
        found[source.atom, source.slot] = out
    return found
