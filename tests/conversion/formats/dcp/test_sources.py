"""Damaged and hostile files below the level of a directory: metadata, safetensors headers, compressed items."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import zstandard
from hypothesis import given
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from tests.conversion.formats.dcp.strategies import shapes, tilings
from ucpformat.conversion.dcp_files.items import check_covers
from ucpformat.conversion.dcp_files.metadata import read_metadata
from ucpformat.errors import UcpError
from ucpformat.tensor_files.byte_source import MemoryRange, decompressed, open_range
from ucpformat.tensor_files.safetensors_file import read_header
from ucpformat.tensor_files.source_files import SourceFiles

CODES = ("UCP-E-SOURCE", "UCP-E-PICKLE", "UCP-E-LIMIT", "UCP-E-DTYPE")


@st.composite
def documents(draw: st.DrawFn) -> Metadata:
    """Metadata of torch's own classes over random shapes, cut at random."""
    listed: dict[str, Any] = {"object": BytesStorageMetadata()}
    places = {MetadataIndex("object"): _StorageInfo("__0_0.distcp", 0, 10)}
    for number in range(draw(st.integers(0, 3))):
        key = f"model.{number}"
        shape = draw(shapes)
        chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(n)) for o, n in draw(tilings(shape))]
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint16]))
        listed[key] = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(shape), chunks)
        for index, chunk in enumerate(chunks):
            # An empty piece may stand where a full one starts; torch keeps one place for both.
            place = _StorageInfo(f"__{index}_0.distcp", 64 * index, 64)
            places[MetadataIndex(key, chunk.offsets, index)] = place
    paths = {key: tuple(key.split(".")) for key in listed}
    return Metadata(listed, paths, places, StorageMeta(Path("/a/b"), "save"), "1.0.0")


@given(documents(), st.sampled_from([2, 3, 4, 5]))
def test_metadata_of_torchs_classes(document: Metadata, protocol: int) -> None:
    catalogue = read_metadata(pickle.dumps(document, protocol), ".metadata")
    check_covers(catalogue.tensors, ".metadata")
    assert {*catalogue.tensors, *catalogue.objects} == document.state_dict_metadata.keys()
    for key, tensor in catalogue.tensors.items():
        expected: Any = document.state_dict_metadata[key]
        assert tensor.shape == tuple(expected.size)
        assert tensor.dtype == str(expected.properties.dtype).removeprefix("torch.")
        assert tensor.path == document.planner_data[key]
        full = [(tuple(c.offsets), tuple(c.sizes)) for c in expected.chunks if all(c.sizes)]
        assert [(part.offset, part.shape) for part in tensor.fragments] == full
        for part in tensor.fragments:
            place = document.storage_data[MetadataIndex(key, part.offset)]
            assert (part.location.file, part.location.start) == (place.relative_path, place.offset)


@given(documents(), st.data())
def test_damaged_metadata_are_refused_or_read(document: Metadata, data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps(document, data.draw(st.sampled_from([2, 4]))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        check_covers(read_metadata(bytes(raw), ".metadata").tensors, ".metadata")
    except UcpError as problem:
        assert problem.code in CODES  # noqa: PT017
        assert problem.at == ".metadata"  # noqa: PT017


def test_a_shared_list_of_pieces_is_counted_each_time() -> None:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([0]))
    entry = TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size([0]), [chunk] * 5000)
    document = Metadata({str(number): entry for number in range(5000)}, None, {}, None, None)
    with pytest.raises(UcpError) as caught:
        read_metadata(pickle.dumps(document), ".metadata")
    assert caught.value.code == "UCP-E-LIMIT"


def header(tmp_path: Path, document: object, data: bytes) -> Any:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return read_header(SourceFiles(tmp_path), "x.safetensors")


def entry(start: int, stop: int, **changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [(stop - start) // 4], "data_offsets": [start, stop], **changes}


def test_a_good_header(tmp_path: Path) -> None:
    found = header(tmp_path, {"b": entry(0, 8), "a": entry(8, 12), "__metadata__": {"x": "y"}}, bytes(12))
    assert found.metadata == {"x": "y"}
    assert (found.entries["b"].shape, found.entries["b"].location.length) == ((2,), 8)
    assert found.entries["a"].location.start == found.entries["b"].location.start + 8


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"[]",
        b'{"a": 1, "a": 1}',
        b"[" * 100000,
        {"a": 5},
        {"a": entry(0, 8)},  # 4 bytes more than the header counts on
        {"a": entry(0, 16)},
        {"a": entry(4, 12)},
        {"a": entry(0, 8), "b": entry(4, 12)},
        {"a": entry(0, 12, shape=[2])},
        {"a": entry(0, 12, shape=[-3])},
        {"a": entry(0, 12, shape=[True, 3])},
        {"a": entry(0, 12, shape=None)},
        {"a": entry(0, 12, data_offsets=[0])},
        {"a": entry(0, 12), "__metadata__": {"x": 1}},
        {"a": entry(0, 12), "__metadata__": 1},
    ],
)
def test_bad_headers(tmp_path: Path, document: object) -> None:
    with pytest.raises(UcpError) as caught:
        header(tmp_path, document, bytes(12))
    assert (caught.value.code, caught.value.at) == ("UCP-E-SOURCE", "x.safetensors")


def test_headers_with_other_problems(tmp_path: Path) -> None:
    with pytest.raises(UcpError) as caught:
        header(tmp_path, {"a": entry(0, 12, dtype="F9")}, bytes(12))
    assert caught.value.code == "UCP-E-DTYPE"
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 7 + b"\x00" * 9)
    with pytest.raises(UcpError) as caught:
        read_header(SourceFiles(tmp_path), "x.safetensors")
    assert caught.value.code == "UCP-E-LIMIT"
    (tmp_path / "x.safetensors").write_bytes(b"1234")
    with pytest.raises(UcpError):
        read_header(SourceFiles(tmp_path), "x.safetensors")


def squeezed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def test_what_a_planner_keeps_is_a_path_where_it_spells_the_key() -> None:
    kept: dict[str, Any] = {"a.0.b": ("a", 0, "b"), "c.d": ("x", "d"), "e.f": "e.f", "g": ("g", None)}
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    entry = TensorStorageMetadata(TensorProperties(dtype=torch.uint8), torch.Size([2]), [chunk])
    places = {MetadataIndex(key, chunk.offsets): _StorageInfo("__0_0.distcp", 0, 64) for key in kept}
    document = Metadata(dict.fromkeys(kept, entry), kept, places, StorageMeta(Path("/a"), "save"), "1.0.0")
    catalogue = read_metadata(pickle.dumps(document), ".metadata")
    paths = {key: tensor.path for key, tensor in catalogue.tensors.items()}
    assert paths == {"a.0.b": ("a", 0, "b"), "c.d": None, "e.f": None, "g": None}


@pytest.mark.parametrize("version", ["2.0.0", "11.0", ""])
def test_metadata_of_another_version_are_refused(version: str) -> None:
    document = Metadata({}, {}, {}, StorageMeta(Path("/a"), "save"), version)
    with pytest.raises(UcpError, match="are not known") as caught:
        read_metadata(pickle.dumps(document), ".metadata")
    assert (caught.value.code, caught.value.at) == ("UCP-E-SOURCE", ".metadata")


def test_no_byte_beyond_an_item_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with open_range(tmp_path / "file", 2, 4, "item") as in_file:
        for source in (in_file, MemoryRange(b"2345", "item")):
            assert (source.read(0, 4), source.read(3, 1), source.read(4, 0)) == (b"2345", b"5", b"")
            for offset, count in ((0, 5), (4, 1), (3, 2), (-1, 2), (5, 0)):
                with pytest.raises(UcpError) as caught:
                    source.read(offset, count)
                assert (caught.value.code, caught.value.at) == ("UCP-E-SOURCE", "item")
                with pytest.raises(UcpError, match="UCP-E-SOURCE"):
                    source.read_into(offset, memoryview(bytearray(count)))


@given(st.binary(max_size=2000), st.integers(0, 2000))
def test_compressed_items_come_back_within_the_limit(data: bytes, limit: int) -> None:
    source = MemoryRange(squeezed(data), "item")

    def run() -> bytes:
        plain = decompressed(source, ("stream.zstd/1",), limit)
        return plain.read(0, plain.size)

    if len(data) <= limit:
        assert run() == data
    else:
        with pytest.raises(UcpError) as caught:
            run()
        assert caught.value.code == "UCP-E-LIMIT"


def test_a_bomb_is_stopped_early() -> None:
    bomb = squeezed(bytes(1 << 28))
    assert len(bomb) < 1 << 16
    with pytest.raises(UcpError) as caught:
        decompressed(MemoryRange(bomb, "item"), ("stream.zstd/1",), 1 << 20)
    assert caught.value.code == "UCP-E-LIMIT"


@pytest.mark.parametrize(
    ("make", "transform"),
    [
        (lambda data: data[:-1], "stream.zstd/1"),
        (lambda data: b"", "stream.zstd/1"),
        (lambda data: b"xxxx" + data, "stream.zstd/1"),
        (lambda data: data, "stream.zstd/2"),
        (lambda data: data, "stream.lz4/1"),
        (lambda data: data, ""),
    ],
)
def test_transforms_that_cannot_be_undone(make: Callable[[bytes], bytes], transform: str) -> None:
    with pytest.raises(UcpError) as caught:
        decompressed(MemoryRange(make(squeezed(b"x" * 100)), "item"), (transform,), 1000)
    assert (caught.value.code, caught.value.at) == ("UCP-E-SOURCE", "item")
