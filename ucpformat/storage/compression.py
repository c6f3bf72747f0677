"""Compressors: Zarr v3's ``gzip``, ``zstd`` and ``blosc``, decoded within a bound (SPEC section 16.2).

Encoders are numcodecs', loaded at the first chunk that needs them, and zlib's. Decoders never produce more than the
chunk: what a compressed chunk says of its own size is compared with the chunk's before anything is allocated.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.errors import error

if TYPE_CHECKING:
    from ucpformat.model.compressor import Compressor

__all__ = ["compress", "decompress"]

_ZSTD_SIZE_BYTES = (0, 2, 4, 8)
_RLE = 1
"""The kind of a block that is one byte, repeated."""


def compress(compressor: Compressor, data: memoryview) -> bytes:
    """Encode the raw bytes of one chunk."""
    options = compressor.configuration
    match compressor.name:
        case "gzip":
            # Not numcodecs', which writes the time of day: equal chunks shall be equal bytes.
            encoder = zlib.compressobj(options["level"], wbits=31)  # type: ignore[arg-type]
            return encoder.compress(data) + encoder.flush()
        case "zstd":
            from numcodecs import zstd

            return bytes(zstd.compress(data, level=options["level"], checksum=options["checksum"]))
        case _:
            from numcodecs import blosc

            return bytes(
                blosc.Blosc(
                    cname=options["cname"],
                    clevel=options["clevel"],
                    shuffle=getattr(blosc, str(options["shuffle"]).upper()),
                    blocksize=options["blocksize"],
                    typesize=options.get("typesize", 1),
                ).encode(data)
            )


def decompress(compressor: Compressor, data: bytes, size: int, *, at: str) -> memoryview:
    """Decode one chunk to exactly ``size`` bytes.

    Raises:
        IntegrityError: ``UCP-E-CODEC`` if the data do not decode, or to another size.
    """
    try:
        match compressor.name:
            case "gzip":
                return _gunzip(data, size)
            case "zstd":
                return _unzstd(data, size)
            case _:
                return _unblosc(data, size)
    except (RuntimeError, ValueError, zlib.error) as reason:
        raise error(
            "UCP-E-CODEC", f"the chunk does not decode with {compressor.name}: {reason}", at=at
        ) from reason


def _gunzip(data: bytes, size: int) -> memoryview:
    decoder = zlib.decompressobj(wbits=31)
    # One byte more than allowed tells too much from enough.
    decoded = decoder.decompress(data, size + 1)
    if len(decoded) != size or not decoder.eof or decoder.unused_data:
        raise ValueError(f"not one gzip member of {size} bytes")
    return memoryview(decoded)


def _unzstd(data: bytes, size: int) -> memoryview:
    from numcodecs import zstd

    stated, length = _zstd_frame(data)
    if stated is not None and stated != size:
        raise ValueError(f"the frame states {stated} bytes, the chunk has {size}")
    if length != len(data):
        raise ValueError(f"the frame ends at byte {length} of {len(data)}")
    decoded = np.empty(size, np.uint8)
    zstd.decompress(data, decoded)
    return decoded.data


def _zstd_frame(data: bytes) -> tuple[int | None, int]:
    """Return what a frame of RFC 8878 states as its size (None: nothing), and how many bytes it takes itself."""
    if len(data) < 6 or data[:4] != b"\x28\xb5\x2f\xfd":
        raise ValueError("not a Zstandard frame")
    descriptor = data[4]
    single_segment = bool(descriptor & 0x20)
    width = _ZSTD_SIZE_BYTES[descriptor >> 6] or (1 if single_segment else 0)
    start = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    stated = int.from_bytes(data[start : start + width], "little") + (256 if width == 2 else 0)
    at, is_last = start + width, False
    while not is_last:
        header = int.from_bytes(data[at : at + 3], "little")
        if at + 3 > len(data):
            raise ValueError("the frame does not end")
        is_last = bool(header & 1)
        at += 3 + (1 if header >> 1 & 3 == _RLE else header >> 3)
    return stated if width else None, at + (4 if descriptor & 4 else 0)


def _unblosc(data: bytes, size: int) -> memoryview:
    from numcodecs import blosc

    # Header of 16 bytes: four bytes of versions and flags, then nbytes, blocksize and cbytes.
    if len(data) < 16:
        raise ValueError("not a blosc buffer")
    stated, stored = int.from_bytes(data[4:8], "little"), int.from_bytes(data[12:16], "little")
    if stated != size or stored != len(data):
        raise ValueError(f"the header states {stated} bytes in {stored}, the chunk has {size} in {len(data)}")
    decoded = np.empty(size, np.uint8)
    blosc.decompress(data, decoded)
    return decoded.data
