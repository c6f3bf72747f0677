"""Atoms in the making: what an importer found, slot by slot, until it becomes a job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.convert.contract.foreign import Lost
from ucpformat.convert.contract.job import SlotSource
from ucpformat.convert.contract.sources import AgreeingSources, CastSource, EqualSources, ReadBox, Whole
from ucpformat.convert.formats.deepspeed.flat_groups import Scalar, partition_source
from ucpformat.convert.formats.deepspeed.states import ModelStates
from ucpformat.convert.formats.deepspeed.zero import Placed
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype
from ucpformat.state_dict.keys.origins import SOURCE
from ucpformat.tensor_files.fields import refused
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue

__all__ = ["Draft"]

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
        placed: Placed | None = None,
        annotations: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Take a slot; ``placed`` is where the saving job had it."""
        layout, place = (None, None) if placed is None else placed
        self.slots.setdefault(atom, {})[slot] = SlotSpec(
            kind, shape, layout, annotations=annotations or {}, place=place
        )
        self.sources[atom, slot] = read

    def atoms(self) -> list[AtomSpec]:
        """What the writer declares."""
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
        """Where each slot's elements come from."""
        return [SlotSource(atom, slot, read) for (atom, slot), read in self.sources.items()]

    def add_copy(self, name: str, file: TorchFile, stored: StoredTensor) -> None:
        """Take a second file of a value, which must be equal; nothing where the atom is of another stage."""
        if (first := self.sources.get((name, "value"))) is not None:
            self.sources[name, "value"] = EqualSources(first, Whole(file, stored), f"{name}/value", file.name)

    def add_scalar(self, name: str, state: str, scalar: Scalar, file: TorchFile) -> None:
        """Take a state that is one number: a 0-d tensor of ``file``, or a number of Python's."""
        if isinstance(scalar, StoredTensor):
            self.add(name, state, scalar.dtype, (), Whole(file, scalar))
        else:
            if not -(2**63) <= scalar < 2**63 and type(scalar) is int:
                raise refused(f"state {state!r:.50} is an integer of more than 64 bits", file.name)
            kind = _SCALAR_DTYPES[type(scalar)]
            note: dict[str, JsonValue] = {SOURCE: {"number": type(scalar).__name__}}
            self.add(name, state, kind, (), _Constant(scalar), annotations=note)

    def derive_values(self, model: ModelStates) -> None:
        """Take for values that no file of ``model`` holds the optimizer's copies, rounded, or give the atoms up."""
        for name in sorted(model.derived):
            held = self.slots.get(name, {})
            if master := held.get("master"):
                kind = model.module[name].dtype
                read = CastSource(self.sources[name, "master"], dtype(master.dtype).numpy)
                self.add(name, "value", kind, master.shape, read)
                continue
            self.lost.append(name)
            for slot in self.slots.pop(name, {}):
                del self.sources[name, slot]

    def lost_atoms(self, absent: Sequence[str]) -> list[Lost]:
        """The losses that `lost` atoms are; ``absent`` are the layers' files that are not there."""
        why = (
            f"a stage trains it apart from what is tied, and its layer has no file ({', '.join(absent)}): one that is "
            "called through a function has none, and without ZeRO nothing else holds float32 weights; use ZeRO-1"
        )
        return [Lost(name, why) for name in self.lost]

    def add_frozen(self, models: Sequence[ModelStates], is_partitioned: bool) -> None:
        """Parameters that the optimizer does not own, and that lie outside the module's state dict."""
        first = models[0]
        for name, shape in first.frozen.items():
            if not is_partitioned and name in first.module:
                continue
            held = []
            for model in models:
                if name not in model.fragments:
                    raise refused(f"the frozen parameter {name!r} has a shape and no data", model.file.name)
                held.append((model.file, model.fragments[name]))
            read = partition_source(shape, held) if is_partitioned else Whole(*held[0])
            self.add(name, "value", held[0][1].dtype, shape, read)
            self.roles[name] = "frozen"

    def add_rest(self, model: ModelStates, is_partitioned: bool) -> None:
        """Buffers, frozen parameters of the state dict, and tied names."""
        first_of: dict[tuple[str, StoredTensor], str] = {}
        for name, held in model.module.items():
            owner = _owner(name, model)
            if math.prod(held.shape) and name not in model.buffers:
                owner = first_of.setdefault((model.home(name).name, held), owner)
            if name in self.lost or (name in self.slots and "value" in self.slots[name]):
                continue
            if owner != name and _is_same(name, owner, model):
                self.aliases.setdefault(owner, []).append(name)
            elif is_partitioned and name not in model.buffers and math.prod(held.shape) == 0:
                raise refused(
                    f"{name!r} is empty, and neither a parameter of a group nor frozen", model.file.name
                )
            else:
                if name in model.buffers or name not in self.slots:
                    self.roles[name] = "buffer" if name in model.buffers else "frozen"
                self.add(name, "value", held.dtype, held.shape, Whole(model.home(name), held))

    def check_tied(self, model: ModelStates) -> None:
        """Refuse a tied name whose owner was not found."""
        for alias, owner in model.shared.items():
            if _owner(alias, model) not in self.slots:
                raise refused(f"{alias!r} is tied to {owner!r}, which is not there", model.file.name)

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


def _owner(name: str, model: ModelStates) -> str:
    """The name that a tied parameter is kept under."""
    seen = {name}
    while name in model.shared and model.shared[name] not in seen:
        name = model.shared[name]
        seen.add(name)
    return name


def _is_same(name: str, owner: str, model: ModelStates) -> bool:
    """Whether two tensors of one file are one, or both were left out (ZeRO-3)."""
    one, other = model.module[name], model.module.get(owner)
    if other is None or model.home(name) is not model.home(owner):
        return False
    return one == other or (math.prod(one.shape) == 0 == math.prod(other.shape))
