"""Which copy of weights that a checkpoint holds twice is written into a state dict: the module's or the optimizer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.contract.job import SlotSource
from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.state_dict.keys.origins import SOURCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.job import Job, ReadBox
    from ucpformat.geometry import Box
    from ucpformat.writer import AtomSpec

__all__ = ["with_one_copy"]

_CHOICES: Final = ("value", "master")
_OUTSIDE: Final = ("deepspeed", "ds-universal", "megatron", "megatron-classic")
"""Formats of frameworks that keep master copies beside torch's optimizer, where no stock job asks for them."""

_SLOT: Final = "slot"


def with_one_copy(job: Job, settings: Mapping[str, str]) -> tuple[Job, list[Lost]]:
    """Return ``job`` with the optimizer's copies of weights instead of the rounded ones, and what that leaves out.

    A copy is ``master`` of higher precision than ``value``. As weights of a state dict it serves every job that loads
    it: one of its data type gets it to the bit, one of the lower rounds it as the saving job did. The setting ``slot``
    says whether this is done. The values that are left out are compared with the copies all the same, as far as their
    importer does so: files of two saves are found.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for another setting.
    """
    wanted = settings.get(_SLOT) or _usual(job)
    if wanted not in _CHOICES:
        raise error("UCP-E-MISMATCH", f"{wanted!r:.40} is none of {', '.join(_CHOICES)}", at=_SLOT)
    kinds = {
        atom.name: dtype(atom.slots["value"].dtype).numpy
        for atom in job.atoms
        if wanted == "master" and _is_doubled(atom)
    }
    if not kinds:
        return job, []
    read = {(source.atom, source.slot): source.read for source in job.sources if source.atom in kinds}
    sources = [
        SlotSource(
            source.atom,
            "value",
            _Compared(read[source.atom, "master"], source.read, kinds[source.atom]),
        )
        if source.atom in kinds and source.slot == "value"
        else source
        for source in job.sources
        if source.atom not in kinds or source.slot != "master"
    ]
    atoms = [_with_master(atom) if atom.name in kinds else atom for atom in job.atoms]
    why = "the optimizer's copy of higher precision is written instead; set slot=value for the rounded one"
    lost = [Lost(f"{name}/value", why, matters=False) for name in kinds]
    return replace(job, atoms=atoms, sources=sources), lost


def _usual(job: Job) -> str:
    source = job.state.annotations.get(SOURCE)
    kind = source.get("kind") if isinstance(source, dict) else None
    return "master" if kind in _OUTSIDE else "value"


def _is_doubled(atom: AtomSpec) -> bool:
    value, master = atom.slots.get("value"), atom.slots.get("master")
    if value is None or master is None or value.shape != master.shape:
        return False
    return dtype(master.dtype).item_bytes > dtype(value.dtype).item_bytes


def _with_master(atom: AtomSpec) -> AtomSpec:
    """Return the atom whose value is its master; it belongs where the value did."""
    slots = {name: slot for name, slot in atom.slots.items() if name != "master"}
    slots["value"] = replace(atom.slots["master"], annotations=atom.slots["value"].annotations)
    return replace(atom, slots=slots)


@dataclass(frozen=True, slots=True)
class _Compared:
    """Reads a box of the optimizer's copy, and has its importer compare it with the module's, which is not written."""

    master: ReadBox
    value: ReadBox
    kind: np.dtype[Any]
    """The data type of the module's."""

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` with a box."""
        self.master(box, out)
        check = getattr(self.value, "check", None)
        if check is not None:
            check(box, self.kind)
