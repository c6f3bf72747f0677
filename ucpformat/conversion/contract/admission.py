"""The one door for what importers describe: bounds and contents that hold for every foreign format.

What a job says of itself costs time and memory before anything is read: locations are listed by chunk, and names are
compared. So a job is looked at once, when it is planned, by the same rules whatever it came from; and elements whose
bytes no reader would accept are found as they are read, box by box.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.errors import error, naming
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.source_files import held_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.job import ReadBox
    from ucpformat.geometry import Box
    from ucpformat.writer import SlotSpec

__all__ = ["EXPANSION", "LEAST_BYTES", "admitted"]

EXPANSION: Final = 64
"""How many logical bytes a source may have for each byte of its files, unless its user says otherwise."""

LEAST_BYTES: Final = 256 << 20
"""What a source may have however small its files are."""

_NAME_BYTES: Final = 64
_LEAST_NAME_BYTES: Final = 16 << 20


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
