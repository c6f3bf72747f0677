"""The weights of a job alone, for formats that hold nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.frameworks.converting.job import Job, SlotSource

if TYPE_CHECKING:
    from ucpformat.frameworks.converting.job import ReadBox

__all__ = ["weights_alone"]

_CHOICES: Final = ("value", "master")


def weights_alone(job: Job, settings: Mapping[str, str]) -> tuple[Job, dict[str, str]]:
    """``job`` with one slot ``value`` for each atom that has weights, and what is left of it with the reason.

    The setting ``slot`` says which one: ``value``, or ``master``, the copy of higher precision, where there is one.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for another setting.
    """
    wanted = settings.get("slot") or "value"
    if wanted not in _CHOICES:
        raise error("UCP-E-MISMATCH", f"{wanted!r:.40} is none of {', '.join(_CHOICES)}", at="slot")
    chosen: dict[str, str] = {}
    left: dict[str, str] = {}
    for atom in job.atoms:
        name = wanted if wanted in atom.slots else "value"
        for slot in atom.slots:
            if slot == name:
                chosen[atom.name] = slot
            elif slot in _CHOICES:
                left[f"{atom.name}/{slot}"] = f"the slot {name!r} is written in its place"
            else:
                left[f"{atom.name}/{slot}"] = "only weights have a place there"
    read: dict[tuple[str, str], ReadBox] = {(source.atom, source.slot): source.read for source in job.sources}
    atoms = [
        replace(atom, slots={"value": atom.slots[chosen[atom.name]]})
        for atom in job.atoms
        if atom.name in chosen
    ]
    sources = [SlotSource(name, "value", read[name, slot]) for name, slot in chosen.items()]
    return replace(job, atoms=atoms, sources=sources), left
