"""Jobs in another floating-point type, cast box by box as sources are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.errors import error
from ucpformat.model.dtype import DTYPES, DType, dtype
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.job import ReadBox
    from ucpformat.geometry import Box

__all__ = ["CAST_TARGETS", "cast_job"]

CAST_TARGETS: Final = tuple(
    name
    for name, entry in DTYPES.items()
    # A type that has no infinity, no sign or no zero has no rounding that everybody expects.
    if entry.kind == "float" and name not in ("float8_e8m0fnu", "float4_e2m1fn")
)
"""What floating-point elements may be cast to."""


def cast_job(job: Job, target: str) -> tuple[Job, list[str]]:
    """Return ``job`` with every slot of a floating-point type in the type ``target``, and each ``atom/slot`` cast.

    Rounded to nearest, ties to even, from float32: float64 goes by way of it. Integers, booleans and complex numbers
    stay as they are, and so do 0-d slots, which count steps.

    Raises:
        UnsupportedError: ``UCP-E-DTYPE`` for a target that is none of `CAST_TARGETS`.
        MismatchError: ``UCP-E-INEXACT``, as a box is read, where a finite number leaves the range of the target.
    """
    if target not in CAST_TARGETS:
        raise error(
            "UCP-E-DTYPE", f"nothing is cast to {target!r:.40}; choose one of {', '.join(CAST_TARGETS)}"
        )
    wanted = dtype(target)
    cast: dict[tuple[str, str], DType] = {}
    atoms = []
    for atom in job.atoms:
        slots = {}
        for name, slot in atom.slots.items():
            held = dtype(slot.dtype)
            if held.kind == "float" and held.bits > 4 and held != wanted and slot.shape:
                cast[atom.name, name] = held
                slot = SlotSpec(
                    target, slot.shape, slot.layout, slot.compressor, slot.annotations, slot.place
                )
            slots[name] = slot
        atoms.append(AtomSpec(atom.name, slots, atom.aliases, atom.annotations))
    sources = [
        SlotSource(
            source.atom,
            source.slot,
            _Cast(f"{source.atom}/{source.slot}", source.read, cast[source.atom, source.slot], wanted),
        )
        if (source.atom, source.slot) in cast
        else source
        for source in job.sources
    ]
    return replace(job, atoms=atoms, sources=sources), [f"{atom}/{slot}" for atom, slot in cast]


@dataclass(frozen=True, slots=True)
class _Cast:
    """A slot read in the type that it has, given in another."""

    at: str
    read: ReadBox
    held: DType
    wanted: DType

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` with a box."""
        data = np.empty(box.shape, self.held.numpy)
        self.read(box, data)
        with np.errstate(over="ignore", invalid="ignore"):
            wide = data if self.wanted.name == "float64" else data.astype(np.float32)
            out[...] = wide.astype(self.wanted.numpy)
            lost = np.isfinite(data.astype(np.float64)) & ~np.isfinite(out.astype(np.float64))
        if lost.any():
            raise error(
                "UCP-E-INEXACT",
                f"{int(lost.sum())} finite numbers leave the range of {self.wanted.name}; cast to a wider type",
                at=self.at,
            )
