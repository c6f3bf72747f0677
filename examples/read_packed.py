"""Read a packed checkpoint of the Universal Checkpoint Format with nothing but Python's standard library and numpy.

    python examples/read_packed.py step-1000.ucp

It was written from SPEC.md, Appendix B, to show how much that is: every checksum is checked, tensors are whole.
Compressors, layouts and values are left to readers that do more.
"""

import hashlib
import json
import math
import struct
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = dict[str, Any]

SIZES = {"bool": 1, "bfloat16": 2, "complex64": 8, "complex128": 16}
SIZES |= {f"{kind}{bits}": bits // 8 for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
SIZES |= {f"float{bits}": bits // 8 for bits in (16, 32, 64)}
NO_DIGEST = b"0" * 64


def crc32c_table() -> list[int]:
    """Return the 256 steps of the Castagnoli polynomial, bits reversed (section 16.5)."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC = crc32c_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def demand(condition: bool, code: str, at: object) -> None:
    """Refuse what is not as it has to be, with a code of section 18."""
    if not condition:
        raise ValueError(f"{code} at {at}")


class Checkpoint:
    """A packed checkpoint in a local directory: `names` of its tensors, and `read`, which gives one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.root = self.open_root()
        self.packs = [pack["key"] for pack in self.document(self.root["packs"])["packs"]]
        self.slots: dict[tuple[str, str], Any] = {}
        for part in self.root["parts"]:
            self.open_part(self.document(part["index"])["atoms"], part["table"])

    def open_root(self) -> Json:
        """Section 17.1, steps 1 to 6."""
        at = self.path / "ucp.json"
        demand(at.exists(), "UCP-E-NOT-FOUND", at)
        data = at.read_bytes()
        demand(len(data) <= 4 << 20, "UCP-E-LIMIT", at)
        root: Json = json.loads(data)
        demand(root.get("format") == "ucp", "UCP-E-FORMAT", at)
        demand(root["format_version"] == 0, "UCP-E-VERSION", at)
        digits = root["digest"].removeprefix("sha256:").encode()
        demand(data.count(digits) == 1 and len(digits) == 64, "UCP-E-DIGEST", at)
        found = hashlib.sha256(data.replace(digits, NO_DIGEST)).hexdigest()
        demand(found.encode() == digits, "UCP-E-DIGEST", at)
        demand(root["read_features"] == [], "UCP-E-FEATURE", at)
        for extension in root["extensions"].values():
            demand(extension.get("must_understand", True) is False, "UCP-E-EXTENSION", at)
        demand(root["storage"] == "packed", "not packed", at)
        return root

    def fetch(self, reference: Json) -> bytes:
        """Return an object that a document reference names, with its length and digest checked (UCP-R-013)."""
        key = reference["key"]
        safe = all(part and part[0] != "." and not part.startswith("__") for part in key.split("/"))
        demand(safe and key.replace("/", "").replace("-", "").replace(".", "").isalnum(), "UCP-E-KEY", key)
        data: bytes = (self.path / key).read_bytes()
        demand(len(data) == reference["length"], "UCP-E-LENGTH", key)
        demand("sha256:" + hashlib.sha256(data).hexdigest() == reference["digest"], "UCP-E-DIGEST", key)
        return data

    def document(self, reference: Json) -> Json:
        """Return a JSON document that a reference names."""
        document: Json = json.loads(self.fetch(reference))
        return document

    def open_part(self, atoms: list[Json], reference: Json) -> None:
        """Take a chunk table apart, and give each slot its chunks: lists of segments (section 16.5)."""
        data, at = self.fetch(reference), reference["key"]
        magic, version, block, chunks, segments, words, sums = struct.unpack_from("<8sIIQQQQ", data)
        demand((magic, version, block) == (b"UCPTABLE", 0, 1 << 20), "UCP-E-TABLE", at)
        demand(len(data) == 64 + 32 * segments + 8 * words + 4 * chunks + 4 * sums, "UCP-E-TABLE", at)
        place = 64
        rows = [struct.unpack_from("<IIQQQ", data, place + 32 * row) for row in range(segments)]
        place += 32 * segments
        boxes = struct.unpack_from(f"<{words}Q", data, place)
        place += 8 * words
        counts = struct.unpack_from(f"<{chunks}I", data, place)
        checksums = iter(struct.unpack_from(f"<{sums}I", data, place + 4 * chunks))
        found = []
        for container, _, offset, length, box in rows:
            blocks = [next(checksums) for _ in range(math.ceil(length / block))]
            found.append((container, offset, length, box, blocks))
        following, per_chunk = iter(found), iter(counts)
        for atom in atoms:
            for name, slot in sorted(atom["slots"].items(), key=lambda item: item[0].encode()):
                grid = self.grid(slot)
                mine = [[next(following) for _ in range(next(per_chunk))] for _ in positions(*grid)]
                self.slots[atom["name"], name] = slot, grid, mine, boxes
        demand(next(per_chunk, None) is None and next(following, None) is None, "UCP-E-TABLE", at)

    def grid(self, slot: Json) -> tuple[list[int], list[int]]:
        """Return the shape of a slot, and that of its chunks (section 16.1)."""
        shape, target = slot["shape"], self.root["chunk_bytes"]
        demand(slot["dtype"] in SIZES, "UCP-E-DTYPE", slot["dtype"])
        extents = [max(1, extent) for extent in shape]
        for axis in range(len(shape)):
            inner = SIZES[slot["dtype"]] * math.prod(extents[axis + 1 :])
            if inner <= target or axis == len(shape) - 1:
                rows = max(1, target // inner)
                parts = math.ceil(extents[axis] / rows)
                return shape, [1] * axis + [math.ceil(extents[axis] / parts)] + extents[axis + 1 :]
        return shape, []

    @property
    def names(self) -> list[tuple[str, str]]:
        """Pairs of the names of an atom and a slot, in order."""
        return list(self.slots)

    def read(self, atom: str, slot: str = "value") -> NDArray[Any]:
        """Return a tensor; bfloat16, which numpy lacks, as its bits in uint16."""
        described, (shape, chunk), chunks, boxes = self.slots[atom, slot]
        demand("compressor" not in described, "UCP-E-FEATURE", atom)
        bits = described["dtype"] == "bfloat16"
        kind = np.dtype("uint16" if bits else described["dtype"]).newbyteorder("<")
        tensor = np.zeros(shape, kind)
        for position, segments in zip(positions(shape, chunk), chunks, strict=True):
            start = [place * extent for place, extent in zip(position, chunk, strict=True)]
            clipped = [
                min(extent, whole - low) for extent, whole, low in zip(chunk, shape, start, strict=True)
            ]
            for container, offset, length, box, blocks in segments:
                low: list[int] = [0] * len(shape)
                size = clipped
                if box:
                    words = boxes[box - 1 : box - 1 + 2 * len(shape)]
                    low, size = words[: len(shape)], words[len(shape) :]
                data = self.bytes_of(self.packs[container], offset, length, blocks)
                demand(len(data) == kind.itemsize * math.prod(size), "UCP-E-SEGMENT", atom)
                region = tuple(slice(s + b, s + b + n) for s, b, n in zip(start, low, size, strict=True))
                tensor[region] = np.frombuffer(data, kind).reshape(size)
        return tensor

    def bytes_of(self, key: str, offset: int, length: int, checksums: list[int]) -> bytes:
        """Return the bytes of a segment, checked block by block (UCP-R-029)."""
        with (self.path / key).open("rb") as pack:
            pack.seek(offset)
            data = pack.read(length)
        demand(len(data) == length, "UCP-E-LENGTH", key)
        for number, checksum in enumerate(checksums):
            block = data[number << 20 : (number + 1) << 20]
            demand(crc32c(block) == checksum, "UCP-E-CHECKSUM", key)
        return data


def positions(shape: list[int], chunk: list[int]) -> Iterator[tuple[int, ...]]:
    """Return the positions of a grid in row-major order: one without dimensions, none where an extent is 0."""
    return product(*(range(math.ceil(extent / size)) for extent, size in zip(shape, chunk, strict=True)))


if __name__ == "__main__":
    checkpoint = Checkpoint(sys.argv[1])
    for atom, slot in checkpoint.names:
        tensor = checkpoint.read(atom, slot)
        print(atom, slot, tensor.dtype, tensor.shape, tensor.reshape(-1)[:4])
