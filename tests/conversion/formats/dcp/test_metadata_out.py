"""The ``.metadata`` that is written without torch, as torch itself and our reader find it."""

from __future__ import annotations

import pickle
import pickletools

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ucpformat.conversion.dcp_files.items import KeyPath
from ucpformat.conversion.dcp_files.metadata import read_metadata
from ucpformat.conversion.dcp_files.metadata_out import ListedBox, ListedTensor, metadata_pickle
from ucpformat.tensor_files.byte_source import Location

# Names of torch's members and classes among them, which the pickle spells, too.
KEYS = (
    *("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version", "1.0.0"),
    *(
        "properties",
        "size",
        "chunks",
        "offsets",
        "sizes",
        "fqn",
        "offset",
        "index",
        "relative_path",
        "length",
    ),
    *("torch.strided", "torch", "Size", "ctorch\nSize\n", "", "münchen", "\ud800", "__0_0.distcp", "a.0.b"),
)
SIZES = (1, 7, 255, 256, 127, 128, 32768, 2**31, 2**53 - 1)


def written() -> tuple[dict[str, ListedTensor], dict[str, Location], dict[str, KeyPath]]:
    tensors = {}
    for number, key in enumerate(KEYS):
        first = SIZES[number % len(SIZES)]
        boxes = [
            ListedBox((0, 0), (first, 3), Location("__0_0.distcp", first, 10 * number)),
            ListedBox((first, 0), (1, 3), Location("__0_1.distcp", 2**40 + number, 300)),
        ]
        tensors[key] = ListedTensor("bfloat16", (first + 1, 3), boxes)
    tensors["scalar"] = ListedTensor("int64", (), [ListedBox((), (), Location("__0_1.distcp", 5, 6))])
    objects = {"object": Location("__0_0.distcp", 0, 10), "chunks.0": Location("__0_0.distcp", 10, 10)}
    paths: dict[str, KeyPath] = {key: (key,) for key in (*tensors, *objects)}
    return tensors, objects, paths | {"a.0.b": ("a", 0, "b"), "chunks.0": ("chunks", 0)}


def test_torch_finds_what_was_meant() -> None:
    tensors, objects, paths = written()
    found = pickle.loads(metadata_pickle(tensors, objects, paths))
    assert isinstance(found, Metadata)
    expected: dict[str, object] = {key: BytesStorageMetadata() for key in objects}
    places: dict[MetadataIndex, _StorageInfo] = {
        MetadataIndex(key): _StorageInfo(place.file, place.start, place.length)
        for key, place in objects.items()
    }
    for key, tensor in tensors.items():
        chunks = [ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.shape)) for box in tensor.boxes]
        properties = TensorProperties(dtype=getattr(torch, tensor.dtype))
        expected[key] = TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
        for box in tensor.boxes:
            at = box.location
            index = MetadataIndex(key, torch.Size(box.offset))
            places[index] = _StorageInfo(at.file, at.start, at.length)
    assert found.state_dict_metadata == expected
    assert found.planner_data == paths
    assert found.storage_data == places
    assert [index.index for index in found.storage_data if index.fqn == "size"] == [0, 1]
    assert {type(index.offset) for index in found.storage_data} == {torch.Size, type(None)}


def test_our_reader_finds_what_was_meant() -> None:
    tensors, objects, paths = written()
    catalogue = read_metadata(metadata_pickle(tensors, objects, paths), ".metadata")
    assert catalogue.tensors.keys() == tensors.keys()
    assert catalogue.objects.keys() == objects.keys()
    assert catalogue.tensors["a.0.b"].path == ("a", 0, "b")


def test_the_pickle_holds_what_the_oldest_torch_knows() -> None:
    """torch 2.6 to 2.14 unpack five properties; classes and members that came later are not named."""
    box = ListedBox((0,), (2,), Location("__0_0.distcp", 0, 8))
    data = metadata_pickle({"w": ListedTensor("float32", (2,), [box])}, {}, {"w": ("w",)})
    spelled = [(code.name, argument) for code, argument, _ in pickletools.genops(data)]
    names = {argument for name, argument in spelled if name == "GLOBAL"}
    assert names == {
        *(f"torch.distributed.checkpoint.metadata {name}" for name in ("Metadata", "MetadataIndex")),
        *(f"torch.distributed.checkpoint.metadata {name}StorageMetadata" for name in ("Tensor", "Chunk")),
        "torch.distributed.checkpoint.metadata TensorProperties",
        "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.filesystem _StorageInfo",
        "torch Size",
        "torch float32",
        "torch.serialization _get_layout",
    }
    start = next(place for place, (_, argument) in enumerate(spelled) if argument == "torch float32")
    end = next(place for place in range(start, len(spelled)) if spelled[place][0] == "TUPLE")
    assert [name for name, _ in spelled[start:end] if name in ("REDUCE", "NEWFALSE")] == [
        *("REDUCE", "NEWFALSE", "REDUCE", "NEWFALSE")
    ]
    assert spelled[end + 1][0] == "BUILD"


def test_the_same_content_gives_the_same_bytes() -> None:
    assert metadata_pickle(*written()) == metadata_pickle(*written())
