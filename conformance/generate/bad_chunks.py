"""Bad checkpoints: stored bytes, Zarr metadata, compressed chunks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from generate.cases import Case, frozen_encoder, validation
from generate.mutations import (
    CHUNK,
    EDGE,
    INDEX,
    PACK,
    Files,
    after,
    case,
    flipped,
    longer,
    put,
    shorter,
    without,
)
from generate.parents import BLOSC, GZIP, ZSTD
from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft
from ucp_conformance.oracle.bytes_of import crc32c, sha256


def bad_chunk_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield _many()
    yield from _chunks()
    yield from _zarr()
    yield from _compressed()


def _many() -> Case:
    """Return a case with faults in several documents that do not hide each other."""

    def broken(draft: Draft) -> None:
        draft.parts[0].index["atoms"][0]["slots"]["value"]["content"] = "crc32c-tree:" + "5" * 64
        flipped(PACK, 40)(draft)
        without("blobs/a1-0")(draft)
        draft.objects["index/b2-0.json"] = b"debris"

    codes = ["UCP-E-PADDING", "UCP-E-CONTENT", "UCP-E-MISSING", "UCP-W-UNREFERENCED"]
    made = case("many/four", "Four faults", ("UCP-V-004", "UCP-V-002"), codes, broken, ops=())
    made.checks[0]["expect"]["problems"]["every"] = True
    return made


def _chunks() -> Iterator[Case]:
    read: dict[str, Any] = {"ops": ("read",)}
    yield case(
        "chunks/pack-missing",
        "No pack",
        ("UCP-D-099", "UCP-R-013"),
        "UCP-E-MISSING",
        without(PACK),
        at=PACK,
        also=True,
        **read,
    )
    yield case(
        "chunks/pack-shorter",
        "The pack lacks a byte",
        ("UCP-D-099",),
        "UCP-E-LENGTH",
        shorter(PACK),
        at=PACK,
        ops=(),
        also=True,
    )
    yield case(
        "chunks/pack-longer",
        "A byte behind the pack",
        ("UCP-D-099",),
        "UCP-E-LENGTH",
        longer(PACK),
        at=PACK,
        ops=(),
    )
    yield case(
        "chunks/pack-bit",
        "One bit of a chunk in a pack",
        ("UCP-R-029",),
        "UCP-E-CHECKSUM",
        flipped(PACK, 192),
        at=PACK,
        ops=("read",),
        also=False,
    )
    yield case(
        "chunks/pack-padding",
        "A byte that belongs to no segment",
        ("UCP-D-108",),
        "UCP-E-PADDING",
        flipped(PACK, 40),
        at=PACK,
        ops=(),
    )
    yield case(
        "chunks/missing",
        "No object for a chunk",
        ("UCP-D-093", "UCP-R-013"),
        "UCP-E-MISSING",
        without(CHUNK),
        "plain",
        at=CHUNK,
        **read,
    )
    yield case(
        "chunks/shorter",
        "A chunk object lacks six bytes",
        ("UCP-D-115", "UCP-D-098"),
        "UCP-E-LENGTH",
        after(lambda f: f.update({CHUNK: f[CHUNK][:-6]})),
        "plain",
        at=CHUNK,
        **read,
    )
    yield case(
        "chunks/longer",
        "A byte behind a chunk object",
        ("UCP-D-115", "UCP-D-098"),
        "UCP-E-LENGTH",
        longer(CHUNK),
        "plain",
        at=CHUNK,
        ops=(),
    )
    yield case(
        "chunks/bit",
        "One bit of a chunk object",
        ("UCP-R-029",),
        "UCP-E-CHECKSUM",
        flipped(CHUNK, 3),
        "plain",
        at=CHUNK,
        **read,
    )
    yield case(
        "chunks/zero-entry-object",
        "An object for a chunk with a zero entry",
        ("UCP-D-096", "UCP-V-005"),
        "UCP-E-LENGTH",
        after(lambda f: f.update({"atoms/beta/master/c/0": bytes(36)})),
        "plain",
        at="atoms/beta/master/c/0",
        ops=(),
        never=("UCP-W-UNREFERENCED",),
    )

    def content(draft: Draft) -> None:
        draft.parts[0].index["atoms"][0]["slots"]["value"]["content"] = "crc32c-tree:" + "5" * 64

    for storage in ("plain", "packed"):
        yield case(
            f"chunks/content-{storage}",
            f"Another content digest ({storage})",
            ("UCP-D-038",),
            "UCP-E-CONTENT",
            content,
            storage,
            ops=(),
            at=INDEX,
        )

    def edge(draft: Draft) -> None:
        data = bytearray(draft.objects[EDGE][:-4])
        data[12] = 1
        stored = bytes(data) + crc32c(bytes(data)).to_bytes(4, "little")
        draft.objects[EDGE] = stored
        draft.parts[0].table.checksums[5] = crc32c(stored[:-4])

    yield case(
        "chunks/edge-padding",
        "Elements beyond the shape that are not zero",
        ("UCP-D-095",),
        "UCP-E-PADDING",
        edge,
        "plain",
        at=EDGE,
        ops=(),
    )

    def zarr_sum(draft: Draft) -> None:
        stored = draft.objects[CHUNK][:-4] + b"\1\2\3\4"
        draft.objects[CHUNK] = stored

    yield case(
        "chunks/codec-checksum",
        "The checksum of the codec crc32c",
        ("UCP-D-098", "UCP-D-097"),
        "UCP-E-CODEC",
        zarr_sum,
        "plain",
        at=CHUNK,
        ops=(),
    )

    def big_endian(draft: Draft) -> None:
        stored = draft.objects[CHUNK]
        draft.objects[CHUNK] = stored[:-4] + stored[:-5:-1]

    yield case(
        "chunks/codec-big-endian",
        "The checksum of the codec crc32c, big-endian",
        ("UCP-D-097",),
        "UCP-E-CODEC",
        big_endian,
        "plain",
        at=CHUNK,
        ops=(),
    )
    for storage in ("plain", "packed"):
        slot = SlotDraft("float32", (0, 3), b"")
        draft = Draft([AtomDraft("alpha", {"value": slot})], storage=storage)
        put("index0", "atoms", 0, "slots", "value", "content", to="crc32c-tree:" + sha256(bytes(4))[7:])(
            draft
        )
        yield Case(
            f"bad/chunks/content-of-nothing-{storage}",
            "A slot without bytes has no block, not an empty one",
            ("UCP-D-038",),
            [validation(["UCP-E-CONTENT"], [INDEX])],
            draft.files(),
            mutates=f"good/grid/empty-vector-{storage}",
            mutation="content-of-nothing",
        )

    def unpadded(draft: Draft) -> None:
        data = draft.objects[EDGE][:12]
        stored = data + crc32c(data).to_bytes(4, "little")
        draft.objects[EDGE] = stored
        draft.parts[0].table.rows[5][3] = len(stored)
        draft.parts[0].table.checksums[5] = crc32c(stored[:-4])

    yield case(
        "chunks/edge-clipped",
        "An edge chunk that was clipped",
        ("UCP-D-098", "UCP-D-092"),
        "UCP-E-SEGMENT",
        unpadded,
        "plain",
        ops=("read",),
        also=True,
        params={"atom": "alpha", "slot": "value"},
    )
    for dtype in ("bool", "int4", "float4_e2m1fn"):

        def unused(draft: Draft, dtype: str = dtype) -> None:
            slot = draft.parts[1].index["atoms"][0]["slots"]["master"]
            slot["dtype"] = dtype
            slot.pop("content")
            data = bytes([0x12]) + bytes(19)
            start = len(draft.pack_data[0]) + -len(draft.pack_data[0]) % 64
            draft.pack_data[0] += bytes(start - len(draft.pack_data[0])) + data
            assert draft.packs is not None
            draft.packs["packs"][0]["length"] = len(draft.pack_data[0])
            found = draft.parts[1].table
            found.counts[0] = 1
            found.rows.insert(0, [0, 0, start, 20, 0])
            found.checksums.insert(0, crc32c(data))

        yield case(
            f"chunks/unused-bits-{dtype.replace('_', '-')}",
            f"Bits that {dtype} does not use",
            ("UCP-D-037",),
            "UCP-E-PADDING",
            unused,
            ops=(),
            level="full",
        )


def _zarr() -> Iterator[Case]:
    group, array = "atoms/alpha/zarr.json", "atoms/alpha/value/zarr.json"

    def text(key: str, old: bytes, new: bytes) -> Callable[[Draft], object]:
        def change(files: Files) -> None:
            if old not in files[key]:
                raise AssertionError(f"{old!r} is not in {key}")
            files[key] = files[key].replace(old, new)

        return after(change)

    changes = {
        "fill-value": (array, b'"fill_value":0', b'"fill_value":1'), "fill-spelling": (array, b'"fill_value":0', b'"fill_value":0.0'),
        "shape": (array, b"[5,3]", b"[6,3]"), "chunk-shape": (array, b"[2,3]", b"[3,3]"), "space": (array, b",", b", "),
        "attributes": (group, b"{}", b'{"a":1}'), "root-attributes": ("atoms/zarr.json", b"{}", b'{"a":1}'), "codec": (array, b',{"name":"crc32c"}', b""),
    }  # fmt: skip
    for name, (key, old, new) in changes.items():
        yield case(
            f"zarr/{name}",
            f"Zarr metadata: {name}",
            ("UCP-D-094",),
            "UCP-E-ZARR",
            text(key, old, new),
            "plain",
            at=key,
            ops=(),
        )
    for name, key in {"array": array, "group": group, "root": "atoms/zarr.json"}.items():
        yield case(
            f"zarr/missing-{name}",
            f"No zarr.json of the {name}",
            ("UCP-D-094",),
            ["UCP-E-MISSING", "UCP-E-ZARR"],
            without(key),
            "plain",
            at=key,
            ops=(),
        )


def _compressed() -> Iterator[Case]:
    raw = struct.pack("<6f", *range(1, 7))
    gzip = {
        "more": frozen_encoder(GZIP, raw + b"\0"), "less": frozen_encoder(GZIP, raw[:-1]), "cut": frozen_encoder(GZIP, raw)[:-9],
        "garbage": b"\x1f\x8b" + b"\x7e" * 30, "not-compressed": raw, "two-members": frozen_encoder(GZIP, raw[:12]) + frozen_encoder(GZIP, raw[12:]), "trailing": frozen_encoder(GZIP, raw) + b"\0", "bomb": frozen_encoder({"name": "gzip", "configuration": {"level": 9}}, bytes(1 << 24)),
    }  # fmt: skip
    yield from _codec_cases("gzip", gzip)
    zstd = frozen_encoder(ZSTD, raw)
    # A frame that does not state its size, of 200 blocks that repeat a byte 128 KiB times.
    bomb = bytes.fromhex("28b52ffd0070") + bytes.fromhex("02001000") * 199 + bytes.fromhex("03001000")
    yield from _codec_cases("zstd", {
        "more": frozen_encoder(ZSTD, raw + b"\0"), "less": frozen_encoder(ZSTD, raw[:-1]), "cut": zstd[:-5], "not-compressed": raw,
        "garbage": zstd[:5] + b"\x7e" * 20, "two-frames": frozen_encoder(ZSTD, raw[:12]) + frozen_encoder(ZSTD, raw[12:]),
        "trailing": zstd + b"\0", "skippable": zstd + bytes.fromhex("502a4d1800000000"), "checksum": zstd[:-1] + bytes([zstd[-1] ^ 1]),
        "dictionary": zstd[:4] + bytes([zstd[4] | 1]) + zstd[5:], "bomb": bomb,
    })  # fmt: skip
    blosc = frozen_encoder(BLOSC, raw)
    yield from _codec_cases("blosc", {
        "more": frozen_encoder(BLOSC, raw + bytes(4)), "less": frozen_encoder(BLOSC, raw[:-4]), "cut": blosc[:-5], "not-compressed": raw,
        "garbage": blosc[:2] + b"\x21" + blosc[3:16] + b"\x7e" * (len(blosc) - 16), "trailing": blosc + b"\0", "header": blosc[:12],
        "version": b"\3" + blosc[1:], "bomb": frozen_encoder(BLOSC, bytes(1 << 14)),
    })  # fmt: skip


def _codec_cases(codec: str, stored: dict[str, bytes]) -> Iterator[Case]:
    for name, data in stored.items():

        def mutate(draft: Draft, data: bytes = data) -> None:
            pack = draft.pack_data[0]
            start = len(pack) + -len(pack) % 64
            row = draft.parts[0].table.rows[0]
            pack[row[2] : row[2] + row[3]] = bytes(row[3])
            pack += bytes(start - len(pack)) + data
            assert draft.packs is not None
            draft.packs["packs"][0]["length"] = len(pack)
            row[2:4] = [start, len(data)]
            draft.parts[0].table.checksums[0] = crc32c(data)

        yield case(
            f"codec/{name}" if codec == "gzip" else f"codec/{codec}-{name}",
            f"A {codec} chunk: {name}",
            ("UCP-R-027", "UCP-S-002"),
            "UCP-E-CODEC",
            mutate,
            f"{codec}-packed",
            ops=("read",),
            level="full",
            also=False,
            features=[] if codec == "gzip" else [codec],
        )
