from __future__ import annotations

import io
import pickle
import struct
import zipfile
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.conversion.formats.dcp.make import odd_objects
from tests.conversion.formats.dcp.stand_ins import stand_in
from ucpformat.errors import UcpError
from ucpformat.tensor_files.byte_source import MemoryRange, element_view, read_strided
from ucpformat.tensor_files.object_tree import Limits
from ucpformat.tensor_files.revive import revive
from ucpformat.tensor_files.tagged import encode
from ucpformat.tensor_files.torch_zip import TorchArchive

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


def of_zip64(data: bytes) -> bytes:
    """``data`` with the sizes of the ordinary end record masked, as in an archive of more than 4 GiB."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        count, start = len(old.namelist()), old.start_dir
    size = len(data) - 22 - start
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(data) - 22, 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:-22] + end64 + locator + end


def test_zip64_directory_is_read() -> None:
    assert archive(of_zip64(saved(torch.arange(4)))).tensor().shape == (4,)


def test_zip64_of_a_directory_is_missing_or_lies() -> None:
    data = of_zip64(saved(torch.arange(4)))
    for damaged in (
        data[-22:],  # no room for a locator
        data[:-42] + b"none" + data[-38:],
        data[:-42] + data[-42:-34] + struct.pack("<Q", len(data)) + data[-26:],  # behind the end
        data[:-98] + b"none" + data[-94:],
        data[:-50] + struct.pack("<Q", 1 << 63) + data[-42:],
        data[:-58] + struct.pack("<Q", 65 << 20) + data[-50:],
    ):
        with pytest.raises(UcpError, match="damaged") as caught:
            archive(damaged)
        assert (caught.value.code, caught.value.at) == ("UCP-E-SOURCE", "the file")


def fields(data: bytes) -> dict[str, tuple[int, int]]:
    """Where the fields of the archive's own structures lie, and how many bytes they have."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        found = {f"end {place}": (len(data) - 22 + place, 2) for place in (8, 10, 20)}
        found |= {f"end {place}": (len(data) - 22 + place, 4) for place in (0, 12, 16)}
        at = old.start_dir
        for info in old.infolist():
            entry = {8: 2, 10: 2, 16: 4, 20: 4, 24: 4, 28: 2, 30: 2, 32: 2, 42: 4, 46: 1}
            found |= {f"{info.filename} {place}": (at + place, width) for place, width in entry.items()}
            found |= {f"{info.filename} local {n}": (info.header_offset + n, 2) for n in (0, 26, 28)}
            at += 46 + len(info.filename) + len(info.extra) + len(info.comment)
    return found


def with_field(data: bytes, name: str, value: int) -> bytes:
    place, width = fields(data)[name]
    return data[:place] + value.to_bytes(width, "little") + data[place + width :]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("end 0", 0, "does not end with an end record"),
        ("end 20", 5, "does not end with an end record"),
        ("end 10", 100, "directory is truncated"),
        ("end 16", 1 << 30, "directory does not fit"),
        ("end 16", 0, "directory is malformed"),
        ("archive/data.pkl 8", 1, "encrypted"),
        ("archive/data.pkl 10", 8, "compressed"),
        ("archive/data.pkl 20", 1, "compressed"),
        ("archive/data.pkl 28", 0xFFFF, "directory is malformed"),
        ("archive/data.pkl 42", 0xFFFFFFFE, "leaves the archive"),
        ("archive/data.pkl 42", 0xFFFFFFFF, "no ZIP64 sizes"),
        ("archive/data.pkl 42", 1, "no header"),
        ("archive/data.pkl 46", 0xFF, "name is not text"),
        ("archive/data.pkl local 0", 0, "no header"),
        ("archive/data.pkl local 28", 0xFFFF, "no header"),
        ("archive/data.pkl 16", 1, "do not match their checksum"),
    ],
)
def test_a_directory_that_lies(name: str, value: int, said: str) -> None:
    with pytest.raises(UcpError, match=said) as caught:
        archive(with_field(saved(torch.arange(4)), name, value)).tensor()
    assert (caught.value.code, caught.value.at) == ("UCP-E-SOURCE", "the file")


def test_records_on_top_of_each_other_are_refused() -> None:
    """A small file whose records all are its one large storage would take as long to check as they are many."""
    data = saved(torch.zeros(100_000))
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        (large,) = (info for info in old.infolist() if info.filename == "archive/data/0")
        start, stop = old.start_dir, data.index(b"PK\6\6")  # torch adds a ZIP64 end record, always
    entry = struct.Struct("<4s6H3I5H2I")
    names = [f"archive/data/{number}" for number in range(1, 50)]
    size, place = large.file_size, large.header_offset
    copies = b"".join(
        entry.pack(b"PK\1\2", 0, 0, 0, 0, 0, 0, large.CRC, size, size, len(name), 0, 0, 0, 0, 0, place)
        + name.encode()
        for name in names
    )
    directory = data[start:stop] + copies
    count = struct.unpack_from("<H", data, len(data) - 12)[0] + len(names)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), start, 0)
    with pytest.raises(UcpError, match="on top of another") as caught:
        archive(data[:start] + directory + end)
    assert (caught.value.code, caught.value.at) == ("UCP-E-SOURCE", "the file")


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


interesting = st.sampled_from(
    [0, 1, 2, 8, 21, 46, 255, 0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF]
) | st.integers(0, 2000)


@given(st.data())
def test_a_changed_directory_is_refused_or_harmless(data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from([SAMPLE, TENSOR, rewritten(SAMPLE, {}, force_zip64=True)]))
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(fields(SAMPLE)) if raw is SAMPLE else sorted(fields(TENSOR))))
        place, width = fields(SAMPLE if raw is SAMPLE else TENSOR)[name]
        value = data.draw(interesting) % 256**width
        raw = raw[:place] + value.to_bytes(width, "little") + raw[place + width :]
    try:
        opened = archive(raw)
        opened.check()
        opened.read_object(LIMITS)
    except UcpError as problem:
        assert problem.code in CODES  # noqa: PT017
        assert problem.at == "the file"  # noqa: PT017


ODD = saved(odd_objects())


@given(st.data())
def test_a_changed_pickle_under_good_checksums_is_refused_or_read(data: st.DataObject) -> None:
    """Whoever changes the pickle can write its checksum anew."""
    with zipfile.ZipFile(io.BytesIO(ODD)) as old:
        content = bytearray(old.read("archive/data.pkl"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["byte", "move", "drop"])):
            case "byte":
                content[place] = data.draw(st.integers(0, 255))
            case "move":  # a part of the pickle in another place: good opcodes, other arguments
                part = content[place : place + data.draw(st.integers(1, 60))]
                into = data.draw(st.integers(0, len(content)))
                content[into:into] = part
            case _:
                del content[place : place + data.draw(st.integers(1, 20))]
                content = content or bytearray(b".")
    opened = archive(rewritten(ODD, {"archive/data.pkl": bytes(content)}))
    try:
        value = opened.read_object(LIMITS)
        encode(value, at="key")
    except UcpError as problem:
        assert problem.code in (*CODES, "UCP-E-OBJECT", "UCP-E-VALUE")  # noqa: PT017
    else:
        revive(value, "key")


def test_an_object_that_runs_code_is_refused_before_it_runs(tmp_path: Any) -> None:
    import os

    mark = tmp_path / "ran"
    with pytest.raises(UcpError) as caught:
        archive(saved({"a": [Rebuild(os.mkdir, str(mark))]})).read_object(LIMITS)
    assert caught.value.code == "UCP-E-PICKLE"
    assert caught.value.at == "the file"
    assert not mark.exists()
    assert pickle.loads(pickle.dumps(1)) == 1
