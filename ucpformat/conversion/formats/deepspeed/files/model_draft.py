"""What the files of a DeepSpeed rank say of atoms: values, frozen parameters, buffers and tied names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ucpformat.conversion.contract.draft import Draft
from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.contract.sources import CastSource, Whole
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates
from ucpformat.conversion.formats.deepspeed.zero.flat_groups import partition_source
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.fields import refused
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = ["ModelDraft"]


@dataclass(slots=True)
class ModelDraft(Draft):
    """A draft that takes what DeepSpeed's model files hold."""

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
        """Return the losses that `lost` atoms are; ``absent`` are the layers' files that are not there."""
        why = (
            f"a stage trains it apart from what is tied, and its layer has no file ({', '.join(absent)}): one that is "
            "called through a function has none, and without ZeRO nothing else holds float32 weights; use ZeRO-1"
        )
        return [Lost(name, why) for name in self.lost]

    def add_frozen(self, models: Sequence[ModelStates], is_partitioned: bool) -> None:
        """Add parameters that the optimizer does not own, and that lie outside the module's state dict."""
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
        """Add buffers, frozen parameters of the state dict, and tied names."""
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


def _owner(name: str, model: ModelStates) -> str:
    """Return the name that a tied parameter is kept under."""
    seen = {name}
    while name in model.shared and model.shared[name] not in seen:
        name = model.shared[name]
        seen.add(name)
    return name


def _is_same(name: str, owner: str, model: ModelStates) -> bool:
    """Return whether two tensors of one file are one, or both were left out (ZeRO-3)."""
    one, other = model.module[name], model.module.get(owner)
    if other is None or model.home(name) is not model.home(owner):
        return False
    return one == other or (math.prod(one.shape) == 0 == math.prod(other.shape))
