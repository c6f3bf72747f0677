"""``torch_dist`` to universal checkpoint: atoms by parameter, as Megatron stores them, the rest as values."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.frameworks.converting.job import Job, SlotSource
from ucpformat.frameworks.deepspeed.torch_file import TorchFile
from ucpformat.frameworks.megatron.torch_dist import (
    COMMON,
    COMMON_GLOBALS,
    EXTRA_STATE_GLOBALS,
    assign,
    check_configuration,
    is_sharded_object,
)
from ucpformat.frameworks.state.origins import slot_annotations, state_annotations
from ucpformat.frameworks.torch_dcp.directory import DcpDirectory
from ucpformat.frameworks.torch_dcp.files import CheckpointFiles
from ucpformat.frameworks.torch_dcp.importer import PICKLE, ForeignObjects, Once, TensorSource, grid_layout
from ucpformat.frameworks.torch_dcp.tagged import encode
from ucpformat.model.state import StateDocument
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["import_torch_dist"]

_EXTRA_STATE: Final = "._extra_state/"
_ITERATION: Final = re.compile(r"iter_(\d{7,18})")


def import_torch_dist(path: str | os.PathLike[str], *, foreign_objects: ForeignObjects = "refuse") -> Job:
    """Plan the conversion of a ``torch_dist`` directory; nothing in it is executed, no tensor is read yet.

    Stacked layers and experts stay stacked; the annotation of a slot keeps its key. Every top-level entry of
    ``common.pt`` becomes a value of its name, every ShardedObject one of its key. ``iteration`` is the step.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged, incomplete or of another backend, ``UCP-E-PICKLE``
            and ``UCP-E-OBJECT`` for objects that are not plain data. ``foreign_objects`` ``opaque`` carries a
            ShardedObject as its bytes instead; modules' extra states that are streams of bytes always are.
    """
    files = CheckpointFiles(Path(path))
    check_configuration(files)
    directory = DcpDirectory.open(path)
    common = TorchFile(files, COMMON, COMMON_GLOBALS)
    values, iteration = _common(common)
    _check_iteration(Path(path), iteration)
    blobs: dict[str, bytes] = {}
    for key in directory.objects:
        if key in values or not is_sharded_object(key):
            raise error("UCP-E-SOURCE", f"{key!r} is not the key of a sharded object", at=str(path))
        directory.verify(key)
        is_extra = _EXTRA_STATE in key
        try:
            also_allowed = EXTRA_STATE_GLOBALS if is_extra else None
            values[key] = encode(directory.read_object(key, also_allowed=also_allowed), at=key)
        except UcpError as refusal:
            if refusal.code not in ("UCP-E-PICKLE", "UCP-E-OBJECT"):
                raise
            # A stream of bytes is known, and no plain data; what names anything else is not passed on unasked.
            is_stream = is_extra and refusal.code == "UCP-E-OBJECT"
            if foreign_objects == "refuse" and not is_stream:
                remedy = "carry it as opaque bytes (--foreign-objects opaque), or save without it"
                raise error(refusal.code, f"{refusal.message}; {remedy}", at=f"{path}#{key}") from refusal
            blobs[key] = directory.read_object_bytes(key)

    slots: dict[str, dict[str, SlotSpec]] = defaultdict(dict)
    sources = []
    for key, tensor in directory.tensors.items():
        place = assign(directory.tensors, key)
        if place.slot in slots[place.name]:
            raise error("UCP-E-SOURCE", f"{key!r} is a second {place.slot!r} of {place.name!r}", at=str(path))
        slots[place.name][place.slot] = SlotSpec(
            tensor.dtype,
            tensor.shape,
            grid_layout([(part.offset, part.shape) for part in tensor.fragments], tensor.shape),
            annotations=slot_annotations((key,)),
        )
        sources.append(SlotSource(place.name, place.slot, TensorSource(directory, tensor, Once())))
    return Job(
        atoms=[AtomSpec(name, found) for name, found in slots.items()],
        sources=sources,
        state=StateDocument(values, {}, {}, state_annotations("megatron-torch-dist", {}, {})),
        blobs={key: (PICKLE, data) for key, data in blobs.items()},
        step=iteration,
    )


def _check_iteration(path: Path, iteration: int | None) -> None:
    """Megatron-LM's name of the directory is the one other place that says of which iteration it is."""
    named = _ITERATION.fullmatch(Path(os.path.abspath(path)).name)
    if named is not None and iteration is not None and int(named[1]) != iteration:
        raise error(
            "UCP-E-SOURCE",
            f"of iteration {iteration}, the directory {named[0]} is of another: from two saves",
            at=COMMON,
        )


def _common(common: TorchFile) -> tuple[dict[str, JsonValue], int | None]:
    """The top-level entries as tagged values, and the iteration."""
    if type(common.tree) is not dict or not all(type(name) is str for name in common.tree):
        raise error("UCP-E-SOURCE", "the common state is not a dict by name", at=COMMON)
    values = {name: encode(common.plain(value), at=f"{COMMON}#{name}") for name, value in common.tree.items()}
    iteration = common.tree.get("iteration")
    return values, iteration if type(iteration) is int and iteration >= 0 else None
