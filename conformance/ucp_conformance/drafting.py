"""A small writer of checkpoints whose every field can be bent before it is sealed.

Serves the generator of vectors, promoted cases, and the driver made of the oracle. Deterministic.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ucp_conformance.oracle.bytes_of import (
    ITEM_BYTES,
    Grid,
    block_checksums,
    content_digest,
    crc32c,
    cut,
    sha256,
)
from ucp_conformance.oracle.stored_chunks import GROUP_DOCUMENT, array_document

__all__ = [
    "AtomDraft",
    "Draft",
    "DraftPart",
    "LayerDraft",
    "SlotDraft",
    "TableDraft",
    "dump",
    "encode",
    "gzip",
]

Encoder = Callable[[Mapping[str, Any], bytes], bytes]
BLANK = "sha256:" + "0" * 64


def dump(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def gzip(compressor: Mapping[str, Any], raw: bytes) -> bytes:
    """Return the encoder of the compressor gzip, and of no other."""
    if compressor["name"] != "gzip":
        raise ValueError(f"no encoder for {compressor['name']}")
    stream = zlib.compressobj(compressor["configuration"]["level"], zlib.DEFLATED, 31)
    return stream.compress(raw) + stream.flush()


encode: Encoder = gzip


@dataclass
class LayerDraft:
    """A segment that holds ``rows`` of a box, or all without any; ``data`` are the bytes that the whole box had."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    rows: Sequence[int] | None
    data: bytes

    def stored(self) -> bytes:
        """Return the bytes of the segment."""
        size = len(self.data) // self.count
        return b"".join(self.data[row * size : (row + 1) * size] for row in self.rows or range(self.count))

    @property
    def count(self) -> int:
        """How many rows the box has."""
        return next((extent for extent in self.shape if extent != 1), 1)

    def words(self) -> list[int]:
        """Return the row words; none without a row set."""
        bits = sum(1 << row for row in self.rows or ())
        return (
            [bits >> 64 * word & (1 << 64) - 1 for word in range(-(-self.count // 64))] if self.rows else []
        )


@dataclass
class SlotDraft:
    """A slot to be written; ``boxes`` and ``layers`` give, per chunk position, how it is cut into segments."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    layout: int | None = None
    compressor: dict[str, Any] | None = None
    content: bool = True
    boxes: Mapping[Any, Sequence[tuple[tuple[int, ...], tuple[int, ...]]]] = field(default_factory=dict)
    layers: Mapping[Any, Sequence[LayerDraft]] = field(default_factory=dict)
    annotations: dict[str, Any] | None = None
    place: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Return the slot as the index has it."""
        value: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape)}
        if self.layout is not None:
            value["layout"] = self.layout
        if self.place is not None:
            value["place"] = self.place
        if self.compressor is not None:
            value["compressor"] = self.compressor
        if self.content:
            value["content"] = content_digest(self.data)
        if self.annotations is not None:
            value["annotations"] = self.annotations
        return value


@dataclass
class AtomDraft:
    """An atom to be written."""

    name: str
    slots: dict[str, SlotDraft]
    key: str = ""
    aliases: tuple[str, ...] = ()
    annotations: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Return the atom as the index has it."""
        value: dict[str, Any] = {
            "name": self.name,
            "key": self.key or self.name,
            "slots": {name: slot.document() for name, slot in sorted(self.slots.items())},
        }
        if self.aliases:
            value["aliases"] = list(self.aliases)
        if self.annotations is not None:
            value["annotations"] = self.annotations
        return value


@dataclass
class TableDraft:
    """A chunk table, field by field; ``header`` and ``tail`` bend it."""

    rows: list[list[int]] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    row_words: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    tail: bytes = b""

    def build(self) -> bytes:
        """Return the bytes of the table."""
        fields = {
            "magic": b"UCPTABLE",
            "version": 0,
            "block": 1 << 20,
            "chunks": len(self.counts),
            "segments": len(self.rows),
            "words": len(self.words),
            "checksums": len(self.checksums),
            "row_words": len(self.row_words),
            "zero": bytes(8),
        } | self.header
        return b"".join(
            (
                struct.pack("<8sIIQQQQQ8s", *fields.values()),
                *(struct.pack("<IIQQQ", *row) for row in self.rows),
                struct.pack(f"<{len(self.words)}Q", *self.words),
                struct.pack(f"<{len(self.row_words)}Q", *self.row_words),
                struct.pack(f"<{len(self.counts)}I", *self.counts),
                struct.pack(f"<{len(self.checksums)}I", *self.checksums),
                self.tail,
            )
        )


@dataclass
class DraftPart:
    """An index part and its table; ``entry`` overrides members of the root's entry."""

    index: dict[str, Any]
    table: TableDraft
    entry: dict[str, Any] = field(default_factory=dict)


class Draft:
    """A checkpoint that can still be changed. `files` seals it: lengths and digests follow from the rest."""

    def __init__(
        self,
        atoms: Sequence[AtomDraft] = (),
        *,
        storage: str = "packed",
        chunk_bytes: int = 64,
        attempt: str = "a1",
        per_part: int = 1000,
        packs: int = 1,
        share: bool = False,
        dense: bool = False,
        encoder: Encoder = gzip,
        root: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        blobs: Mapping[str, tuple[str, bytes]] | None = None,
    ) -> None:
        self.attempt = attempt
        self.encoder = encoder
        self.share = share
        self.dense = dense
        self.objects: dict[str, bytes] = {}
        self.overrides: dict[str, dict[str, Any]] = {}
        self.bytes_of: dict[str, Callable[[bytes], bytes]] = {}
        self.after: list[Callable[[dict[str, bytes]], object]] = []
        self.root: dict[str, Any] = {
            "format": "ucp",
            "format_version": 0,
            "read_features": sorted(
                {c for a in atoms for s in a.slots.values() if (c := _feature(s)) is not None}
            ),
            "write_features": [],
            "extensions": {},
            "annotations": {},
            "digest": BLANK,
            "storage": storage,
            "chunk_bytes": chunk_bytes,
            "meshes": [],
            "layouts": [],
            **deepcopy(dict(root or {})),
        }
        self.pack_data: list[bytearray] = [bytearray() for _ in range(packs if storage == "packed" else 0)]
        self.shared: dict[tuple[int, bytes], int] = {}
        self.parts: list[DraftPart] = []
        for start in range(0, len(atoms), per_part):
            self.parts.append(self._part(atoms[start : start + per_part]))
        self.pack_data = [data for data in self.pack_data if data]
        self.packs: dict[str, Any] | None = None
        if storage == "packed":
            self.packs = {
                "packs": [{"key": self.pack_key(n), "length": len(d)} for n, d in enumerate(self.pack_data)]
            }
        elif atoms or storage == "plain":
            self.objects["atoms/zarr.json"] = GROUP_DOCUMENT
        self.state: dict[str, Any] | None = None
        if state is not None or blobs:
            self.state = {"values": {}, "optimizers": {}, "blobs": {}, **deepcopy(dict(state or {}))}
        for number, (name, (media_type, data)) in enumerate((blobs or {}).items()):
            key = f"blobs/{attempt}-{number}"
            self.objects[key] = data
            if self.state is not None:
                reference = {"key": key, "length": len(data), "digest": sha256(data)}
                self.state["blobs"][name] = {"media_type": media_type, "object": reference}
        files = [file for image in (self.state or {}).get("images", {}).values() for file in image["files"]]
        for number, file in enumerate(files):
            data = file.pop("data")
            key = f"blobs/{attempt}-image-{number}"
            self.objects[key] = data
            file["object"] = {"key": key, "length": len(data), "digest": sha256(data)}

    def pack_key(self, number: int) -> str:
        """Return key of a pack."""
        return f"packs/{self.attempt}-0-{number}.pack"

    def _part(self, atoms: Sequence[AtomDraft]) -> DraftPart:
        table = TableDraft()
        for atom in atoms:
            for name, slot in sorted(atom.slots.items()):
                self._slot(atom, name, slot, table)
        return DraftPart({"atoms": [atom.document() for atom in atoms]}, table)

    def _slot(self, atom: AtomDraft, name: str, slot: SlotDraft, table: TableDraft) -> None:
        item = ITEM_BYTES[slot.dtype]
        grid = Grid.of(slot.shape, item, self.root["chunk_bytes"])
        folder = f"atoms/{atom.key or atom.name}"
        plain = self.root["storage"] == "plain"
        begun: set[int] = set()  # packs that have segments of the slot
        if plain:
            self.objects[f"{folder}/zarr.json"] = GROUP_DOCUMENT
            self.objects[f"{folder}/{name}/zarr.json"] = array_document(slot.document(), item, grid)
        for position in grid.positions():
            offset, shape = grid.box(position)
            raw = cut(slot.data, item, slot.shape, offset, shape)
            if not any(raw):
                table.counts.append(0)
            elif plain:
                whole = raw + bytes(item * math.prod(grid.chunk) - len(raw))
                stored = whole if slot.compressor is None else self.encoder(slot.compressor, whole)
                stored += crc32c(stored).to_bytes(4, "little")
                self.objects[f"{folder}/{name}/{grid.key(position)}"] = stored
                table.counts.append(1)
                table.rows.append([0xFFFFFFFF, 0, 0, len(stored), 0])
                table.checksums += block_checksums(stored[:-4])
            else:
                self._segments(slot, position, shape, item, raw, table, begun)

    def _segments(
        self,
        slot: SlotDraft,
        position: tuple[int, ...],
        shape: tuple[int, ...],
        item: int,
        raw: bytes,
        table: TableDraft,
        begun: set[int],
    ) -> None:
        for layer in (layers := slot.layers.get(position, ())):
            words = layer.words()
            row_set = len(table.row_words) + 1 if words else 0
            table.row_words += words
            self._segment(layer.stored(), (layer.offset, layer.shape), row_set, table, begun)
        if layers:
            table.counts.append(len(layers))
            return
        boxes = slot.boxes.get(position)
        table.counts.append(len(boxes) if boxes else 1)
        whole: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = [None]
        for box in boxes or whole:
            data = raw if box is None else cut(raw, item, shape, *box)
            if slot.compressor is not None:
                data = self.encoder(slot.compressor, data)
            self._segment(data, box, 0, table, begun)

    def _segment(
        self,
        data: bytes,
        box: tuple[tuple[int, ...], tuple[int, ...]] | None,
        row_set: int,
        table: TableDraft,
        begun: set[int],
    ) -> None:
        word = 0
        if box is not None:
            word = len(table.words) + 1
            table.words += [*box[0], *box[1]]
        container = len(table.rows) % len(self.pack_data)
        follows = self.dense and container in begun
        table.rows.append(
            [container, row_set, self._place(container, data, follows=follows), len(data), word]
        )
        begun.add(container)
        table.checksums += block_checksums(data)

    def _place(self, container: int, data: bytes, *, follows: bool) -> int:
        if self.share and (container, data) in self.shared:
            return self.shared[container, data]
        pack = self.pack_data[container]
        alignment = 4096 if len(data) >= 65536 else 64
        pack += bytes(0 if follows else -len(pack) % alignment)
        self.shared[container, data] = len(pack)
        pack += data
        return self.shared[container, data]

    def reference(self, name: str, key: str, data: bytes, files: dict[str, bytes]) -> dict[str, Any]:
        """Keep a document and refer to it; `bytes_of` bends the bytes, `overrides` the reference."""
        data = self.bytes_of.get(name, bytes)(data)
        files[key] = data
        return {"key": key, "length": len(data), "digest": sha256(data)} | self.overrides.get(name, {})

    def files(self) -> dict[str, bytes]:
        """Return all objects of the sealed checkpoint."""
        files = dict(self.objects)
        files |= {self.pack_key(number): bytes(data) for number, data in enumerate(self.pack_data)}
        root = dict(self.root)
        prefix = f"index/{self.attempt}"
        if self.packs is not None:
            root["packs"] = self.reference("packs", f"{prefix}-packs.json", dump(self.packs), files)
        if self.state is not None:
            root["state"] = self.reference("state", f"{prefix}-state.json", dump(self.state), files)
        root["parts"] = root.get("parts", [])
        for number, part in enumerate(self.parts):
            names = [atom.get("name", "") for atom in part.index.get("atoms", [])] or [""]
            root["parts"].append(
                {
                    "first": names[0],
                    "last": names[-1],
                    "atoms": len(names),
                    "index": self.reference(
                        f"index{number}", f"{prefix}-{number}.json", dump(part.index), files
                    ),
                    "table": self.reference(
                        f"table{number}", f"{prefix}-{number}.bin", part.table.build(), files
                    ),
                }
                | part.entry
            )
        root |= self.overrides.get("root", {})
        files["ucp.json"] = seal(self.bytes_of.get("root", bytes)(dump(root)))
        for change in self.after:
            change(files)
        return files

    def write(self, path: Path) -> None:
        """Write all objects below ``path``, the root document last."""
        write_files(self.files(), path)


def _feature(slot: SlotDraft) -> str | None:
    name = None if slot.compressor is None else str(slot.compressor["name"])
    return None if name == "gzip" else name


def seal(root: bytes) -> bytes:
    """Return the root document with its digest in place of the blank one, if it has a blank one."""
    return root.replace(BLANK.encode(), b"sha256:" + hashlib.sha256(root).hexdigest().encode(), 1)


def write_files(files: Mapping[str, bytes], path: Path) -> None:
    """Write files by their keys below ``path``; ``ucp.json`` last."""
    path.mkdir(parents=True, exist_ok=True)
    for key, data in sorted(files.items(), key=lambda item: item[0] == "ucp.json"):
        target = path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
