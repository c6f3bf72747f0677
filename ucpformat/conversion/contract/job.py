"""Conversion jobs: a foreign checkpoint, described and readable box by box, written as a universal one.

`ucpformat.conversion.engine` runs them; memory is bounded whatever the size of the model, and nothing is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype
from ucpformat.model.envelope import Extension
from ucpformat.model.state import StateDocument
from ucpformat.writer import DEFAULT_CHUNK_BYTES, AtomSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.foreign import Lost
    from ucpformat.image_files import ImageSource
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.root import LogPosition

__all__ = ["Job", "ReadBox", "SlotSource"]

ReadBox = Callable[[Box, "NDArray[np.generic]"], None]
"""Fills a contiguous array with the elements of a box."""


@dataclass(frozen=True, slots=True)
class SlotSource:
    """Where the elements of a slot come from: ``read`` fills a contiguous array with a box. Thread-safe.

    ``content`` is the content digest that its elements are known to have, where one is recorded.
    """

    atom: str
    slot: str
    read: ReadBox
    content: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a checkpoint is to hold. ``blobs``: name to media type and bytes; ``images``: process images.

    ``dropped`` names what the source has and the job cannot carry: it is run only where each that matters is allowed
    to be lost.
    """

    atoms: Sequence[AtomSpec]
    sources: Sequence[SlotSource]
    state: StateDocument
    blobs: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    images: Mapping[str, ImageSource] = field(default_factory=dict)
    step: int | None = None
    log: LogPosition | None = None
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
