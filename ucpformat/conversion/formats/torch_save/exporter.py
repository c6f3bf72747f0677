"""Universal checkpoint to one file of ``torch.save``: the nested state dict that it came from, or would be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.conversion.contract.content import Content, slot_blocks
from ucpformat.conversion.contract.foreign import PICKLE, ExportPlan, Lost
from ucpformat.conversion.contract.master_copies import with_one_copy
from ucpformat.conversion.formats.torch_save.leaves import NUMBERED
from ucpformat.conversion.formats.torch_save.numbering import PARAMS, STATE
from ucpformat.errors import error
from ucpformat.state_dict.keys.groups import expand_groups
from ucpformat.state_dict.keys.origins import SOURCE, alias_paths, group_origin, slot_path, value_paths
from ucpformat.state_dict.keys.paths import NumberKey, StatePath, build, dotted
from ucpformat.tensor_files.out_files import OutFiles
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES
from ucpformat.tensor_files.tagged import decode, foreign_type
from ucpformat.tensor_files.torch_archive_writer import OutTensor, archive_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.content import SlotContent

__all__ = ["export_torch_save"]

_TYPES: Final = {zarr for zarr, _ in TORCH_DTYPES.values()}


def export_torch_save(
    content: Content,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str] | None = None,
) -> ExportPlan:
    """Plan the file; ``torch.load(path, weights_only=True)`` reads it.

    Optimizers that numbered their parameters do so again, by their groups; with the setting ``numbered`` all do.
    Of weights that are there twice one copy is written (`with_one_copy`).

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for settings, ``UCP-E-DTYPE`` for types that torch lacks, ``UCP-E-NAME`` where two
            things would lie in one place.
    """
    job, unmissed = with_one_copy(content.job, settings or {})
    content = Content(job)
    numbers = _numbers(content, settings or {})
    leaves: dict[StatePath, object] = {}
    renamed: dict[str, str] = {}

    def put(place: StatePath, leaf: object) -> None:
        if leaves.setdefault(place, leaf) is not leaf:
            raise error("UCP-E-NAME", f"two parts of the checkpoint would lie at {dotted(place)!r:.200}")

    for atom in content.values():
        for name, slot in atom.items():
            if slot.dtype.name not in _TYPES:
                raise error("UCP-E-DTYPE", f"torch has no {slot.dtype.name}", at=f"{atom.name}/{name}")
            place = _numbered_path(slot_path(atom.name, name, slot.annotations), atom.name, numbers)
            tensor = OutTensor(slot.dtype.name, slot.shape, _Blocks(slot))
            put(place, tensor)
            renamed[f"{atom.name}/{name}"] = dotted(place)
            for alias in alias_paths(atom) if name == "value" else ():
                put(alias, tensor)  # the same object: it stays tied
    nested = value_paths(content.state)
    dropped = list(unmissed)
    for name, value in content.state.values.items():
        decoded = decode(value, at=name)
        foreign = foreign_type(decoded)
        if foreign is None:
            put(nested.get(name, (name,)), decoded)
        else:
            dropped.append(Lost(f"values/{name}", f"torch has no class for {foreign}"))
    for name, optimizer in content.state.optimizers.items():
        for steps, value in expand_groups(optimizer, group_origin(content.state, name)).values():
            leaf = decode(value, at=dotted(steps))
            if steps[-1] == PARAMS and steps[: len(steps) - 3] in numbers and isinstance(leaf, list):
                leaf = [numbers[steps[: len(steps) - 3]][atom] for atom in leaf]
            put(steps, leaf)
    for name, (media_type, data) in content.blobs.items():
        if media_type == PICKLE:
            dropped.append(Lost(f"blobs/{name}", "an object that is not plain data has no place in the file"))
        else:
            put(nested.get(name, (name,)), data)
    tree = build(leaves)

    file = archive_file(Path(path).name, tree)
    count = sum(not isinstance(leaf, OutTensor) for leaf in leaves.values())
    return ExportPlan(count, files=OutFiles([file], is_single=True), renamed=renamed, dropped=dropped)


def _numbers(content: Content, settings: Mapping[str, str]) -> dict[StatePath, dict[str, int]]:
    """Return the parameter numbers of optimizers that have them, by path.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` where states that are no tensors would have the numbers of other parameters.
    """
    asked = settings.get("numbered") or "false"
    if asked not in ("true", "false"):
        raise error("UCP-E-MISMATCH", f"{asked!r:.40} is none of true, false", at="numbered")
    source = content.state.annotations.get(SOURCE)
    kept = source.get(NUMBERED) if isinstance(source, dict) else None
    noted = kept if isinstance(kept, dict) else {}
    numbers: dict[StatePath, dict[str, int]] = {}
    for name, optimizer in content.state.optimizers.items():
        if name not in noted and asked == "false":
            continue
        path = group_origin(content.state, name).path
        atoms = [atom for group in optimizer.groups for atom in group.atoms]
        numbers[path] = {atom: number for number, atom in enumerate(atoms)}
        has_objects = any(
            place[: len(path) + 1] == (*path, STATE) for place in value_paths(content.state).values()
        )
        if has_objects and noted.get(name) != atoms:
            raise error(
                "UCP-E-MISMATCH", "it has states that are no tensors, and parameters are missing", at=name
            )
    return numbers


def _numbered_path(path: StatePath, atom: str, numbers: Mapping[StatePath, Mapping[str, int]]) -> StatePath:
    for optimizer, listed in numbers.items():
        depth = len(optimizer)
        if path[: depth + 1] == (*optimizer, STATE) and len(path) > depth + 2 and atom in listed:
            return (*path[: depth + 1], NumberKey(listed[atom]), *path[depth + 2 :])
    return path


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A slot as its bytes in order, a block at a time."""

    slot: SlotContent

    def __call__(self) -> Iterator[NDArray[np.uint8]]:
        for _, data in slot_blocks(self.slot.dtype.name, self.slot.shape, self.slot.read_box):
            yield data.reshape(-1).view(np.uint8)
