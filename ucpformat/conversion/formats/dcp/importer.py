"""DCP to universal checkpoint (SPEC appendix A.1): atoms by parameter, groups and values, original keys kept."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from ucpformat.conversion.contract.foreign import PICKLE, ForeignObjects
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.dcp_files.directory import DcpDirectory
from ucpformat.conversion.dcp_files.tensors import TensorSource, grid_layout
from ucpformat.distributed.values import OPAQUE_MEDIA
from ucpformat.errors import UcpError, error
from ucpformat.state_dict.keys.names import recognise
from ucpformat.state_dict.keys.origins import slot_annotations, state_document
from ucpformat.tensor_files.allowed_globals import STREAM_GLOBALS, stream_content
from ucpformat.tensor_files.tagged import encode
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["import_dcp"]

_SHARDED_OBJECT: Final = re.compile(r".+/shard_\d+(?:\.\d+)*_\d+(?:\.\d+)*", re.DOTALL)
"""The key of an object of one rank as Megatron-core writes it; torch itself writes none."""


def import_dcp(
    path: str | os.PathLike[str],
    *,
    foreign_objects: ForeignObjects = "refuse",
    shard_count: int | None = None,
) -> Job:
    """Plan the conversion of a DCP directory; nothing in it is executed, no tensor is read yet.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for what is damaged or incomplete, ``UCP-E-PICKLE`` and
            ``UCP-E-OBJECT``, naming the key, for objects that are not plain data, unless ``foreign_objects`` is
            ``opaque``: their bytes are then carried as blobs. What an ``io.BytesIO`` holds always is, where that is
            an object of its own. ``shard_count`` is the number of ranks that saved a Hugging Face directory of shards,
            which does not record it.
    """
    directory = DcpDirectory.open(path, shard_count=shard_count)
    odd = next((key for key in directory.objects if _SHARDED_OBJECT.fullmatch(key)), None)
    if odd is not None:
        raise error(
            "UCP-E-SOURCE",
            f"{odd!r:.200} is an object of Megatron-core's, whose arguments and iteration lie in common.pt and "
            "metadata.json beside this file: copy both into the directory",
            at=".metadata",
        )
    tensors = {key: tensor.path for key, tensor in directory.tensors.items()}
    paths = {key: item.path for key, item in directory.objects.items()}
    encoded, blobs = _objects(directory, foreign_objects)
    names = recognise(tensors, paths)

    slots: dict[str, dict[str, SlotSpec]] = {}
    sources: list[SlotSource] = []
    for key, tensor in directory.tensors.items():
        place = names.assignments[key]
        spec = SlotSpec(
            tensor.dtype,
            tensor.shape,
            grid_layout([(part.offset, part.shape) for part in tensor.fragments], tensor.shape),
            annotations=slot_annotations(tensor.path or (key,)),
        )
        slots.setdefault(place.name, {})[place.slot] = spec
        sources.append(SlotSource(place.name, place.slot, TensorSource(directory, tensor)))

    state = state_document(directory.kind, encoded, paths, paths, names, frozenset(slots), blobs=blobs)
    return Job(
        atoms=[AtomSpec(name, specs) for name, specs in slots.items()],
        sources=sources,
        state=state,
        blobs=blobs,
    )


def _objects(
    directory: DcpDirectory, foreign_objects: ForeignObjects
) -> tuple[dict[str, JsonValue], dict[str, tuple[str, bytes]]]:
    """Return objects as tagged values, and those carried as bytes: the content of a stream, or a whole pickle."""
    encoded: dict[str, JsonValue] = {}
    blobs: dict[str, tuple[str, bytes]] = {}
    for key, item in directory.objects.items():
        if len(item.locations) > 1:
            raise error(
                "UCP-E-SOURCE",
                f"each rank saved another value of {key!r}, and DCP does not say which counts; "
                "save with use_collectives=True",
                at=f"{directory.path}#{key}",
            )
        directory.verify(key)
        try:
            value = directory.read_object(key, also_allowed=STREAM_GLOBALS)
            stream = stream_content(value)
            if stream is None:
                encoded[key] = encode(value, at=key)
            else:
                blobs[key] = (OPAQUE_MEDIA, stream)
        except UcpError as refusal:
            if refusal.code not in ("UCP-E-PICKLE", "UCP-E-OBJECT"):
                raise
            if foreign_objects == "refuse":
                remedy = "carry it as opaque bytes (--foreign-objects opaque), or save without it"
                raise error(
                    refusal.code, f"{refusal.message}; {remedy}", at=f"{directory.path}#{key}"
                ) from refusal
            blobs[key] = (PICKLE, directory.read_object_bytes(key))
    return encoded, blobs
