"""A nested state dict as this process's part of a checkpoint (SPEC sections 10, 11 and 15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ucpformat.distributed.local_state import LocalState, OwnValue
from ucpformat.errors import error
from ucpformat.model.compressor import require_compression
from ucpformat.model.values import encode
from ucpformat.state_dict.changed_rows import changed_rows
from ucpformat.state_dict.keys.origins import state_document
from ucpformat.state_dict.keys.paths import StatePath, dotted, flatten
from ucpformat.state_dict.objects import extend
from ucpformat.state_dict.per_rank import PerRank, encoded_own
from ucpformat.state_dict.state_form import KeptForm
from ucpformat.state_dict.tensor_parts import LiveTensor, taken_apart
from ucpformat.state_dict.tensors.device_digests import digests_on_device
from ucpformat.state_dict.tensors.local_tensors import TensorLayout, is_tensor, local_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compression
    from ucpformat.model.pipeline import Pipeline
    from ucpformat.state_dict.fences import TrainingFences

__all__ = ["live_state"]


def live_state(
    state: Mapping[str, Any],
    *,
    rank: int = 0,
    layouts: Mapping[str, TensorLayout] | None = None,
    compressor: Compression | None = None,
    pipeline: Pipeline | None = None,
    changed: Mapping[str, Any] | None = None,
    fences: TrainingFences | None = None,
    kept: KeptForm | None = None,
) -> LocalState:
    """Return what this process, ``rank`` of the job, has to save of ``state``; tensors are looked at, not copied.

    ``changed`` has rows by glob, as `changed_rows` takes them; ``fences`` say what is copied behind the call of a save.
    Of a state like that of the last call with the same ``kept``, atoms are the same object.

    Raises:
        UcpError: ``UCP-E-OBJECT``, ``UCP-E-DTYPE``, ``UCP-E-MISMATCH`` or ``UCP-E-NAME``, naming the entry.
    """
    require_compression(compressor)
    leaves = flatten(state, is_tensor)
    names = {dotted(leaf): leaf for leaf in leaves}
    declared = dict(layouts or {})
    tensors: dict[str, StatePath] = {}
    live: dict[str, LiveTensor] = {}
    values: dict[StatePath, JsonValue] = {}
    for name, leaf in names.items():
        if not is_tensor(leaves[leaf]):
            continue
        tensors[name] = leaf
        taken = taken_apart(leaf, leaves[leaf], declared)
        values.update(taken.descriptions)
        for one in taken.tensors:
            part = name + one.part
            if part in live or (one.part and part in names):
                raise error("UCP-E-NAME", "a part of a tensor has the name of another entry", at=part)
            live[part] = one
    unknown = sorted(declared.keys() - live.keys())
    if unknown:
        raise error("UCP-E-NAME", "a layout is given for what is no tensor of the state", at=unknown[0])
    held = {
        name: found
        for name, one in live.items()
        if (found := local_tensor(one.tensor, rank=rank, held=one.held or declared.get(name), at=name))
        is not None
    }
    objects = {name: leaf for name, leaf in names.items() if name not in tensors}
    form = (kept or KeptForm()).of(tensors, objects, live, held, compressor, pipeline)
    owned = {slot: held[name] for name, slot in form.slots.items()}
    encoded: dict[str, JsonValue] = {}
    own: dict[str, OwnValue] = {}
    for name, leaf in objects.items():
        value = leaves[leaf]
        if isinstance(value, PerRank):
            encoded[name], own[name] = encoded_own(value, at=name, extend=extend)
        else:
            encoded[name] = encode(value, at=name, extend=extend)
    rows = changed_rows(changed, {name: held[name] for name in form.slots}) if changed else {}
    return LocalState(
        form.atoms,
        {slot: tensor.array for slot, tensor in owned.items()},
        state_document(
            "state_dict",
            encoded | {dotted(path): value for path, value in values.items()},
            objects | {dotted(path): path for path in values},
            form.object_paths,
            form.names,
            frozenset(atom.name for atom in form.atoms),
        ),
        {slot: tensor.local.detach() for slot, tensor in owned.items() if not tensor.on_host},
        own,
        digests_on_device,
        {form.slots[name]: found for name, found in rows.items()},
        {} if fences is None else fences.slots(owned),
    )
