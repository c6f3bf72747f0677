"""Writing DCP's ``.metadata`` opcode by opcode, without torch.

The pickle names torch's classes with the members that they have had since PyTorch 2.6, ``TensorProperties`` with the
five that older readers unpack, so that every PyTorch from there on reads it, whichever one is installed here.
Source: torch/distributed/checkpoint/metadata.py and filesystem.py (`_StorageInfo`) of PyTorch 2.6 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ucpformat.conversion.dcp_files.items import KeyPath
from ucpformat.tensor_files.byte_source import Location

__all__ = ["ListedBox", "ListedTensor", "metadata_pickle"]

_METADATA: Final = "torch.distributed.checkpoint.metadata"
_FILESYSTEM: Final = "torch.distributed.checkpoint.filesystem"
_VERSION: Final = "1.0.0"
_CONTIGUOUS: Final = 0  # of _MEM_FORMAT_ENCODING

_PROTOCOL, _STOP = b"\x80\x02", b"."
_NONE, _FALSE = b"N", b"\x89"


@dataclass(frozen=True, slots=True)
class ListedBox:
    """A box of a tensor, and where it is stored."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    location: Location


@dataclass(frozen=True, slots=True)
class ListedTensor:
    """A tensor: ``dtype`` in torch's spelling, boxes that cover it."""

    dtype: str
    shape: tuple[int, ...]
    boxes: Sequence[ListedBox]


def metadata_pickle(
    tensors: Mapping[str, ListedTensor], objects: Mapping[str, Location], paths: Mapping[str, KeyPath]
) -> bytes:
    """Return the pickle of a ``Metadata``; ``paths`` are the paths of keys in the nested state dict.

    The same content gives the same bytes.
    """
    spell = _Speller()
    members = [(spell.text("state_dict_metadata"), spell.mapping(_entries(spell, tensors, objects)))]
    members += [(spell.text("planner_data"), spell.mapping(_paths(spell, paths)))]
    members += [(spell.text("storage_data"), spell.mapping(_locations(spell, tensors, objects)))]
    members += [(spell.text("storage_meta"), _NONE), (spell.text("version"), spell.text(_VERSION))]
    return _PROTOCOL + spell.new(_METADATA, "Metadata", spell.mapping(members)) + _STOP


def _entries(
    spell: _Speller, tensors: Mapping[str, ListedTensor], objects: Mapping[str, Location]
) -> Iterable[tuple[bytes, bytes]]:
    for key in objects:
        yield spell.text(key), spell.new(_METADATA, "BytesStorageMetadata")
    for key, tensor in tensors.items():
        yield spell.text(key), _tensor(spell, tensor)


def _tensor(spell: _Speller, tensor: ListedTensor) -> bytes:
    properties = spell.sequence(
        [
            spell.name("torch", tensor.dtype),
            spell.call("torch.serialization", "_get_layout", spell.text("torch.strided")),
            _FALSE,  # requires_grad
            spell.call(_METADATA, "_MEM_FORMAT_ENCODING", spell.integer(_CONTIGUOUS)),
            _FALSE,  # pin_memory
        ]
    )
    members = [(spell.text("properties"), spell.new(_METADATA, "TensorProperties", properties))]
    members += [(spell.text("size"), spell.size(tensor.shape))]
    chunks = []
    for box in tensor.boxes:
        chunk = [
            (spell.text("offsets"), spell.size(box.offset)),
            (spell.text("sizes"), spell.size(box.shape)),
        ]
        chunks.append(spell.new(_METADATA, "ChunkStorageMetadata", spell.mapping(chunk)))
    members += [(spell.text("chunks"), spell.array(chunks))]
    return spell.new(_METADATA, "TensorStorageMetadata", spell.mapping(members))


def _paths(spell: _Speller, paths: Mapping[str, KeyPath]) -> Iterable[tuple[bytes, bytes]]:
    for key, path in paths.items():
        steps = [spell.text(step) if isinstance(step, str) else spell.integer(step) for step in path]
        yield spell.text(key), spell.sequence(steps)


def _locations(
    spell: _Speller, tensors: Mapping[str, ListedTensor], objects: Mapping[str, Location]
) -> Iterable[tuple[bytes, bytes]]:
    for key, location in objects.items():
        yield _index(spell, key, _NONE, _NONE), _info(spell, location)
    for key, tensor in tensors.items():
        for number, box in enumerate(tensor.boxes):
            index = _index(spell, key, spell.size(box.offset), spell.integer(number))
            yield index, _info(spell, box.location)


def _index(spell: _Speller, key: str, offset: bytes, number: bytes) -> bytes:
    members = [
        (spell.text("fqn"), spell.text(key)),
        (spell.text("offset"), offset),
        (spell.text("index"), number),
    ]
    return spell.new(_METADATA, "MetadataIndex", spell.mapping(members))


def _info(spell: _Speller, location: Location) -> bytes:
    members = [(spell.text("relative_path"), spell.text(location.file))]
    members += [(spell.text("offset"), spell.integer(location.start))]
    members += [(spell.text("length"), spell.integer(location.length))]
    return spell.new(_FILESYSTEM, "_StorageInfo", spell.mapping(members))


class _Speller:
    """Spells values in pickle's opcodes of protocol 2.

    A text or a global is spelled the first time and referred to from then on, so that values have to be spelled in the
    order in which they will stand in the pickle.
    """

    def __init__(self) -> None:
        self._memo: dict[bytes, int] = {}

    def text(self, value: str) -> bytes:
        data = value.encode("utf-8", "surrogatepass")
        return self._once(b"X" + len(data).to_bytes(4, "little") + data)

    def name(self, module: str, name: str) -> bytes:
        return self._once(f"c{module}\n{name}\n".encode())

    def integer(self, value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + value.to_bytes(1, "little")
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + len(data).to_bytes(1, "little") + data

    def sequence(self, items: Iterable[bytes]) -> bytes:
        return b"(" + b"".join(items) + b"t"

    def array(self, items: Iterable[bytes]) -> bytes:
        return b"](" + b"".join(items) + b"e"

    def mapping(self, items: Iterable[tuple[bytes, bytes]]) -> bytes:
        return b"}(" + b"".join(part for pair in items for part in pair) + b"u"

    def size(self, extents: Iterable[int]) -> bytes:
        return self.call("torch", "Size", self.sequence(map(self.integer, extents)))

    def call(self, module: str, name: str, argument: bytes) -> bytes:
        return self.name(module, name) + argument + b"\x85R"

    def new(self, module: str, name: str, state: bytes | None = None) -> bytes:
        return self.name(module, name) + b")\x81" + (b"" if state is None else state + b"b")

    def _once(self, spelled: bytes) -> bytes:
        number = self._memo.get(spelled)
        if number is not None:
            return b"j" + number.to_bytes(4, "little")
        self._memo[spelled] = number = len(self._memo)
        return spelled + b"r" + number.to_bytes(4, "little")
