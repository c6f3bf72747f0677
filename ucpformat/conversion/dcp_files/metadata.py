"""Reading DCP's ``.metadata`` pickle into a catalogue.

Source: torch/distributed/checkpoint/metadata.py, filesystem.py (`_StorageInfo`) and default_planner.py of
PyTorch 2.6 to 2.15. The planner's data map each key to the path that it had in the nested state dict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ucpformat.conversion.dcp_files.items import Catalogue, DcpObject, DcpTensor, Fragment, KeyPath
from ucpformat.errors import error
from ucpformat.model.atom import MAX_NDIM
from ucpformat.tensor_files.allowed_globals import METADATA_GLOBALS
from ucpformat.tensor_files.byte_source import Location
from ucpformat.tensor_files.fields import DENSE, data_type, layout, members
from ucpformat.tensor_files.numpy_values import extents_of
from ucpformat.tensor_files.object_tree import Instance, Limits, refused
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES, TorchSize
from ucpformat.tensor_files.unpickle import unpickle

__all__ = ["METADATA_LIMITS", "read_metadata"]

METADATA_LIMITS = Limits(pickle_bytes=2 << 30)

# The members of torch's classes, for a torch that pickles them one after another and not by name.
_ORDER: Final = {
    "Metadata": ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"),
    "TensorStorageMetadata": ("properties", "size", "chunks"),
    "ChunkStorageMetadata": ("offsets", "sizes"),
    "MetadataIndex": ("fqn", "offset", "index"),
    "_StorageInfo": ("relative_path", "offset", "length", "transform_descriptors"),
}

_Locations = dict[tuple[str, tuple[int, ...] | None], Location]


def read_metadata(data: bytes, at: str) -> Catalogue:
    """Return what the pickle ``data`` of the file ``at`` describes; covers and files are not checked yet.

    Raises ``UCP-E-PICKLE``, ``UCP-E-LIMIT``, ``UCP-E-SOURCE``, ``UCP-E-DTYPE``.
    """
    document = unpickle(data, METADATA_GLOBALS, at=at, limits=METADATA_LIMITS)
    return _Reader(at, budget=1000 + len(data)).read(document)


class _Reader:
    def __init__(self, at: str, budget: int) -> None:
        self._at = at
        self._budget = budget  # pieces: each takes more than a byte of pickle, unless lists are shared

    def read(self, document: object) -> Catalogue:
        state = self._state(document, "Metadata")
        version = state.get("version")
        if version is not None and type(version) is not str:
            raise refused("the version of the metadata is malformed", self._at)
        if version is not None and version.partition(".")[0] != "1":
            raise error(
                "UCP-E-SOURCE",
                f"DCP metadata of version {version!r:.50} are not known; save with a PyTorch that writes version 1",
                at=self._at,
            )
        locations = self._locations(self._dict(state.get("storage_data")))
        paths = state.get("planner_data")
        tensors: dict[str, DcpTensor] = {}
        objects: dict[str, DcpObject] = {}
        for key, entry in self._dict(state.get("state_dict_metadata")).items():
            if type(key) is not str:
                raise refused("a key is not a string", self._at)
            path = self._path(key, paths.get(key)) if isinstance(paths, dict) else None
            if isinstance(entry, Instance) and entry.kind == "BytesStorageMetadata":
                objects[key] = DcpObject(key, path, (self._location(locations, key, None),))
            else:
                tensors[key] = self._tensor(key, path, self._state(entry, "TensorStorageMetadata"), locations)
        flattened = self._flattened(state.get("mcore_data") or {}, tensors)
        known = tensors.keys() | objects.keys()
        for key, _ in locations:
            if key not in known:
                raise error("UCP-E-SOURCE", f"data are stored for {key!r}, which is not listed", at=self._at)
        return Catalogue("dcp", tensors, objects, tuple(locations.values()), flattened)

    def _flattened(self, noted: object, tensors: dict[str, DcpTensor]) -> dict[str, tuple[int, ...]]:
        """Return what Megatron-core 0.13 to 0.15 notes of tensors that it stores in flattened pieces: their shapes."""
        shapes = {}
        for key, note in self._dict(noted).items():
            shape = self._dict(note).get("nd_reformulated_orig_global_shape")
            if shape is None:
                continue
            try:
                shapes[key] = extents_of(shape)
            except ValueError:
                raise refused(f"the note on {key!r:.200} is malformed", self._at) from None
            if key not in tensors:
                raise error("UCP-E-SOURCE", f"{key!r:.200} is noted and not listed", at=self._at)
        return shapes

    def _tensor(
        self, key: str, path: KeyPath | None, state: Mapping[Any, Any], locations: _Locations
    ) -> DcpTensor:
        dtype = self._data_type(key, state.get("properties"))
        shape = self._size(state.get("size"))
        chunks = state.get("chunks")
        if type(chunks) is not list:
            raise refused(f"{key!r} has no list of pieces", self._at)
        self._budget -= len(chunks)
        if self._budget < 0:
            raise error("UCP-E-LIMIT", "the metadata expand to too many pieces", at=self._at)
        fragments: dict[tuple[tuple[int, ...], tuple[int, ...]], Fragment] = {}
        for chunk in chunks:
            piece = self._state(chunk, "ChunkStorageMetadata")
            offset, extent = self._size(piece.get("offsets")), self._size(piece.get("sizes"))
            if len(offset) != len(extent):
                raise refused(
                    f"a piece of {key!r:.200} has an offset and a size of different lengths", self._at
                )
            if math.prod(extent):
                location = self._location(locations, key, offset)
                fragments[(offset, extent)] = Fragment(offset, extent, location, "torch")
        return DcpTensor(key, path, dtype, shape, tuple(fragments.values()))

    def _data_type(self, key: str, properties: object) -> str:
        """Return the data type of a dense tensor, in Zarr's spelling."""
        self._check_kind(properties, "TensorProperties")
        try:
            torch_dtype, kept_as = data_type(properties), layout(properties)
        except TypeError:
            torch_dtype, kept_as = None, DENSE
        if torch_dtype is None:
            raise refused(f"{key!r} has no data type", self._at)
        if torch_dtype.name not in TORCH_DTYPES:
            raise error("UCP-E-DTYPE", f"{key!r}: torch's {torch_dtype.name} is not supported", at=self._at)
        if kept_as != DENSE:
            raise error(
                "UCP-E-DTYPE",
                f"{key!r} has the layout {kept_as.name:.50}; save it dense (to_dense())",
                at=self._at,
            )
        return TORCH_DTYPES[torch_dtype.name][0]

    def _locations(self, storage: dict[Any, Any]) -> _Locations:
        locations: _Locations = {}
        for index, entry in storage.items():
            at = self._state(index, "MetadataIndex")
            info = self._state(entry, "_StorageInfo")
            key, offset = at.get("fqn"), at.get("offset")
            file, start, length = info.get("relative_path"), info.get("offset"), info.get("length")
            transforms = info.get("transform_descriptors") or ()
            if not isinstance(transforms, list | tuple) or not all(type(item) is str for item in transforms):
                raise refused("the transforms of an item are malformed", self._at)
            if (
                type(key) is not str
                or type(file) is not str
                or type(start) is not int
                or type(length) is not int
            ):
                raise refused("the location of an item is malformed", self._at)
            name = (key, None if offset is None else self._size(offset))
            if name in locations or start < 0 or length < 0:
                raise error("UCP-E-SOURCE", f"{key!r} has two locations or an impossible one", at=self._at)
            locations[name] = Location(file, start, length, tuple(transforms))
        return locations

    def _location(self, locations: _Locations, key: str, offset: tuple[int, ...] | None) -> Location:
        location = locations.get((key, offset))
        if location is None:
            where = "" if offset is None else f" at {list(offset)}"
            raise error("UCP-E-SOURCE", f"{key!r}{where} is listed but stored nowhere", at=self._at)
        return location

    def _path(self, key: str, path: object) -> KeyPath | None:
        if not isinstance(path, tuple) or not all(type(part) in (str, int) for part in path):
            return None
        # A planner of someone else's may put other things here; a path is one only where it spells the key.
        return path if ".".join(map(str, path)) == key else None

    def _size(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, TorchSize) or len(value) > MAX_NDIM:
            raise refused("an offset or a shape is malformed", self._at)
        return tuple(value)

    def _check_kind(self, value: object, kind: str) -> None:
        if not isinstance(value, Instance) or value.kind != kind:
            raise refused(f"expected a {kind}", self._at)

    def _state(self, value: object, kind: str) -> Mapping[Any, Any]:
        self._check_kind(value, kind)
        try:
            return members(value, _ORDER[kind])
        except TypeError:
            raise refused(f"a {kind} has no members", self._at) from None

    def _dict(self, value: object) -> dict[Any, Any]:
        if type(value) is not dict:
            raise refused("a part of the metadata is missing or not a dict", self._at)
        return value
