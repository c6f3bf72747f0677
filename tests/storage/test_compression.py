"""Compressors: round trips, and decoders that never produce more or less than the chunk (SPEC 16.2)."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from functools import partial
from unittest.mock import patch

import numcodecs
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import BLOSC, GZIP, MIB, ZSTD, compressors, result_or_refusal
from ucpformat.errors import UcpError
from ucpformat.model.compressor import Compressor
from ucpformat.storage.compression import compress, decompress


@given(compressors(), st.binary(min_size=1, max_size=2000))
def test_what_was_compressed_is_decompressed(compressor: Compressor, data: bytes) -> None:
    encoded = compress(compressor, memoryview(data))
    assert bytes(decompress(compressor, encoded, len(data), at="x")) == data


@pytest.mark.parametrize("compressor", [GZIP, ZSTD, BLOSC])
def test_equal_data_are_equal_bytes(compressor: Compressor) -> None:
    """Whenever they are compressed: no time of day is written."""
    data = memoryview(bytes(range(200)))
    with patch("time.time", return_value=1e9):
        before = compress(compressor, data)
    assert compress(compressor, data) == before


@given(compressors(), st.binary(min_size=1, max_size=300), st.sampled_from([-1, 1, 5, 10_000]))
def test_another_size_is_refused(compressor: Compressor, data: bytes, off: int) -> None:
    """UCP-R-027."""
    size = max(0, len(data) + off)
    with pytest.raises(UcpError) as refusal:
        decompress(compressor, compress(compressor, memoryview(data)), size, at="x")
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-CODEC", "x")


@given(compressors(), st.binary(min_size=1, max_size=300), st.data())
def test_damaged_data_give_the_size_or_a_refusal(
    compressor: Compressor, data: bytes, draw: st.DataObject
) -> None:
    """Checksums find damage before a decoder sees it; a forger's data must not do harm either."""
    encoded = bytearray(compress(compressor, memoryview(data)))
    for _ in range(draw.draw(st.integers(1, 4))):
        encoded[draw.draw(st.integers(0, len(encoded) - 1))] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(encoded)))
    for content in (bytes(encoded), bytes(encoded[:cut]), bytes(encoded) + b"\0"):
        decode = partial(decompress, compressor, content, len(data), at="x")
        found = result_or_refusal(decode)
        if isinstance(found, UcpError):
            assert found.code == "UCP-E-CODEC"
        else:
            assert len(found) == len(data)


ZEROS = bytes(64 * MIB)


def gzip_of(level: int = 9) -> bytes:
    return gzip.compress(ZEROS, level)


@pytest.mark.parametrize(
    ("compressor", "bomb"),
    [
        pytest.param(GZIP, gzip_of(), id="gzip"),
        pytest.param(GZIP, gzip.compress(bytes(100)) + gzip_of(), id="gzip, second member"),
        pytest.param(GZIP, zlib.compress(bytes(100)), id="zlib is no gzip"),
        pytest.param(GZIP, b"", id="gzip, nothing"),
        pytest.param(ZSTD, zstandard.ZstdCompressor().compress(ZEROS), id="zstd, size stated"),
        pytest.param(
            ZSTD,
            zstandard.ZstdCompressor(write_content_size=False).compress(ZEROS),
            id="zstd, size not stated",
        ),
        pytest.param(
            ZSTD,
            zstandard.ZstdCompressor().compress(bytes(100)) + zstandard.ZstdCompressor().compress(ZEROS),
            id="zstd, second frame",
        ),
        pytest.param(ZSTD, b"\x50\x2a\x4d\x18" + bytes(20), id="zstd, skippable frame"),
        pytest.param(ZSTD, b"\x28\xb5\x2f\xfd\xe0", id="zstd, cut in the header"),
        pytest.param(ZSTD, b"", id="zstd, nothing"),
        pytest.param(BLOSC, numcodecs.Blosc("lz4").encode(ZEROS), id="blosc"),
        pytest.param(BLOSC, b"", id="blosc, nothing"),
    ],
)
def test_bombs_take_no_memory(compressor: Compressor, bomb: bytes) -> None:
    """UCP-R-027, UCP-S-002: 64 MiB from a few bytes, where 100 are expected."""
    tracemalloc.start()
    with pytest.raises(UcpError) as refusal:
        decompress(compressor, bomb, 100, at="x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refusal.value.code == "UCP-E-CODEC"
    assert peak < MIB


def test_a_blosc_header_that_lies_is_refused() -> None:
    """UCP-R-027: the sizes in the header are compared with the chunk's before anything is decoded."""
    encoded = bytearray(compress(BLOSC, memoryview(bytes(range(100)))))
    encoded[4:8] = (2**31 - 1).to_bytes(4, "little")
    with pytest.raises(UcpError, match="UCP-E-CODEC"):
        decompress(BLOSC, bytes(encoded), 100, at="x")


@pytest.mark.parametrize("size", [1, 255, 256, 65_791, 65_792, 70_000])
def test_every_width_of_a_stated_size_is_read(size: int) -> None:
    for stated in (True, False):
        data = zstandard.ZstdCompressor(write_content_size=stated, write_checksum=True).compress(bytes(size))
        assert bytes(decompress(ZSTD, data, size, at="x")) == bytes(size)
        with pytest.raises(UcpError, match="UCP-E-CODEC"):
            decompress(ZSTD, data, size + 1, at="x")
