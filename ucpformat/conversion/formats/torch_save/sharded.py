"""torch's ``ShardedTensor`` in a file of ``torch.save``: what FSDP1 gives under ``SHARDED_STATE_DICT``, as plain data.

A rank's file has the shards of that rank, and where in the tensor the shards of all ranks lie
(torch/distributed/_shard/sharded_tensor/api.py, ``__getstate__``, PyTorch 2.6 to 2.15).
Its classes come in as inert records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from ucpformat.conversion.contract.sources import window
from ucpformat.conversion.dcp_files.items import cover_problem
from ucpformat.conversion.formats.torch_save.importer import TORCH_SAVE_GLOBALS
from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box, BoxIndex
from ucpformat.tensor_files.byte_source import element_view
from ucpformat.tensor_files.fields import data_type, members
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor
from ucpformat.tensor_files.unpickle import Constructor, Globals

__all__ = ["RANK_GLOBALS", "SHARDED", "Sharded", "joined"]

SHARDED: Final = "ShardedTensor"
_SHARD: Final = "torch.distributed._shard"
_API: Final = (f"{_SHARD}.sharded_tensor.api", SHARDED)
_TYPED: Final = ("torch._tensor", "_rebuild_from_type_v2")
_RECORDS: Final = (
    (f"{_SHARD}.sharded_tensor.shard", "Shard"),
    (f"{_SHARD}.metadata", "ShardMetadata"),
    (f"{_SHARD}.sharded_tensor.metadata", "ShardedTensorMetadata"),
    (f"{_SHARD}.sharded_tensor.metadata", "TensorProperties"),
    (f"{_SHARD}.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec"),
    (f"{_SHARD}.sharding_spec.api", "EnumerableShardingSpec"),
    ("torch.distributed.remote_device", "_remote_device"),
)


def _record(kind: str) -> Constructor:
    def call(arguments: tuple[Any, ...]) -> object:
        if arguments:
            raise ValueError(f"{kind} takes no arguments")
        return Instance(kind)

    return Constructor(kind, call)


def _named_only(arguments: tuple[Any, ...]) -> object:
    raise ValueError("this may be named but not called")


_PLAIN_TYPED: Final = cast("Constructor", TORCH_SAVE_GLOBALS[_TYPED])
_CLASS: Final = Constructor(SHARDED, _named_only)
_WRAPPER: Final = Constructor("_rebuild_wrapper_subclass", _named_only)
_GROUP_STATE: Final = _record("ProcessGroupState")


def _member(arguments: tuple[Any, ...]) -> object:
    """Stand in for ``getattr``, of the one class that has a class within it."""
    if arguments != (_CLASS, "ProcessGroupState"):
        raise ValueError("only ShardedTensor.ProcessGroupState may be asked for")
    return _GROUP_STATE


def _memory_format(arguments: tuple[Any, ...]) -> object:
    (code,) = arguments
    if type(code) is not int:
        raise ValueError("a memory format is a number")
    return code


def _typed(arguments: tuple[Any, ...]) -> object:
    """Stand in for ``torch._tensor._rebuild_from_type_v2`` of a `ShardedTensor`; of other tensors as elsewhere."""
    if arguments[:2] != (_WRAPPER, _CLASS):
        return _PLAIN_TYPED.call(arguments)
    _, _, _, state = arguments
    if not isinstance(state, tuple) or len(state) < 3:
        raise ValueError("a ShardedTensor of another form")
    return Instance(SHARDED, tuple(state[:3]))


RANK_GLOBALS: Final[Globals] = {
    **TORCH_SAVE_GLOBALS,
    **{place: _record(place[1]) for place in _RECORDS},
    _API: _CLASS,
    _TYPED: Constructor("_rebuild_from_type_v2", _typed),
    ("torch._utils", "_rebuild_wrapper_subclass"): _WRAPPER,
    (f"{_SHARD}.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): Constructor(
        "MEM_FORMAT_ENCODING", _memory_format
    ),
    ("__builtin__", "getattr"): Constructor("getattr", _member),
    ("builtins", "getattr"): Constructor("getattr", _member),
}
"""What a rank's file may name: what any file of ``torch.save`` may, and the parts of a `ShardedTensor`."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """What one rank's file says of a tensor: where all shards lie and which ranks have them, and its own shards."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[tuple[Box, int | None], ...]
    held: tuple[tuple[Box, StoredTensor], ...]
    world: int | None
    rank: int | None
    """Of the process that wrote it, among all of the job."""

    @classmethod
    def read(cls, instance: Instance, name: str, at: str) -> Sharded:
        """Read it from what `RANK_GLOBALS` made of it.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE`` for what is not as torch has it.
        """
        try:
            shards, metadata, group = instance.state
            described = members(metadata)
            kind = data_type(described["tensor_properties"])
            if kind is None or kind.name not in TORCH_DTYPES:
                raise error("UCP-E-DTYPE", f"{name!r:.200} is of no type that is known", at=at)
            dtype = TORCH_DTYPES[kind.name][0]
            boxes = tuple(_box(members(entry)) for entry in described["shards_metadata"])
            held = tuple(_held(members(shard), dtype) for shard in shards)
            world, rank = (members(group).get(f"global_{name}") for name in ("world_size", "rank"))
            return cls(
                dtype,
                _extents(described["size"]),
                boxes,
                held,
                world if type(world) is int else None,
                rank if type(rank) is int else None,
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
            raise error(
                "UCP-E-SOURCE",
                f"{name!r:.200} is not a ShardedTensor as torch saves it: {problem!s:.200}",
                at=at,
            ) from None


def _extents(value: object) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or not all(type(item) is int and item >= 0 for item in value):
        raise ValueError("an extent is no integer >= 0")
    return tuple(value)


def _box(entry: Mapping[str, Any]) -> tuple[Box, int | None]:
    placement = members(entry["placement"]) if entry.get("placement") is not None else {}
    rank = placement.get("_rank")
    box = Box(_extents(entry["shard_offsets"]), _extents(entry["shard_sizes"]))
    return box, rank if type(rank) is int else None


def _held(shard: Mapping[str, Any], dtype: str) -> tuple[Box, StoredTensor]:
    box, _ = _box(members(shard["metadata"]))
    stored = shard["tensor"]
    if not isinstance(stored, StoredTensor) or stored.shape != box.shape or stored.dtype != dtype:
        raise ValueError("a shard is not of the shape and type that it is described with")
    return box, stored


class _Boxes:
    """A tensor of which files hold boxes."""

    def __init__(self, parts: Sequence[tuple[Box, TorchFile, StoredTensor]]) -> None:
        self._parts = parts
        self._index = BoxIndex([box for box, _, _ in parts])

    def __call__(self, box: Box, out: npt.NDArray[np.generic]) -> None:
        """Fill ``out``, contiguous, with a box."""
        target = element_view(out.reshape(-1).view(np.uint8), out.itemsize, out.shape)
        for place in self._index.overlapping(box):
            held, file, stored = self._parts[place]
            common = held.intersect(box)
            if common is None or common.size == 0:
                continue
            first = sum(map(int.__mul__, common.relative_to(held).offset, stored.strides))
            file.read(stored, first, stored.strides, window(target, common.relative_to(box)))


def joined(name: str, shards: Sequence[tuple[TorchFile, Sharded]]) -> _Boxes:
    """Return a reader of the whole tensor; of what several ranks hold (hybrid sharding), the first counts.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, where ranks contradict each other or one is missing.
    """
    file, first = shards[0]
    for other, sharded in shards[1:]:
        if (sharded.dtype, sharded.shape, len(sharded.boxes)) != (first.dtype, first.shape, len(first.boxes)):
            raise error(
                "UCP-E-SOURCE",
                f"{name!r:.200} is described otherwise than in {file.name}: two saves",
                at=other.name,
            )
    described: dict[Box, int | None] = {}
    held: dict[Box, tuple[TorchFile, StoredTensor]] = {}
    for other, sharded in shards:
        described |= {box: rank for box, rank in sharded.boxes if box.size}
        for box, stored in sharded.held:
            if box.size:
                held.setdefault(box, (other, stored))
    for box, rank in described.items():
        if box not in held:
            raise error(
                "UCP-E-SOURCE",
                f"the shard of {name!r:.200} at {list(box.offset)} is in no file: copy the file of rank {rank}, too",
                at=file.name,
            )
    problem = cover_problem(first.shape, [*held])
    if problem is not None:
        raise error("UCP-E-SOURCE", f"{name!r:.200}: {problem}", at=file.name)
    return _Boxes([(box, *place) for box, place in held.items()])


def refusal(message: str, at: str) -> UcpError:
    """Return the refusal of files that are not one save of all ranks."""
    return error("UCP-E-SOURCE", message, at=at)
