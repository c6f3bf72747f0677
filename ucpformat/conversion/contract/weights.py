"""The weights of a job alone: for formats that hold nothing else, and where nothing else is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.errors import error

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import ReadBox

__all__ = ["Weights", "beside_weights", "weights_alone", "weights_of"]

Weights = Literal["value", "master"]
"""Which slot of an atom is its weight, where weights alone are carried."""

_CHOICES: Final = ("value", "master")


def weights_alone(job: Job, settings: Mapping[str, str]) -> tuple[Job, dict[str, str]]:
    """Return ``job`` with one slot ``value`` for each atom that has weights, and what is left of it with the reason.

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
                left[f"{atom.name}/{slot}"] = f"the slot {name!r} is written instead"
            else:
                left[f"{atom.name}/{slot}"] = "it stores only weights"
    read: dict[tuple[str, str], ReadBox] = {(source.atom, source.slot): source.read for source in job.sources}
    atoms = [
        replace(atom, slots={"value": atom.slots[chosen[atom.name]]})
        for atom in job.atoms
        if atom.name in chosen
    ]
    sources = [SlotSource(name, "value", read[name, slot]) for name, slot in chosen.items()]
    return replace(job, atoms=atoms, sources=sources), left


def beside_weights(lost: Sequence[Lost], job: Job, slot: Weights = "value") -> list[Lost]:
    """Return those of ``lost`` that are no weights: values, optimizers, blobs, and slots of atoms other than ``slot``.

    Where a master copy is the weight, its atom's value is none. Whatever else a source calls its parts may be a weight.
    """
    atoms = {atom.name: atom.slots for atom in job.atoms}

    def is_beside(loss: Lost) -> bool:
        if loss.what.partition("/")[0] in ("values", "optimizers", "blobs"):
            return True
        name, _, lost_slot = loss.what.rpartition("/")
        slots = atoms.get(name)
        return slots is not None and lost_slot != (slot if slot in slots else "value")

    return [loss for loss in lost if is_beside(loss)]


def weights_of(job: Job, slot: Weights) -> tuple[Job, Sequence[Lost]]:
    """Return the weights of a job, without states of optimizers and values, and what was left out.

    Blobs, and values that say something about weights, stay, for destinations that can hold them. With the slot
    ``master`` the copies of higher precision stay beside the weights, for an exporter that chooses (`weights_alone`).
    """
    why = "--weights-only"
    wanted = ("value", slot)
    lost = [
        Lost(f"{atom.name}/{name}", why) for atom in job.atoms for name in atom.slots if name not in wanted
    ]
    atoms = [
        replace(atom, slots=slots, aliases=atom.aliases if "value" in slots else ())
        for atom in job.atoms
        if (slots := {name: spec for name, spec in atom.slots.items() if name in wanted})
    ]
    values = {name: value for name, value in job.state.values.items() if name.startswith(_OF_WEIGHTS)}
    lost += [Lost(f"values/{name}", why) for name in job.state.values if name not in values]
    lost += [Lost(f"optimizers/{name}", why) for name in job.state.optimizers]
    unmissed = beside_weights(job.dropped, job, slot)
    lost += unmissed
    kept = {(atom.name, name) for atom in atoms for name in atom.slots}
    return (
        replace(
            job,
            atoms=atoms,
            sources=[source for source in job.sources if (source.atom, source.slot) in kept],
            state=replace(job.state, values=values, optimizers={}),
            dropped=[loss for loss in job.dropped if loss not in unmissed],
        ),
        lost,
    )


_OF_WEIGHTS: Final = "safetensors."
"""How names of values begin that an importer of safetensors has put beside weights."""
