"""Ways to break one rule of a good checkpoint and make all lengths, checksums and digests right again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from tests.builders import (
    BLOSC,
    GZIP,
    ZSTD,
    Forgery,
    RawTable,
)
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

DATA = (np.arange(24, dtype=np.int16) + 1).reshape(4, 6)
OWN = 0xFFFFFFFF


def make(path: Path, kind: str) -> Forgery:
    """A good checkpoint of some kind, with chunks of 12 bytes, one of them zero."""
    data = DATA.copy()
    data[3] = 0
    compressor = {"gzip": GZIP, "zstd": ZSTD, "blosc": BLOSC, "plain gzip": GZIP}.get(kind)
    spec = AtomSpec("a", {"step": SlotSpec("int8", ()), "value": SlotSpec("int16", (4, 6), None, compressor)})
    storage: Any = "plain" if kind.startswith("plain") else "packed"
    with CheckpointWriter(path, [spec], storage=storage, chunk_bytes=16, workers=1, attempt="x") as writer:
        writer.write("a", "step", np.array(5, np.int8))
        if kind == "boxed":
            writer.write("a", "value", DATA[:, :4], offset=(0, 0))
            writer.write("a", "value", DATA[:, 4:], offset=(0, 4))
        else:
            writer.write("a", "value", data)
        writer.add_blob("extra", b"opaque", "application/octet-stream")
    return Forgery(path)


Change = Callable[[Forgery], object]


@dataclass(frozen=True)
class Case:
    """One broken rule; ``reads`` says whether reading every slot meets it, ``also`` what cannot but follow."""

    name: str
    requirement: str
    kind: str
    code: str
    at: str
    change: Change
    reads: bool = True
    also: frozenset[str] = frozenset()


def root(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda forged: forged.edit("root", change)


def document(name: str, change: Callable[[Any], object]) -> Change:
    return lambda forged: forged.edit(name, change)


def raw(name: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda forged: forged.put(name, change((forged.path / forged.reference(name)["key"]).read_bytes()))


def table(change: Callable[[RawTable], object]) -> Change:
    return lambda forged: forged.edit_table(change)


def slot(**members: Any) -> Change:
    return document("index", lambda index: index["atoms"][0]["slots"]["value"].update(members))


def row(number: int, **members: int) -> Change:
    names = ("container", "zero", "offset", "length", "box")

    def change(found: RawTable) -> None:
        for name, value in members.items():
            found.rows[number][names.index(name)] = value

    return table(change)


def moved(name: str, key: str) -> Change:
    """Move a document to another key, so that it is there for whoever does not check the key."""

    def change(forged: Forgery) -> None:
        reference = forged.reference(name)
        relocate(forged.path, reference["key"], key)
        reference["key"] = key

    return change


def relocate(path: Path, old: str, new: str) -> None:
    target = Path(f"{path}/{new}")
    if new and not new.startswith("/") and not new.endswith("/"):
        target.parent.mkdir(parents=True, exist_ok=True)
        (path / old).rename(target)


def moved_pack(key: str) -> Change:
    def change(forged: Forgery) -> None:
        relocate(forged.path, forged.document("packs")["packs"][0]["key"], key)
        forged.edit("packs", lambda packs: packs["packs"][0].update(key=key))

    return change


def moved_blob(key: str) -> Change:
    def change(forged: Forgery) -> None:
        relocate(forged.path, forged.document("state")["blobs"]["extra"]["object"]["key"], key)
        forged.edit("state", lambda state: state["blobs"]["extra"]["object"].update(key=key))

    return change


def pack_file(forged: Forgery, number: int = 0) -> Path:
    key: str = forged.document("packs")["packs"][number]["key"]
    return forged.path / key


def segment_bytes(number: int, content: bytes) -> Change:
    """Give row ``number`` other bytes, with all lengths and checksums made right."""

    def change(forged: Forgery) -> None:
        found = forged.table()
        place = found.rows[number]
        if place[0] == OWN:
            key = ("step/c", "value/c/0/0", "value/c/1/0", "value/c/2/0")[number]
            (forged.path / "atoms" / "a" / key).write_bytes(content)
        else:
            file = pack_file(forged)
            start = -(-file.stat().st_size // 4096) * 4096
            data = bytearray(file.read_bytes().ljust(start, b"\0") + content)
            data[place[2] : place[2] + place[3]] = bytes(place[3])
            file.write_bytes(data)
            place[2] = start
            forged.edit("packs", lambda packs: packs["packs"][0].update(length=len(data)))
        place[3] = len(content)
        found.checksums[number] = crc32c(content[:-4] if place[0] == OWN else content)
        forged.put("table", found.build())

    return change


def with_crc(content: bytes) -> bytes:
    return content + crc32c(content).to_bytes(4, "little")


def word(number: int, value: int) -> Change:
    return table(lambda found: found.words.__setitem__(number, value))


def file_at(key: str, content: bytes) -> Change:
    def change(forged: Forgery) -> None:
        (forged.path / key).parent.mkdir(parents=True, exist_ok=True)
        (forged.path / key).write_bytes(content)

    return change


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def extra_pack(forged: Forgery) -> None:
    (forged.path / "packs/x.pack").write_bytes(bytes(64))
    forged.edit("packs", lambda packs: packs["packs"].append({"key": "packs/x.pack", "length": 64}))


def poke_gap(forged: Forgery) -> None:
    file = pack_file(forged)
    data = bytearray(file.read_bytes())
    data[1] = 1  # the first segment is one byte, the next begins at 64
    file.write_bytes(data)


def without(found: RawTable, number: int) -> None:
    """Remove a row and its box."""
    box = found.rows.pop(number)[4]
    found.checksums.pop(number)
    del found.words[box - 1 : box + 3]
    found.counts[1] -= 1
    for later in found.rows[number:]:
        later[4] -= 4 if later[4] else 0


def twice(found: RawTable) -> None:
    found.rows.insert(1, list(found.rows[1]))
    found.checksums.insert(1, found.checksums[1])
    found.counts[1] = 2


def swapped(found: RawTable) -> None:
    """The two boxes of the first chunk in the other order."""
    found.rows[1], found.rows[2] = found.rows[2], found.rows[1]
    found.rows[1][4], found.rows[2][4] = 1, 5
    found.words[:8] = found.words[4:8] + found.words[:4]
    found.checksums[1], found.checksums[2] = found.checksums[2], found.checksums[1]


def unboxed(found: RawTable) -> None:
    del found.words[:4]
    for place in found.rows[1:]:
        place[4] -= 4
    found.rows[1][4] = 0


def boxed(found: RawTable) -> None:
    """Give row 1 the box of its whole chunk."""
    found.words.extend([0, 0, 1, 6])
    found.rows[1][4] = 1


def chunk_bytes(size: int) -> Change:
    return root(lambda found: found.update(chunk_bytes=size))
