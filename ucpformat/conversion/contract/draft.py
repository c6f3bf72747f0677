"""Atoms in the making: what an importer found, slot by slot, until it becomes a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from ucpformat.conversion.contract.job import ReadBox, SlotSource
from ucpformat.conversion.contract.sources import AgreeingSources, CastSource, EqualSources, Whole
from ucpformat.geometry import Box, BufferPlace, Layout
from ucpformat.model.dtype import dtype
from ucpformat.state_dict.keys.origins import SOURCE
from ucpformat.tensor_files.fields import refused
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue

__all__ = ["Draft", "joined_drafts"]

_Draft = TypeVar("_Draft", bound="Draft")
_SCALAR_DTYPES: Final = {int: "int64", float: "float64"}


@dataclass(slots=True)
class Draft:
    """Atoms in the making: slots and sources by atom and slot, aliases by atom.

    ``lost`` are atoms whose values no file holds, and which are left out.
    """

    slots: dict[str, dict[str, SlotSpec]] = field(default_factory=dict)
    sources: dict[tuple[str, str], ReadBox] = field(default_factory=dict)
    aliases: dict[str, list[str]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def add(
        self,
        atom: str,
        slot: str,
        kind: str,
        shape: tuple[int, ...],
        read: ReadBox,
        *,
        placed: tuple[Layout, BufferPlace] | None = None,
        annotations: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Take a slot; ``placed`` is where the saving job had it."""
        layout, place = (None, None) if placed is None else placed
        self.slots.setdefault(atom, {})[slot] = SlotSpec(
            kind, shape, layout, annotations=annotations or {}, place=place
        )
        self.sources[atom, slot] = read

    def atoms(self) -> list[AtomSpec]:
        """Return what the writer declares."""
        return [
            AtomSpec(
                name,
                slots,
                tuple(sorted(self.aliases.get(name, ()))),
                {SOURCE: {"role": self.roles[name]}} if name in self.roles else {},
            )
            for name, slots in self.slots.items()
        ]

    def slot_sources(self) -> list[SlotSource]:
        """Return where each slot's elements come from."""
        return [SlotSource(atom, slot, read) for (atom, slot), read in self.sources.items()]

    def add_copy(self, name: str, file: TorchFile, stored: StoredTensor) -> None:
        """Take a second file of a value, which must be equal; nothing where the atom is of another stage."""
        if (first := self.sources.get((name, "value"))) is not None:
            self.sources[name, "value"] = EqualSources(first, Whole(file, stored), f"{name}/value", file.name)

    def add_scalar(self, name: str, state: str, scalar: float | StoredTensor, file: TorchFile) -> None:
        """Take a state that is one number: a 0-d tensor of ``file``, or a number of Python's."""
        if isinstance(scalar, StoredTensor):
            self.add(name, state, scalar.dtype, (), Whole(file, scalar))
        else:
            if not -(2**63) <= scalar < 2**63 and type(scalar) is int:
                raise refused(f"state {state!r:.50} is an integer of more than 64 bits", file.name)
            kind = _SCALAR_DTYPES[type(scalar)]
            note: dict[str, JsonValue] = {SOURCE: {"number": type(scalar).__name__}}
            self.add(name, state, kind, (), _Constant(scalar), annotations=note)

    def check_masters(self, at: str) -> None:
        """Compare values with the optimizer's copies, rounded, whose names order and shapes have told (``at``)."""
        for name, held in self.slots.items():
            if "master" not in held or "value" not in held or held["value"].shape != held["master"].shape:
                continue
            kind = dtype(held["master"].dtype).numpy
            master = CastSource(self.sources[name, "master"], kind)
            self.sources[name, "value"] = AgreeingSources(self.sources[name, "value"], master, name, at)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A 0-d slot with a number."""

    number: int | float

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out``."""
        out[...] = self.number


def joined_drafts(drafts: Sequence[tuple[_Draft, str]]) -> _Draft:
    """Return one draft of those of several files, which are named; what several hold must be equal, bit by bit.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where they have other shapes or data types of one slot.
    """
    joined = type(drafts[0][0])()
    for draft, at in drafts:
        for (atom, slot), source in draft.sources.items():
            spec = draft.slots[atom][slot]
            known = joined.sources.get((atom, slot))
            if known is None:
                joined.add(atom, slot, spec.dtype, spec.shape, source, annotations=spec.annotations)
                continue
            other = joined.slots[atom][slot]
            if (other.dtype, other.shape) != (spec.dtype, spec.shape):
                raise refused(f"{atom!r} has another shape or data type elsewhere", at)
            joined.sources[atom, slot] = EqualSources(known, source, f"{atom}/{slot}", at)
        for atom, names in draft.aliases.items():
            held = joined.aliases.setdefault(atom, [])
            held += [name for name in names if name not in held]
        joined.roles |= draft.roles
        joined.lost += [name for name in draft.lost if name not in joined.lost]
    return joined
