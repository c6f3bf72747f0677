"""Universal checkpoint to ``torch_dist``, which stock ``megatron.core.dist_checkpointing.load`` reads.

Needs torch, not Megatron. ``metadata.json``, by which Megatron knows a complete checkpoint, is written last.
"""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Final

from ucpformat.conversion.contract.foreign import PICKLE, ExportPlan, Lost
from ucpformat.conversion.contract.map_choice import apply_maps
from ucpformat.conversion.dcp_files.files_out import ExportTensor, dcp_files
from ucpformat.conversion.dcp_files.tensors import SlotReader
from ucpformat.conversion.formats.megatron.distributed_optimizer import (
    OPTIMIZER_ENTRY,
    DistributedOptimizer,
    content_metadata,
    distributed_optimizer,
    is_own,
)
from ucpformat.conversion.formats.megatron.enums import EnumMember, NamingPickle, is_enum
from ucpformat.conversion.formats.megatron.parameter_groups import STEP
from ucpformat.conversion.formats.megatron.torch_dist import (
    COMMON,
    CONFIG,
    CONFIGURATION,
    MASTER,
    NAMESPACE,
    is_sharded_object,
    state_key,
)
from ucpformat.errors import error
from ucpformat.model import values
from ucpformat.state_dict.keys.groups import expand_groups
from ucpformat.state_dict.keys.origins import SOURCE, group_origin, key_path, slot_path
from ucpformat.tensor_files.out_files import OutFile, OutFiles, text_file
from ucpformat.tensor_files.revive import revive
from ucpformat.tensor_files.tagged import RESTORE, foreign_type

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import AtomContent, Content, SlotContent
    from ucpformat.jsonio import JsonValue

__all__ = ["GROUPS", "export_torch_dist"]

_EXPERTS: Final = ("apart", "together")
GROUPS: Final = "ucp_param_groups"
"""Where parameter groups of other frameworks go in the common state, which Megatron leaves alone."""


def export_torch_dist(
    content: Content,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str] | None = None,
) -> ExportPlan:
    """Plan a ``torch_dist`` directory; nothing is lost in it but what an atom map of ``settings`` leaves out.

    What came from ``torch_dist`` gets its keys back; other atoms are values under their names, states are under
    ``optimizer.state.<state>.<name>`` and groups where Megatron looks for them, as ``fully_reshardable`` has them. An
    optimizer that is none of Megatron's is carried under `GROUPS`, which the plan says with the reason.

    Raises:
        UcpError: ``UCP-E-EXISTS`` for a directory that is not empty, ``UCP-E-DTYPE`` and ``UCP-E-OBJECT`` for what
            torch or Megatron's common state cannot hold, ``UCP-E-NAME`` where two things would get one key, and
            what reading raises.
    """
    unmapped: list[str] = []
    if settings:
        job, unmapped = apply_maps(content.job, settings)
        content = type(content)(job)
    tensors: dict[str, ExportTensor] = {}
    renamed: dict[str, str] = {}
    own = is_own(content)
    made = None if own or not content.state.optimizers else _optimizer(content, settings or {})
    for atom in content.values():
        names = ((state_key(name, "value"), atom["value"]) for name in atom.aliases if "value" in atom)
        slots = _slots(atom, made, own=own)
        for key, slot in (*slots, *names):
            if key in tensors:
                raise error("UCP-E-NAME", f"two parts of the checkpoint would have the key {key!r}")
            tensors[key] = ExportTensor(slot.dtype.name, slot.shape, SlotReader(slot))
            renamed.setdefault(f"{atom.name}/{slot.name}", key)
    objects: dict[str, object] = {}
    stored: dict[str, bytes] = {}
    common: dict[str, object] = {}
    dropped = [Lost(what, "the atom map says so") for what in unmapped]
    for name, value in content.state.values.items():
        decoded = values.decode(value, at=name, restore=RESTORE)
        foreign = None if _names_classes(decoded) else foreign_type(decoded)
        if foreign is not None:
            dropped.append(Lost(f"values/{name}", f"torch has no class for {foreign}"))
        elif is_sharded_object(name) and _names_classes(decoded):
            stored[name] = _saved(_revived(decoded, name))
        elif is_sharded_object(name):
            objects[name] = decoded
        else:
            common[name] = _revived(decoded, name)
    place = OPTIMIZER_ENTRY if isinstance(made, DistributedOptimizer) else f"{GROUPS}: {made}"
    if made is not None:
        renamed |= {f"optimizers/{name}": f"{COMMON}#{place}" for name in content.state.optimizers}
    if isinstance(made, DistributedOptimizer):
        common[OPTIMIZER_ENTRY] = made.entry
        common.setdefault("content_metadata", content_metadata(content))
    elif made is not None:
        common[GROUPS] = _groups(content)
    if content.step is not None:
        common.setdefault("iteration", content.step)
    for name, (media_type, data) in content.blobs.items():
        if media_type == PICKLE and is_sharded_object(name):
            stored[name] = data
        else:
            common[name] = data
    dcp = dcp_files(tensors, objects, {}, stored=stored)
    last = [
        OutFile(COMMON, 0, partial(_write_common, common)),
        text_file(CONFIG, json.dumps(dict(CONFIGURATION))),
    ]
    files = OutFiles(dcp.parts, lambda notes: [*dcp.closing(notes), *last])
    return ExportPlan(len(objects) + len(common) + len(stored), files=files, renamed=renamed, dropped=dropped)


def _optimizer(content: Content, settings: Mapping[str, str]) -> DistributedOptimizer | str:
    chained = settings.get("experts", "apart")
    if chained not in _EXPERTS:
        raise error(
            "UCP-E-PATTERN", f"experts is one of {', '.join(_EXPERTS)}, not {chained!r:.40}", at="experts"
        )
    return distributed_optimizer(
        content,
        lambda value, key: _revived(values.decode(value, at=key, restore=RESTORE), key),
        chained=chained == "apart",
    )


def _slots(
    atom: AtomContent, made: DistributedOptimizer | str | None, *, own: bool
) -> Iterator[tuple[str, SlotContent]]:
    """Yield the tensors of an atom by key: Megatron counts steps in its groups, wherever they come from."""
    states = made.states.get(atom.name, {}) if isinstance(made, DistributedOptimizer) else {}
    for name, slot in atom.items():
        is_counted = name == STEP and (bool(states) or (own and SOURCE not in slot.annotations))
        if name not in states and not (states and name == MASTER) and not is_counted:
            yield _key(atom.name, name, slot.annotations), slot
    yield from ((f"optimizer.state.{state}.{atom.name}", slot) for state, slot in states.items())


def _key(atom: str, slot: str, annotations: dict[str, JsonValue] | object) -> str:
    """Return the key that a slot came from, or the one that it would have."""
    if isinstance(annotations, dict) and SOURCE in annotations:
        path = key_path(slot_path(atom, slot, annotations))
        # A path of a nested state dict, ("model", name), is not one of Megatron's keys.
        if len(path) == 1:
            return str(path[0])
    return state_key(atom, slot)


def _groups(content: Content) -> dict[str, object]:
    revived: dict[str, object] = {}
    for name, optimizer in content.state.optimizers.items():
        for key, (_, value) in expand_groups(optimizer, group_origin(content.state, name)).items():
            revived[str(key)] = _revived(values.decode(value, at=str(key), restore=RESTORE), str(key))
    return revived


def _revived(value: object, key: str) -> object:
    """Return ``value`` as torch and Megatron's safe loading have it: beyond plain data, namespaces and enumerations."""
    if isinstance(value, values.NamedValue) and value.type == NAMESPACE and isinstance(value.value, dict):
        return argparse.Namespace(**{str(name): _revived(item, key) for name, item in value.value.items()})
    if isinstance(value, values.NamedValue) and (member := EnumMember.of_state(value.type, value.value)):
        return member
    if type(value) is dict:
        return {_revived(name, key): _revived(item, key) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_revived(item, key) for item in value)  # type: ignore[attr-defined, call-arg]
    return revive(value, key)


def _names_classes(value: object) -> bool:
    """Return whether a value has namespaces or enumerations in it, which only `_saved` writes."""
    if isinstance(value, values.NamedValue):
        return value.type == NAMESPACE or is_enum(value.type)
    if isinstance(value, dict):
        return any(map(_names_classes, value.values()))
    return isinstance(value, list | tuple) and any(map(_names_classes, value))


def _saved(value: object) -> bytes:
    import torch

    # Into memory first: torch hides what goes wrong with a stream.
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=NamingPickle)
    return buffer.getvalue()


def _write_common(common: dict[str, object], stream: IO[bytes]) -> None:
    stream.write(_saved(common))
