"""Where chunks lie and what they hold: segments, containers, checksums, codecs, padding (SPEC 16)."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

from ucp_conformance.oracle.bytes_of import (
    Grid,
    block_checksums,
    boxes_of,
    crc32c,
    fill_value,
    linear,
    paste,
    unused_bits,
)
from ucp_conformance.oracle.chunk_table import OWN_OBJECT, Segment, Table
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.store import Store

__all__ = ["SlotChunks", "UndecodableError", "array_document"]

GROUP_DOCUMENT = b'{"zarr_format":3,"node_type":"group","attributes":{}}'


class UndecodableError(Exception):
    """A compressor that the oracle does not have."""


@dataclass(frozen=True)
class SlotChunks:
    """A slot with its grid and its rows of the table."""

    atom: dict[str, Any]
    name: str
    slot: dict[str, Any]
    item: int
    grid: Grid
    rows: tuple[tuple[Segment, ...], ...]
    table_key: str

    @property
    def folder(self) -> str:
        """Prefix of the slot's keys in storage plain."""
        return f"atoms/{self.atom['key']}/{self.name}"

    @property
    def whole(self) -> int:
        """Bytes of an unclipped chunk."""
        return self.item * math.prod(self.grid.chunk)

    def boxes(self, number: int, table: Table) -> list[tuple[tuple[int, ...], tuple[int, ...]] | None]:
        """Return the box of every segment of a chunk."""
        n = len(self.grid.shape)
        found: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = []
        for segment in self.rows[number]:
            words = table.words[segment.box - 1 : segment.box - 1 + 2 * n] if segment.box else None
            found.append(None if words is None else (tuple(words[:n]), tuple(words[n:])))
        return found

    def check(self, number: int, position: tuple[int, ...], table: Table) -> None:
        """Check UCP-D-101 to UCP-D-104, UCP-D-109, UCP-D-137 to UCP-D-140 for one chunk."""

        def wrong(why: str) -> RefusalError:
            return RefusalError("UCP-E-SEGMENT", self.table_key, why)

        segments, boxes = self.rows[number], self.boxes(number, table)
        if not segments:
            return
        _, clipped = self.grid.box(position)
        plain = segments[0].container == OWN_OBJECT
        if len(segments) == 1 and boxes[0] is None:
            expected = self.whole + 4 if plain else self.item * math.prod(clipped)
            if "compressor" not in self.slot and segments[0].length != expected:
                raise wrong("length of a segment")
            return
        if "compressor" in self.slot or None in boxes:
            raise wrong("several segments, one of them without a box or compressed")
        seen: set[tuple[int, ...]] = set()
        layers: dict[tuple[tuple[int, ...], tuple[int, ...]], list[set[int]]] = {}
        offsets = []
        before = None
        for segment, box in zip(segments, boxes, strict=True):
            offset, shape = box or ((), ())
            if 0 in shape or any(o + s > d for o, s, d in zip(offset, shape, clipped, strict=True)):
                raise wrong("a box is empty or leaves the chunk")
            if segment.rows and math.prod(shape) < 2:
                raise wrong("rows of one element")
            rows = set(table.rows_of(segment, shape))
            count = next((extent for extent in shape if extent != 1), 1)
            if segment.length != self.item * math.prod(shape) // count * len(rows):
                raise wrong("length of a segment")
            offsets.append(offset)
            if box == before:
                if not segment.rows:
                    raise wrong("a layer without rows behind another")
                layers[offset, shape].append(rows)
                continue
            before = box
            layers[offset, shape] = [rows]
            for index in boxes_of(offset, shape):
                if index in seen:
                    raise wrong("boxes overlap")
                seen.add(index)
        if len(seen) != math.prod(clipped):
            raise wrong("boxes leave a gap")
        if offsets != sorted(offsets):
            raise wrong("boxes are not sorted")
        for (_, shape), found in layers.items():
            count = next((extent for extent in shape if extent != 1), 1)
            if len(found) > 32 or len(set[int]().union(*found)) != count:
                raise wrong("too many layers, or a row in none")

    def key(self, position: tuple[int, ...], segment: Segment, packs: list[dict[str, Any]]) -> str:
        """Return the key of the container of a segment."""
        if segment.container == OWN_OBJECT:
            return f"{self.folder}/{self.grid.key(position)}"
        return str(packs[segment.container]["key"])

    def stored(
        self, store: Store, position: tuple[int, ...], segment: Segment, packs: list[dict[str, Any]]
    ) -> bytes:
        """Return the verified stored bytes of a segment."""
        key = self.key(position, segment, packs)
        data = store.read(key)
        if segment.container == OWN_OBJECT and len(data) != segment.length:
            raise RefusalError("UCP-E-LENGTH", key)
        data = data[segment.offset : segment.offset + segment.length]
        if len(data) != segment.length:
            raise RefusalError("UCP-E-LENGTH", key)
        covered = data[:-4] if segment.container == OWN_OBJECT else data
        if block_checksums(covered) != list(segment.checksums):
            raise RefusalError("UCP-E-CHECKSUM", key)
        return data

    def logical(
        self, store: Store, number: int, position: tuple[int, ...], table: Table, packs: list[dict[str, Any]]
    ) -> bytes:
        """Return the clipped raw bytes of a chunk."""
        _offset, clipped = self.grid.box(position)
        size = self.item * math.prod(clipped)
        segments = self.rows[number]
        if not segments:
            key = f"{self.folder}/{self.grid.key(position)}"
            if not packs and store.size(key) is not None:
                raise RefusalError("UCP-E-LENGTH", key, "the chunk has a zero entry")
            return bytes(size)
        raw = bytearray(size)
        for segment, box in zip(segments, self.boxes(number, table), strict=True):
            data = self.stored(store, position, segment, packs)
            key = self.key(position, segment, packs)
            if box is not None:
                self.paste_rows(raw, clipped, table.rows_of(segment, box[1]), box, data)
                continue
            if segment.container == OWN_OBJECT:
                if crc32c(data[:-4]).to_bytes(4, "little") != data[-4:]:
                    raise RefusalError("UCP-E-CODEC", key, "the checksum of the codec crc32c")
                data = self.decoded(data[:-4], self.whole, key)
                if any(data[size:]):
                    raise RefusalError("UCP-E-PADDING", key, "elements beyond the shape")
                data = data[:size]
            else:
                data = self.decoded(data, size, key)
            raw[:] = data
        unused = unused_bits(self.slot["dtype"])
        if unused and any(byte & unused for byte in raw):
            raise RefusalError("UCP-E-PADDING", key, "unused bits")
        return bytes(raw)

    def paste_rows(
        self,
        raw: bytearray,
        clipped: tuple[int, ...],
        rows: list[int],
        box: tuple[tuple[int, ...], tuple[int, ...]],
        data: bytes,
    ) -> None:
        """Put rows of a box where they belong, one by one."""
        offset, shape = box
        dim = next((dim for dim, extent in enumerate(shape) if extent != 1), 0)
        size = self.item * math.prod(shape) // (shape[dim] if shape else 1)
        for number, row in enumerate(rows):
            where = (*offset[:dim], offset[dim] + row, *offset[dim + 1 :])
            one = (*shape[:dim], 1, *shape[dim + 1 :])
            paste(raw, self.item, clipped, where, one, data[number * size : (number + 1) * size])

    def decoded(self, data: bytes, size: int, key: str) -> bytes:
        """Return raw bytes of a whole chunk."""
        compressor = self.slot.get("compressor")
        if compressor is None:
            if len(data) != size:
                raise RefusalError("UCP-E-CODEC", key)
            return data
        if compressor["name"] != "gzip":
            raise UndecodableError(compressor["name"])
        try:
            stream = zlib.decompressobj(31)
            raw = stream.decompress(data, size + 1)
        except zlib.error as wrong:
            raise RefusalError("UCP-E-CODEC", key, str(wrong)) from None
        if len(raw) != size or not stream.eof or stream.unused_data:
            raise RefusalError("UCP-E-CODEC", key, "more or less than the chunk")
        return raw

    def place(self, position: tuple[int, ...]) -> int:
        """Return where the chunk begins in the logical bytes: it is one contiguous run."""
        return self.item * linear(self.grid.box(position)[0], self.grid.shape)


def array_document(slot: dict[str, Any], item: int, grid: Grid) -> bytes:
    """Return the derived zarr.json of a slot (SPEC 16.3)."""

    def numbers(extents: tuple[int, ...]) -> str:
        return "[" + ",".join(map(str, extents)) + "]"

    codecs = '{"name":"bytes"}' if item == 1 else '{"name":"bytes","configuration":{"endian":"little"}}'
    if "compressor" in slot:
        members = (
            f'"{name}":{_scalar(value)}'
            for name, value in sorted(slot["compressor"]["configuration"].items())
        )
        codecs += f',{{"name":"{slot["compressor"]["name"]}","configuration":{{{",".join(members)}}}}}'
    return (
        f'{{"zarr_format":3,"node_type":"array","shape":{numbers(grid.shape)},"data_type":"{slot["dtype"]}",'
        f'"chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":{numbers(grid.chunk)}}}}},'
        '"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},'
        f'"fill_value":{fill_value(slot["dtype"])},"codecs":[{codecs},{{"name":"crc32c"}}],"attributes":{{}}}}'
    ).encode()


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
