"""Conversion jobs: a foreign checkpoint, described and readable box by box, written as a universal one.

`ucpformat.conversion.engine` runs them; memory is bounded whatever the size of the model, and nothing is staged.

What a job says of itself costs time and memory before anything is read: locations are listed by chunk, and names are
compared. So a job is looked at once, when it is planned (`admitted`), by the same rules whatever it came from; and
elements whose bytes no reader would accept are found as they are read, box by box.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import error, naming
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype
from ucpformat.model.envelope import Extension
from ucpformat.model.state import StateDocument
from ucpformat.tensor_files.source_files import held_bytes
from ucpformat.writer import DEFAULT_CHUNK_BYTES, AtomSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.foreign import Lost
    from ucpformat.image_files import ImageSource
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.root import LogPosition
    from ucpformat.writer import SlotSpec

__all__ = [
    "EXPANSION",
    "JOURNAL",
    "LEAST_BYTES",
    "Job",
    "ReadBox",
    "SlotSource",
    "admitted",
    "refuse_unfinished",
]

JOURNAL: Final = ".ucp-export"
"""The file in a directory of which an export is not finished."""

EXPANSION: Final = 64
"""How many logical bytes a source may have for each byte of its files, unless its user says otherwise."""

LEAST_BYTES: Final = 256 << 20
"""What a source may have however small its files are."""

_NAME_BYTES: Final = 64
_LEAST_NAME_BYTES: Final = 16 << 20

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
        return sum(slot_bytes(slot) for atom in self.atoms for slot in atom.slots.values())


def refuse_unfinished(path: str | os.PathLike[str]) -> None:
    """Raise ``UCP-E-SOURCE`` where an export lies that was interrupted, or is under way."""
    if os.path.isfile(os.path.join(path, JOURNAL)):
        raise error(
            "UCP-E-SOURCE",
            "an export that was not finished lies here: finish it with --resume, or remove it",
            at=str(path),
        )


def admitted(job: Job, source: str, expand: int | None = None) -> Job:
    """Return ``job`` with elements checked as they are read; ``source`` is where its files lie.

    Raises:
        UcpError: ``UCP-E-LIMIT`` where the tensors have more bytes than ``expand``, which is `EXPANSION` times those of
            the files if left out, or the names of all parts more than 64 times those. As boxes are read,
            ``UCP-E-SOURCE`` for a ``bool`` whose byte is neither 0 nor 1.
    """
    _check_expansion(job, source, expand)
    return replace(job, sources=_checked_sources(job, source))


def _check_expansion(job: Job, source: str, expand: int | None) -> None:
    names = sum(len(atom.name) * (1 + len(atom.slots)) for atom in job.atoms) + sum(
        map(len, job.state.values)
    )
    if names > _LEAST_NAME_BYTES and names > _NAME_BYTES * stored_bytes(source):
        raise error("UCP-E-LIMIT", f"the names of its parts have {names} characters together", at=source)
    allowed = LEAST_BYTES if expand is None else expand
    if job.nbytes <= allowed:
        return
    stored = stored_bytes(source)
    if expand is None:
        allowed = max(allowed, EXPANSION * stored)
    if job.nbytes <= allowed:
        return
    name, nbytes = max(
        (
            (f"{atom.name}/{name}", slot_bytes(slot))
            for atom in job.atoms
            for name, slot in atom.slots.items()
        ),
        key=lambda entry: entry[1],
    )
    raise error(
        "UCP-E-LIMIT",
        f"the tensors have {job.nbytes} bytes, this one {nbytes}, and the files of the source {stored}: more than "
        f"{allowed} are not expanded unasked; allow it with --expand {-(-job.nbytes >> 30)}G",
        at=name,
    )


def slot_bytes(slot: SlotSpec) -> int:
    """Return logical bytes of a slot."""
    return math.prod(slot.shape) * dtype(slot.dtype).item_bytes


def stored_bytes(source: str) -> int:
    """Return the bytes of all files of a source that can be inspected, without holes; none where it is not local."""
    paths = [source]
    if os.path.isdir(source):
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names]
    nbytes = 0
    for path in paths:
        with suppress(OSError):
            nbytes += held_bytes(os.stat(path))
    return nbytes


def _checked_sources(job: Job, source: str) -> list[SlotSource]:
    kinds = {(atom.name, name): slot.dtype for atom in job.atoms for name, slot in atom.slots.items()}
    checked = []
    for one in job.sources:
        read = one.read
        if kinds[one.atom, one.slot] == "bool":
            read = _CheckedBools(f"{one.atom}/{one.slot}", read)
        checked.append(replace(one, read=_Named(source, read)))
    return checked


@dataclass(frozen=True, slots=True)
class _Named:
    """A slot whose errors name the source, since what is being written has a path as well."""

    source: str
    read: ReadBox

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` with a box."""
        with naming(self.source):
            self.read(box, out)

    def check(self, box: Box, kind: np.dtype[Any]) -> None:
        """Make the comparisons of a box of ``kind`` that is not read (`master_copies`), if there are any."""
        check = getattr(self.read, "check", None)
        if check is not None:
            with naming(self.source):
                check(box, kind)


@dataclass(frozen=True, slots=True)
class _CheckedBools:
    """A slot of type ``bool``, whose bytes have to be 0 or 1 (SPEC section 11.2)."""

    at: str
    read: ReadBox

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` with a box. Raises ``UCP-E-SOURCE`` for any other byte."""
        self.read(box, out)
        most = int(out.reshape(-1).view(np.uint8).max(initial=0))
        if most > 1:
            raise error(
                "UCP-E-SOURCE",
                f"a bool has the byte {most}, where 0 or 1 must be: the tensor is damaged, or of another type",
                at=self.at,
            )
