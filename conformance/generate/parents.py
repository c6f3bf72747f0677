"""The good checkpoints that most others are mutations of."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from ucp_conformance.drafting import AtomDraft, Draft, LayerDraft, SlotDraft

__all__ = [
    "BLOSC",
    "GZIP",
    "LAYOUTS",
    "MESHES",
    "PARENTS",
    "ZSTD",
    "floats",
    "packed",
    "plain",
    "share",
]

GZIP: Final[dict[str, Any]] = {"name": "gzip", "configuration": {"level": 5}}
ZSTD: Final[dict[str, Any]] = {"name": "zstd", "configuration": {"checksum": True, "level": 3}}
BLOSC: Final[dict[str, Any]] = {
    "name": "blosc",
    "configuration": {"blocksize": 0, "clevel": 5, "cname": "lz4", "shuffle": "shuffle", "typesize": 4},
}
MESHES: Final[list[Any]] = [{"axes": [{"name": "dp", "size": 2}, {"name": "tp", "size": 2}]}]
LAYOUTS: Final[list[Any]] = [
    {"mesh": 0, "steps": [{"kind": "shard", "axis": "tp", "dim": 0, "rule": "ceil"}]}
]
STATE: Final[dict[str, Any]] = {
    "values": {"epoch": 3, "lr": 0.1},
    "optimizers": {"optim": {"groups": [{"atoms": ["alpha", "beta"], "options": {"lr": 0.1}}]}},
}


def floats(count: int, start: float = 1) -> bytes:
    """Return little-endian float32 that count upwards."""
    return struct.pack(f"<{count}f", *(start + number for number in range(count)))


def atoms() -> list[AtomDraft]:
    """Return two atoms: chunks that do not divide the shape, a layout, a zero entry, an alias."""
    return [
        AtomDraft(
            "alpha",
            {
                "exp_avg": SlotDraft("float32", (5, 3), floats(15, 0.5), layout=0),
                "value": SlotDraft("float32", (5, 3), floats(15), layout=0),
            },
        ),
        AtomDraft(
            "beta",
            {"master": SlotDraft("uint8", (40,), bytes(40)), "value": SlotDraft("int32", (), b"\x07\0\0\0")},
            aliases=("beta.tied",),
        ),
    ]


def parent(storage: str) -> Draft:
    """Return a checkpoint of two parts in chunks of 32 bytes, with state and a blob."""
    return Draft(
        atoms(),
        storage=storage,
        chunk_bytes=32,
        per_part=1,
        root={"meshes": MESHES, "layouts": LAYOUTS, "progress": {"step": 12}},
        state=STATE,
        blobs={"extra": ("application/octet-stream", b"\x80\x04N.\0")},
    )


def plain() -> Draft:
    """Return a parent in storage plain."""
    return parent("plain")


def packed() -> Draft:
    """Return a parent in storage packed."""
    return parent("packed")


def boxed() -> Draft:
    """Return a packed parent with the first chunk in two segments with boxes."""
    slot = SlotDraft("float32", (4, 3), floats(12), boxes={(0, 0): [((0, 0), (2, 1)), ((0, 1), (2, 2))]})
    return Draft([AtomDraft("alpha", {"value": slot})], chunk_bytes=32)


def zipped(storage: str, compressor: dict[str, Any] = GZIP) -> Draft:
    """Return one slot with a compressor."""
    from generate.cases import frozen_encoder

    slot = SlotDraft("float32", (5, 3), floats(15), compressor=compressor)
    return Draft(
        [AtomDraft("alpha", {"value": slot})], storage=storage, chunk_bytes=32, encoder=frozen_encoder
    )


def increment() -> Draft:
    """Return an increment: its first pack is shared, and has bytes before, between and behind its segments."""
    cut = {(0, 0): [((0, 0), (1, 3)), ((1, 0), (1, 3))]}
    slots = {
        "exp_avg": SlotDraft("float32", (5, 3), floats(15, 0.5), boxes=cut),
        "value": SlotDraft("float32", (5, 3), floats(15)),
    }
    draft = Draft([AtomDraft("alpha", slots)], chunk_bytes=32, packs=2)
    share(draft, 0)
    draft.root["read_features"] = ["incremental"]
    return draft


def layers() -> Draft:
    """Return two slots with rows written over: in one chunk, and in one half of a chunk, whose rows begin at its middle."""
    before, after = floats(210, 900), floats(210)
    slots = {
        "exp_avg": SlotDraft(
            "float32", (70, 3), after,
            layers={(0, 0): [
                LayerDraft((0, 0), (70, 3), None, mixed(before, after, 12, range(65))),
                LayerDraft((0, 0), (70, 3), [*range(65), 69], mixed(before, after, 12, [*range(65), 69])),
                LayerDraft((0, 0), (70, 3), [0, 65, 66, 67, 68], after),
            ]},
        ),
        "value": SlotDraft(
            "float32", (1, 8, 2), floats(16),
            layers={(0, 0, 0): [
                LayerDraft((0, 0, 0), (1, 4, 2), None, floats(8)),
                LayerDraft((0, 4, 0), (1, 4, 2), [0, 1], mixed(floats(8, 70), floats(8, 9), 8, [0])),
                LayerDraft((0, 4, 0), (1, 4, 2), [1, 2, 3], floats(8, 9)),
            ]},
        ),
    }  # fmt: skip
    draft = Draft([AtomDraft("alpha", slots)], chunk_bytes=1024, packs=2)
    draft.root["read_features"] = ["row-overwrite"]
    return draft


def mixed(before: bytes, after: bytes, size: int, rows: Iterable[int]) -> bytes:
    """The bytes of a box in which ``rows`` of so many bytes have their last values, and the others earlier ones."""
    found = bytearray(before)
    for row in rows:
        found[row * size : (row + 1) * size] = after[row * size : (row + 1) * size]
    return bytes(found)


def share(draft: Draft, number: int) -> None:
    """Share a pack: other bytes than zeros lie wherever no segment of it does, also where alignment left none."""
    rows = [row for part in draft.parts for row in part.table.rows if row[0] == number]
    before, data = bytes(draft.pack_data[number]), bytearray(b"\x55" * 12)
    moved: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: row[2]):
        if row[2] not in moved:
            moved[row[2]] = len(data)
            data += before[row[2] : row[2] + row[3]]
            data += b"\x55" * (4 + -len(data) % 4)
        row[2] = moved[row[2]]
    draft.pack_data[number] = data
    if draft.packs is not None:
        draft.packs["packs"][number].update(length=len(data), shared=True)


def pipeline() -> Draft:
    """A pipeline in flight, of three stages, the second two ranks wide; the last has nothing in flight."""
    shapes = {"a": (2, 3), "b": (4,), "c": (2,), "shared": (2,)}
    stages = {"a": 0, "b": 1, "c": 2}
    versions = {"a": (8, 9), "b": (9,)}
    drafted = []
    for number, (name, shape) in enumerate(shapes.items()):
        size = math.prod(shape)
        layout = stages.get(name)
        slots = {"value": SlotDraft("float32", shape, floats(size, number + 1), layout=layout)}
        slots["exp_avg"] = SlotDraft("float32", shape, floats(size, -number - 1), layout=layout)
        for version in versions.get(name, ()):
            data = floats(size, 10 * version + number)
            slots[f"version-{version}"] = SlotDraft("float32", shape, data, layout=layout)
        drafted.append(AtomDraft(name, slots))
    mesh = {"axes": [{"name": "pp", "size": 3}, {"name": "dp", "by": "pp", "sizes": [1, 2, 1]}]}
    layouts = [
        {"mesh": 0, "steps": [{"kind": "only", "axis": "pp", "coordinates": [stage]}]} for stage in range(3)
    ]
    in_flight = [{10: 8, 11: 9}, {10: 9}, {}]
    return Draft(
        drafted,
        root={
            "meshes": [mesh],
            "layouts": layouts,
            "progress": {"step": 10},
            "read_features": ["weight-versions"],
        },
        state={
            "pipeline": {
                "axis": "pp",
                "stages": [
                    {
                        "updates": 10,
                        "atoms": [name],
                        "in_flight": [
                            {"minibatch": minibatch, "version": version}
                            for minibatch, version in of_stage.items()
                        ],
                    }
                    for name, of_stage in zip(stages, in_flight, strict=True)
                ],
            }
        },
    )


def image() -> Draft:
    """A checkpoint with a process image that is required, one that is not, and a blob."""
    files = [
        {"path": "ckpt.dmtcp", "data": bytes(range(256))},
        {"path": "bin/restart.sh", "executable": True, "data": b"#!/bin/sh\n"},
    ]
    host = {"machine": "x86_64", "system": "Linux"}
    producer = {"name": "dmtcp", "version": "3.0.0"}
    said = {"media_type": "application/x-dmtcp-image", "producer": producer, "host": host, "portable": False}
    return Draft(
        [AtomDraft("a", {"value": SlotDraft("float32", (4,), floats(4, 1))})],
        root={"progress": {"step": 10}, "read_features": ["process-images"]},
        state={
            "images": {
                "spare": {**said, "required": False, "files": [{"path": "empty", "data": b""}]},
                "trainer/0": {**said, "required": True, "rank": 0, "files": files},
            }
        },
        blobs={"extra": ("text/plain", b"text")},
    )


PARENTS: Final[dict[str, Callable[[], Draft]]] = {
    "plain": plain,
    "packed": packed,
    "boxed": boxed,
    "gzip-plain": lambda: zipped("plain"),
    "gzip-packed": lambda: zipped("packed"),
    "zstd-packed": lambda: zipped("packed", ZSTD),
    "blosc-packed": lambda: zipped("packed", BLOSC),
    "increment": increment,
    "layers": layers,
    "pipeline": pipeline,
    "image": image,
}
