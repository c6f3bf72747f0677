"""Small checkpoints, and forgeries of them that are sealed again, so that exactly one rule is broken."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.geometry.strategies import shapes
from ucpformat.errors import UcpError
from ucpformat.geometry import Box, Layout
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import DTYPES, DType
from ucpformat.model.root import Storage
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

Array = NDArray[np.generic]

GZIP = Compressor("gzip", {"level": 1})
ZSTD = Compressor("zstd", {"checksum": False, "level": 1})
BLOSC = Compressor(
    "blosc", {"blocksize": 0, "clevel": 1, "cname": "lz4", "shuffle": "shuffle", "typesize": 4}
)
STORAGES: tuple[Storage, ...] = ("plain", "packed")
MIB = 1 << 20


@dataclass(frozen=True)
class Tensor:
    """What a test puts into one slot."""

    data: Array
    dtype: str
    compressor: Compressor | None = None
    layout: Layout | None = None


State = Mapping[tuple[str, str], Tensor]
"""Tensors by names of atom and slot."""


def bits(seed: int, shape: tuple[int, ...], entry: DType) -> Array:
    """Elements of random bits, NaN payloads included; unused bits are zero."""
    count = int(np.prod(shape, dtype=np.int64)) * entry.item_bytes
    raw = np.frombuffer(np.random.default_rng(seed).bytes(count), np.uint8)
    if entry.used_mask is not None:
        raw = raw & np.uint8(entry.used_mask)
    return raw.view(entry.numpy).reshape(shape)


@st.composite
def compressors(draw: st.DrawFn) -> Compressor:
    """Every compressor of the format in some configuration."""
    name = draw(st.sampled_from(["gzip", "zstd", "blosc"]))
    match name:
        case "gzip":
            return Compressor(name, {"level": draw(st.integers(0, 9))})
        case "zstd":
            return Compressor(
                name, {"checksum": draw(st.booleans()), "level": draw(st.sampled_from([-5, 1, 3]))}
            )
        case _:
            return Compressor(
                name,
                {
                    "blocksize": draw(st.sampled_from([0, 64])),
                    "clevel": draw(st.integers(0, 9)),
                    "cname": draw(st.sampled_from(["blosclz", "lz4", "lz4hc", "zlib", "zstd"])),
                    "shuffle": draw(st.sampled_from(["noshuffle", "shuffle", "bitshuffle"])),
                    "typesize": draw(st.sampled_from([1, 2, 4, 8, 255])),
                },
            )


@st.composite
def tensors(draw: st.DrawFn, *, max_elements: int = 300) -> Tensor:
    """Every data type and 0 to 4 dimensions; some are zero, wholly or in part."""
    entry = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(shapes(max_elements=max_elements))
    data = bits(draw(st.integers(0, 2**32)), shape, entry)
    zeros = draw(st.sampled_from(["none", "none", "half", "all"]))
    if zeros != "none":
        data = data.copy()
        flat = data.reshape(-1).view(np.uint8)
        flat[: flat.size if zeros == "all" else flat.size // 2] = 0
    return Tensor(data, entry.name, draw(st.none() | compressors()))


ATOM_NAMES = ("a", "A", "decoder.0.weight", "ü/π", "zarr.json", "x y", "..", "con", "z" * 300)


@st.composite
def states(draw: st.DrawFn) -> State:
    """A few atoms with a few slots each."""
    names = draw(st.lists(st.sampled_from(ATOM_NAMES), min_size=0, max_size=3, unique=True))
    return {
        (name, slot): draw(tensors())
        for name in names
        for slot in draw(st.lists(st.sampled_from(["value", "exp_avg", "s-1"]), min_size=1, unique=True))
    }


def declare(state: State) -> list[AtomSpec]:
    """What a writer is told of ``state``."""
    slots: dict[str, dict[str, SlotSpec]] = {}
    for (atom, slot), tensor in state.items():
        slots.setdefault(atom, {})[slot] = SlotSpec(
            tensor.dtype, tensor.data.shape, tensor.layout, tensor.compressor
        )
    return [AtomSpec(name, found) for name, found in slots.items()]


def save(url: str | Path, state: State, **options: Any) -> None:
    """Write ``state`` as a checkpoint; ``options`` are those of `CheckpointWriter`."""
    with CheckpointWriter(url, declare(state), **{"workers": 2, **options}) as writer:
        for (atom, slot), tensor in state.items():
            writer.write(atom, slot, tensor.data)


_T = TypeVar("_T")


def result_or_refusal(action: Callable[[], _T]) -> _T | UcpError:
    """What ``action`` returns, or the registered error that it raises; other errors pass."""
    try:
        return action()
    except UcpError as refusal:
        return refusal


def fresh_url(medium: str, tmp_path: Path) -> str:
    """A new place for a checkpoint: below ``tmp_path``, or in fsspec's memory."""
    name = f"{uuid4().hex}.ucp"
    return f"memory://{name}" if medium == "memory" else str(tmp_path / name)


@st.composite
def guillotine(draw: st.DrawFn, box: Box, cuts: int) -> list[Box]:
    """A random partition of ``box`` by straight cuts."""
    found = [box]
    for _ in range(cuts):
        place = draw(st.integers(0, len(found) - 1))
        whole = found[place]
        wide = [dim for dim, extent in enumerate(whole.shape) if extent > 1]
        if not wide:
            continue
        dim = draw(st.sampled_from(wide))
        at = draw(st.integers(1, whole.shape[dim] - 1))
        shape = whole.shape
        low = Box(whole.offset, (*shape[:dim], at, *shape[dim + 1 :]))
        offset = (*whole.offset[:dim], whole.offset[dim] + at, *whole.offset[dim + 1 :])
        high = Box(offset, (*shape[:dim], shape[dim] - at, *shape[dim + 1 :]))
        found[place : place + 1] = [low, high]
    return found


def region(box: Box) -> tuple[Any, ...]:
    """``box`` as a numpy index that keeps an array an array."""
    return (*(slice(first, stop) for first, stop in zip(box.offset, box.stop, strict=True)), ...)


def files_below(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file())


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file by its key."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files_below(root)}


# A chunk table, read and written a second time here so that the library's own reading is not its own judge.

HEADER = struct.Struct("<8sII4Q16s")
ROW = struct.Struct("<IIQQQ")


@dataclass
class RawTable:
    """The fields of a chunk table as they stand in the file (SPEC 16.5); ``header`` overrides what follows."""

    rows: list[list[int]]
    words: list[int]
    counts: list[int]
    checksums: list[int]
    header: dict[str, Any] = field(default_factory=dict)
    tail: bytes = b""

    @classmethod
    def parse(cls, data: bytes) -> RawTable:
        magic, version, block, chunks, segments, words, checksums, zero = HEADER.unpack_from(data)
        assert (magic, version, block, zero) == (b"UCPTABLE", 0, MIB, bytes(16))
        at = HEADER.size
        rows = [list(ROW.unpack_from(data, at + ROW.size * row)) for row in range(segments)]
        at += ROW.size * segments
        values = struct.unpack_from(f"<{words}Q{chunks}I{checksums}I", data, at)
        assert at + 8 * words + 4 * chunks + 4 * checksums == len(data)
        return cls(
            rows, list(values[:words]), list(values[words : words + chunks]), list(values[words + chunks :])
        )

    def build(self) -> bytes:
        fields = {
            "magic": b"UCPTABLE",
            "version": 0,
            "block": MIB,
            "chunks": len(self.counts),
            "segments": len(self.rows),
            "words": len(self.words),
            "checksums": len(self.checksums),
            "zero": bytes(16),
            **self.header,
        }
        return b"".join(
            (
                HEADER.pack(*fields.values()),
                *(ROW.pack(*row) for row in self.rows),
                struct.pack(f"<{len(self.words)}Q", *self.words),
                struct.pack(f"<{len(self.counts)}I", *self.counts),
                struct.pack(f"<{len(self.checksums)}I", *self.checksums),
                self.tail,
            )
        )


BLANK = "sha256:" + "0" * 64


def seal(root: bytes) -> bytes:
    """``root``, in which the digest stands blank, with its root digest."""
    assert root.count(BLANK.encode()) == 1
    return root.replace(BLANK.encode(), b"sha256:" + hashlib.sha256(root).hexdigest().encode())


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Forgery:
    """A good checkpoint at ``path``, to be changed; `sealed` makes all lengths and digests right again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root: dict[str, Any] = json.loads((path / "ucp.json").read_bytes())

    def reference(self, document: str) -> dict[str, Any]:
        """The root's reference to ``packs``, ``state``, ``index`` or ``table``; those of the first part."""
        found = self.root[document] if document in self.root else self.root["parts"][0][document]
        assert isinstance(found, dict)
        return found

    def document(self, document: str) -> Any:
        return json.loads((self.path / self.reference(document)["key"]).read_bytes())

    def put(self, document: str, content: bytes) -> None:
        """Replace the bytes of a document and make the root agree."""
        reference = self.reference(document)
        (self.path / reference["key"]).write_bytes(content)
        reference["length"] = len(content)
        reference["digest"] = "sha256:" + hashlib.sha256(content).hexdigest()

    def edit(self, document: str, change: Callable[[Any], object]) -> Forgery:
        """Change a JSON document in place, or the root itself."""
        if document == "root":
            change(self.root)
        else:
            value = self.document(document)
            change(value)
            self.put(document, dump(value))
        return self

    def table(self) -> RawTable:
        return RawTable.parse((self.path / self.reference("table")["key"]).read_bytes())

    def edit_table(self, change: Callable[[RawTable], object]) -> Forgery:
        table = self.table()
        change(table)
        self.put("table", table.build())
        return self

    def sealed(self) -> Path:
        """Publish the changed root."""
        self.root["digest"] = BLANK
        (self.path / "ucp.json").write_bytes(seal(dump(self.root)))
        return self.path


def forge(path: Path, state: State, **options: Any) -> Forgery:
    """A new checkpoint that is about to be changed."""
    save(path, state, **options)
    return Forgery(path)


def read_everything(url: str | Path) -> dict[tuple[str, str], Array]:
    """All slots of the checkpoint at ``url``, and its state document."""
    with open_checkpoint(url, workers=2) as checkpoint:
        return read_all(checkpoint)


def read_all(checkpoint: Checkpoint) -> dict[tuple[str, str], Array]:
    _ = checkpoint.state
    return {(name, slot): view.read() for name, atom in checkpoint.items() for slot, view in atom.items()}
