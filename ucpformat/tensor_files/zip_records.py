"""The directory of a zip archive that lies inside a file: names, offsets and checksums of its records.

Source: PKWARE APPNOTE 6.3 (end record, ZIP64, central directory, local headers); torch stores records without
compression, so that a record is a range of bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from zlib_ng import zlib_ng

from ucpformat.errors import UcpError, error
from ucpformat.storage.host_memory import Scratch
from ucpformat.tensor_files.byte_source import ByteSource

__all__ = ["ZipRecord", "check_crc", "crc_of", "read_record", "record_start", "require_crc", "zip_records"]

_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_MAX_DIRECTORY = 64 << 20
_BLOCK = 256 << 10  # stays in the cache of a core between being read and being looked at


_scratch = Scratch()


@dataclass(frozen=True, slots=True)
class ZipRecord:
    """One stored record: ``header`` is where its local header starts, ``length`` the bytes of its data."""

    name: str
    header: int
    length: int
    crc: int


def _damaged(source: ByteSource, message: str) -> UcpError:
    return error("UCP-E-SOURCE", f"the torch.save archive is damaged: {message}", at=source.at)


def zip_records(source: ByteSource) -> dict[str, ZipRecord]:
    """Return the records of the archive that ``source`` is, from end to end. Raises ``UCP-E-SOURCE``."""
    if source.size < _END.size:
        raise _damaged(source, "it is too short")
    end = source.size - _END.size
    signature, _, _, _, count, size, offset, comment = _END.unpack(source.read(end, _END.size))
    if signature != b"PK\x05\x06" or comment:
        raise _damaged(source, "it does not end with an end record")
    if count == 0xFFFF or size == 0xFFFFFFFF or offset == 0xFFFFFFFF:
        count, size, offset, end = _zip64_end(source, end)
    if offset + size > end or size > _MAX_DIRECTORY:
        raise _damaged(source, "its directory does not fit into it")
    directory = source.read(offset, size)
    records: dict[str, ZipRecord] = {}
    position = filled = 0
    for _ in range(count):
        if position + _ENTRY.size > size:
            raise _damaged(source, "its directory is truncated")
        record, position = _entry(source, directory, position)
        if record.name in records or record.header + _LOCAL.size + record.length > offset:
            raise _damaged(source, f"record {record.name!r} is stored twice or leaves the archive")
        records[record.name] = record
        filled += _LOCAL.size + record.length
        if filled > offset:  # small as the file is, checking all of them could take for ever
            raise _damaged(source, f"record {record.name!r} lies on top of another")
    return records


def _zip64_end(source: ByteSource, end: int) -> tuple[int, int, int, int]:
    start = end - _LOCATOR.size
    if start < 0:
        raise _damaged(source, "its ZIP64 locator is missing")
    signature, _, record, _ = _LOCATOR.unpack(source.read(start, _LOCATOR.size))
    if signature != b"PK\x06\x07" or record + _END64.size > start:
        raise _damaged(source, "its ZIP64 locator is missing")
    fields = _END64.unpack(source.read(record, _END64.size))
    if fields[0] != b"PK\x06\x06":
        raise _damaged(source, "its ZIP64 end record is missing")
    return fields[7], fields[8], fields[9], record


def _entry(source: ByteSource, directory: bytes, position: int) -> tuple[ZipRecord, int]:
    fields = _ENTRY.unpack_from(directory, position)
    signature, _, _, flags, method = fields[:5]
    crc, stored, length, name_size, extra_size, comment_size = fields[7:13]
    header = fields[16]
    start = position + _ENTRY.size
    stop = start + name_size + extra_size + comment_size
    if signature != b"PK\x01\x02" or stop > len(directory):
        raise _damaged(source, "its directory is malformed")
    try:
        name = directory[start : start + name_size].decode("utf-8")
    except UnicodeDecodeError:
        raise _damaged(source, "a record's name is not text") from None
    extra = directory[start + name_size : start + name_size + extra_size]
    length, stored, header = _zip64_fields(source, extra, [length, stored, header])
    if "/code/" in name or name.endswith(("/constants.pkl", "/.debug_pkl")):
        raise error(
            "UCP-E-SOURCE",
            "a TorchScript archive of torch.jit.save: a program, which is not run here; load it with torch.jit.load "
            "and save its state_dict() with torch.save",
            at=source.at,
        )
    if method != 0 or flags & 1 or stored != length:
        raise _damaged(
            source, f"record {name!r} is compressed or encrypted; torch stores records as they are"
        )
    return ZipRecord(name, header, length, crc), stop


def _zip64_fields(source: ByteSource, extra: bytes, values: list[int]) -> list[int]:
    if 0xFFFFFFFF not in values:
        return values
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, position)
        body = extra[position + 4 : position + 4 + size]
        if kind == 1 and len(body) >= 8 * values.count(0xFFFFFFFF):
            wide = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            return [next(wide) if value == 0xFFFFFFFF else value for value in values]
        position += 4 + size
    raise _damaged(source, "a record has no ZIP64 sizes")


def record_start(source: ByteSource, record: ZipRecord) -> int:
    """Return where the record's data start in ``source``. Raises ``UCP-E-SOURCE``."""
    fields = _LOCAL.unpack(source.read(record.header, _LOCAL.size))
    start = record.header + _LOCAL.size + fields[9] + fields[10]
    if fields[0] != b"PK\x03\x04" or start + record.length > source.size:
        raise _damaged(source, f"record {record.name!r} has no header")
    return int(start)


def read_record(source: ByteSource, record: ZipRecord, limit: int) -> bytes:
    """Return the data of a small record. Raises ``UCP-E-SOURCE`` and ``UCP-E-LIMIT``."""
    if record.length > limit:
        raise error("UCP-E-LIMIT", f"record {record.name!r} has more than {limit} bytes", at=source.at)
    return source.read(record_start(source, record), record.length)


def check_crc(source: ByteSource, record: ZipRecord) -> None:
    """Compare the record's data with its CRC-32. Raises ``UCP-E-SOURCE``.

    torch writes the checksum (unless ``torch.serialization.set_crc32_options(False)``, which writes zeros
    everywhere) but never looks at it when it loads.
    """
    require_crc(source, record, crc_of(source, record_start(source, record), record.length))


def crc_of(source: ByteSource, start: int, length: int) -> int:
    """Return CRC-32 of so many bytes. Raises ``UCP-E-SOURCE`` where they do not all exist."""
    crc = 0
    for offset in range(0, length, _BLOCK):
        part = _scratch.take(_BLOCK)[: min(length - offset, _BLOCK)].data
        source.read_into(start + offset, part)
        crc = zlib_ng.crc32(part, crc)
    return crc


def require_crc(source: ByteSource, record: ZipRecord, crc: int) -> None:
    """Refuse data that have another CRC-32 than the record. Raises ``UCP-E-SOURCE``."""
    if crc != record.crc:
        raise _damaged(source, f"the bytes of record {record.name!r} do not match their checksum")
