from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.frameworks.torch_dcp.stand_ins import stand_in
from ucpformat.errors import UcpError
from ucpformat.frameworks.torch_dcp.byte_source import MemoryRange
from ucpformat.frameworks.torch_dcp.object_tree import Limits
from ucpformat.frameworks.torch_dcp.strided import element_view, read_strided
from ucpformat.frameworks.torch_dcp.torch_zip import TorchArchive

CODES = ("UCP-E-SOURCE", "UCP-E-PICKLE", "UCP-E-LIMIT", "UCP-E-DTYPE")
LIMITS = Limits(pickle_bytes=1 << 20, nodes=1 << 16)


def saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def archive(data: bytes) -> TorchArchive:
    return TorchArchive(MemoryRange(data, "the file"))


def rewritten(data: bytes, change: dict[str, bytes | None], **options: Any) -> bytes:
    """The archive with records replaced, dropped or added."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        names = [*old.namelist(), *(name for name in change if name not in old.namelist())]
        for name in names:
            content = change[name] if name in change else old.read(name)
            if content is not None:
                with new.open(zipfile.ZipInfo(name), "w", **options) as record:
                    record.write(content)
    return stream.getvalue()


def test_a_tensor_is_located_not_read() -> None:
    data = saved(torch.arange(6, dtype=torch.float64).reshape(2, 3).t())
    stored = archive(data).tensor()
    assert (stored.dtype, stored.shape, stored.strides, stored.byteorder) == (
        "float64",
        (3, 2),
        (1, 3),
        "little",
    )
    assert data[stored.start : stored.start + 48] == np.arange(6, dtype="<f8").tobytes()


def test_zip64_sizes_are_read() -> None:
    data = rewritten(saved({"a": torch.arange(4)}), {}, force_zip64=True)
    assert archive(data).read_object(LIMITS) == {"a": stand_in(torch.arange(4))}


def test_zip64_directory_is_read() -> None:
    # The sizes of the ordinary end record are masked, as in an archive of more than 4 GiB.
    data = saved(torch.arange(4))
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        count, start = len(old.namelist()), old.start_dir
    size = len(data) - 22 - start
    import struct

    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(data) - 22, 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    assert archive(data[:-22] + end64 + locator + end).tensor().shape == (4,)


def test_big_endian_storages() -> None:
    value = {"a": torch.tensor([1.5, -2.0]), "b": torch.tensor([1 + 2j]), "c": torch.tensor([True, False])}
    data = saved(value)
    change: dict[str, bytes | None] = {"archive/byteorder": b"big"}
    for index, (name, width) in enumerate({"a": 4, "b": 4, "c": 1}.items()):
        raw = np.frombuffer(stand_in(value[name]).data, dtype=f"u{width}")
        change[f"archive/data/{index}"] = raw.byteswap().tobytes()
    assert archive(rewritten(data, change)).read_object(LIMITS) == stand_in(value)


def test_checksums_find_a_flipped_bit_that_torch_loads() -> None:
    data = bytearray(saved(torch.zeros(100)))
    data[archive(bytes(data)).tensor().start + 17] ^= 1
    torch.load(io.BytesIO(bytes(data)), weights_only=True)
    with pytest.raises(UcpError) as caught:
        archive(bytes(data)).check()
    assert caught.value.code == "UCP-E-SOURCE"


def test_archives_without_checksums_are_read() -> None:
    torch.serialization.set_crc32_options(False)
    try:
        data = saved({"a": torch.ones(3)})
    finally:
        torch.serialization.set_crc32_options(True)
    archive(data).check()
    assert archive(data).read_object(LIMITS) == {"a": stand_in(torch.ones(3))}


def test_the_old_format_is_named() -> None:
    stream = io.BytesIO()
    torch.save(torch.ones(2), stream, _use_new_zipfile_serialization=False)
    with pytest.raises(UcpError, match="old format") as caught:
        archive(stream.getvalue())
    assert caught.value.code == "UCP-E-SOURCE"


@pytest.mark.parametrize(
    "change",
    [
        {"archive/data.pkl": None},
        {"archive/data/0": None},
        {"archive/data/0": b"short"},
        {"archive/byteorder": b"middle"},
        {"other/data.pkl": b"N."},
    ],
)
def test_incomplete_archives(change: dict[str, bytes | None]) -> None:
    with pytest.raises(UcpError) as caught:
        archive(rewritten(saved(torch.ones(4)), change)).tensor()
    assert caught.value.code in CODES
    assert caught.value.at == "the file"


def test_compressed_records_are_refused() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("archive/data.pkl", b"\x80\x02N.")
    with pytest.raises(UcpError, match="compressed"):
        archive(stream.getvalue())


def test_an_item_that_is_not_a_tensor() -> None:
    with pytest.raises(UcpError, match="not a tensor"):
        archive(saved([1])).tensor()


class Rebuild:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (5,), (1,)),
        (1, (4,), (1,)),
        (-1, (2,), (1,)),
        (0, (2, 2), (1,)),
        (0, (2,), (-1,)),
        (0, (2**62,), (2**62,)),
    ],
)
def test_tensors_that_leave_their_storage(
    offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    storage = torch.ones(4).untyped_storage()
    bad = Rebuild(torch._utils._rebuild_tensor_v3, storage, offset, size, stride, False, {}, torch.float32)
    with pytest.raises(UcpError) as caught:
        archive(saved(bad)).tensor()
    assert caught.value.code in ("UCP-E-SOURCE", "UCP-E-PICKLE")


def test_an_expanded_tensor_inside_an_object_is_bounded() -> None:
    value = {"a": torch.ones(1).expand(1000, 1000, 1000)}
    with pytest.raises(UcpError) as caught:
        archive(saved(value)).read_object(LIMITS)
    assert caught.value.code == "UCP-E-LIMIT"


@pytest.mark.parametrize("value", [torch.eye(3).to_sparse(), torch.ones(2, dtype=torch.complex64).conj()])
def test_tensors_of_other_kinds_are_refused(value: torch.Tensor) -> None:
    with pytest.raises(UcpError) as caught:
        archive(saved(value)).tensor()
    assert caught.value.code == "UCP-E-PICKLE"


def test_packed_data_types_are_refused() -> None:
    value = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(UcpError) as caught:
        archive(saved(value)).tensor()
    assert caught.value.code == "UCP-E-DTYPE"


SAMPLE = saved({"a": torch.arange(5), "b": ["text", 1.5, np.float32(1)]})
TENSOR = saved(torch.arange(20).reshape(4, 5))


@given(st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from([SAMPLE, TENSOR])))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    for _ in range(data.draw(st.integers(1, 4))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        opened = archive(bytes(raw))
        opened.read_object(LIMITS)
        stored = opened.tensor()
        out = np.zeros(20 * 8, dtype=np.uint8)
        if (stored.dtype, stored.shape) == ("int64", (4, 5)):
            read_strided(
                MemoryRange(bytes(raw), "x"), stored.start, stored.strides, element_view(out, 8, (4, 5))
            )
    except UcpError as problem:
        assert problem.code in CODES  # noqa: PT017


def test_an_object_that_runs_code_is_refused_before_it_runs(tmp_path: Any) -> None:
    import os

    mark = tmp_path / "ran"
    with pytest.raises(UcpError) as caught:
        archive(saved({"a": [Rebuild(os.mkdir, str(mark))]})).read_object(LIMITS)
    assert caught.value.code == "UCP-E-PICKLE"
    assert caught.value.at == "the file"
    assert not mark.exists()
    assert pickle.loads(pickle.dumps(1)) == 1
