"""Universal checkpoint to DCP (SPEC appendix A.1): the original keys where they are known, the usual ones elsewhere.

Needs torch, to write what stock ``torch.distributed.checkpoint.load`` reads.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.contract.foreign import PICKLE, ExportPlan, Lost
from ucpformat.conversion.contract.master_copies import with_one_copy
from ucpformat.conversion.dcp_files.files_out import ExportTensor, dcp_files
from ucpformat.conversion.dcp_files.items import KeyPath
from ucpformat.conversion.dcp_files.tensors import SlotReader
from ucpformat.distributed.values import OPAQUE_MEDIA
from ucpformat.errors import error
from ucpformat.state_dict.keys.groups import expand_groups
from ucpformat.state_dict.keys.origins import alias_paths, group_origin, key_path, slot_path, value_paths
from ucpformat.tensor_files.tagged import decode, foreign_type

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import AtomContent, SlotContent
    from ucpformat.jsonio import JsonValue

__all__ = ["export_dcp"]


def export_dcp(
    content: Content, path: str | os.PathLike[str], *, settings: Mapping[str, str] | None = None
) -> ExportPlan:
    """Plan a DCP directory; nothing is lost in it but values of other software's types.

    Of weights that are there twice one copy is written (`with_one_copy`).

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for settings; ``UCP-E-EXISTS`` for a directory that is not empty, ``UCP-E-DTYPE``
            for types that torch lacks, ``UCP-E-NAME`` where two things would get one key, and what reading raises.
    """
    job, unmissed = with_one_copy(content.job, settings or {})
    content = Content(job)
    paths: dict[str, KeyPath] = {}

    def claim(steps: KeyPath) -> str:
        key = ".".join(map(str, steps))
        if key in paths:
            raise error("UCP-E-NAME", f"two parts of the checkpoint would have the DCP key {key!r}")
        paths[key] = steps
        return key

    tensors: dict[str, ExportTensor] = {}
    renamed: dict[str, str] = {}
    for atom in content.values():
        for steps, slot in _slots(atom):
            key = claim(steps)
            tensors[key] = ExportTensor(slot.dtype.name, slot.shape, SlotReader(slot))
            renamed.setdefault(f"{atom.name}/{slot.name}", key)
    objects: dict[str, object] = {}
    dropped: list[Lost] = list(unmissed)
    nested = value_paths(content.state)
    for name, value in content.state.values.items():
        decoded = decode(value, at=f"values/{name}")
        foreign = foreign_type(decoded)
        if foreign is None:
            objects[claim(key_path(nested.get(name, (name,))))] = decoded
        else:
            dropped.append(Lost(f"values/{name}", f"torch has no class for {foreign}"))
    for steps, value in _groups(content):
        key = claim(steps)
        objects[key] = decode(value, at=key)
    stored: dict[str, bytes] = {}
    for name, (media_type, data) in content.blobs.items():
        key = claim(key_path(nested.get(name, (name,))))
        if media_type == PICKLE:
            stored[key] = data
        else:
            objects[key] = io.BytesIO(data) if media_type == OPAQUE_MEDIA else data
    files = dcp_files(tensors, objects, paths, stored=stored)
    return ExportPlan(len(objects) + len(stored), files=files, renamed=renamed, dropped=dropped)


def _slots(atom: AtomContent) -> Iterator[tuple[KeyPath, SlotContent]]:
    """Yield the slots of an atom with their DCP paths; a tied value under each of its names."""
    for name, slot in atom.items():
        yield key_path(slot_path(atom.name, name, slot.annotations)), slot
    for path in alias_paths(atom) if "value" in atom else ():
        yield key_path(path), atom["value"]


def _groups(content: Content) -> Iterator[tuple[KeyPath, JsonValue]]:
    """Yield parameter groups with their DCP paths, still encoded."""
    for name, optimizer in content.state.optimizers.items():
        yield from expand_groups(optimizer, group_origin(content.state, name)).values()
