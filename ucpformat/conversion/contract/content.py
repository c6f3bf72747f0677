"""What an exporter is given: atoms, slots, values and blobs, wherever they come from.

A universal checkpoint and a job of an importer are the same here, so that one foreign format is written from another
without a checkpoint in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.geometry import Box
from ucpformat.model.dtype import DType, dtype
from ucpformat.storage.reading.stored_slot import slot_form
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.job import Job
    from ucpformat.geometry import BufferPlace, Layout
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.state import StateDocument
    from ucpformat.writer import AtomSpec, SlotSpec

__all__ = ["BLOCK_BYTES", "AtomContent", "Content", "SlotContent", "slot_blocks"]


class SlotContent:
    """One slot: what it is, and its elements box by box."""

    def __init__(
        self, name: str, spec: SlotSpec, read: Callable[[Box, NDArray[np.generic]], None], *, at: str
    ) -> None:
        self.name = name
        self.spec = spec
        self.dtype: DType = dtype(spec.dtype, at=at)
        self._read = read

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in elements."""
        return self.spec.shape

    @property
    def nbytes(self) -> int:
        """Logical bytes."""
        return math.prod(self.shape) * self.dtype.item_bytes

    @property
    def layout(self) -> Layout | None:
        """How the job that saved the slot held it, if that is known."""
        return self.spec.layout

    @property
    def place(self) -> BufferPlace | None:
        """Where that job had the tensor in its buffer, if the layout has a `Concat`."""
        return self.spec.place

    @property
    def annotations(self) -> Mapping[str, JsonValue]:
        """What the importer noted of its origin (`origins`)."""
        return self.spec.annotations

    def read_box(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, of the box's shape and the slot's numpy type. Thread-safe."""
        self._read(box, out)

    def read(self) -> NDArray[Any]:
        """Return the whole slot, as a new array: for small ones."""
        out = np.empty(self.shape, self.dtype.numpy)
        self._read(Box.whole(self.shape), out)
        return out


class AtomContent(Mapping[str, SlotContent]):
    """One atom: its slots by name, its other names, and its annotations."""

    def __init__(self, spec: AtomSpec, slots: Mapping[str, SlotContent]) -> None:
        self.name = spec.name
        self.aliases = spec.aliases
        self.annotations = spec.annotations
        self._slots = slots

    def __getitem__(self, slot: str) -> SlotContent:
        return self._slots[slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)


class Content(Mapping[str, AtomContent]):
    """Everything that is to be exported: atoms by name, in order of name."""

    def __init__(self, job: Job) -> None:
        self._job = job
        read = {(source.atom, source.slot): source.read for source in job.sources}
        self._atoms = {
            atom.name: AtomContent(
                atom,
                {
                    name: SlotContent(name, slot, read[atom.name, name], at=f"{atom.name}/{name}")
                    for name, slot in sorted(atom.slots.items())
                },
            )
            for atom in sorted(job.atoms, key=lambda atom: atom.name)
        }

    def __getitem__(self, name: str) -> AtomContent:
        return self._atoms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._atoms)

    def __len__(self) -> int:
        return len(self._atoms)

    @property
    def job(self) -> Job:
        """All of it as a job, for what makes another job of it (`map_choice`, `casting`)."""
        return self._job

    @property
    def state(self) -> StateDocument:
        """Values, optimizers and annotations, still encoded; blobs are in `blobs`."""
        return self._job.state

    @property
    def blobs(self) -> Mapping[str, tuple[str, bytes]]:
        """Opaque bytes by name, with their media types. Never execute or unpickle them."""
        return self._job.blobs

    @property
    def step(self) -> int | None:
        """The training step, if it is known."""
        return self._job.step


BLOCK_BYTES: Final = DEFAULT_CHUNK_BYTES
"""What an exporter holds of a tensor at a time: most often a chunk of a universal checkpoint, which is read once."""


def slot_blocks(
    dtype_name: str,
    shape: tuple[int, ...],
    read: Callable[[Box, NDArray[np.generic]], None],
    nbytes: int = BLOCK_BYTES,
) -> Iterator[tuple[Box, NDArray[Any]]]:
    """Yield boxes that tile a slot with their elements, each of at most ``nbytes`` or one element; none if empty.

    Each block is one run of the row-major tensor, in an array of its own of the slot's numpy type. Raises what
    ``read`` raises.
    """
    kind, grid = slot_form(dtype_name, shape, nbytes)
    for chunk in range(grid.count):
        box = grid.box_at(chunk)
        data = np.empty(box.shape, kind.numpy)
        read(box, data)
        yield box, data
