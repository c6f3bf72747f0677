"""What is fuzzed: parsers of one document in memory, importers of every format, and whole universal checkpoints."""

from __future__ import annotations

import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.builders import read_all
from tests.campaigns.hostile.mutations import mutated
from tests.campaigns.hostile.sealing import sealed
from tests.campaigns.hostile.seeds import SEEDS, SUFFIXES, Document, seeds_of, written
from tests.conversion.jobs import whole
from ucpformat import schema
from ucpformat.conversion.contract.foreign import ImportOptions
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.dcp_files.metadata import read_metadata
from ucpformat.conversion.engine.work_order import Recipe
from ucpformat.errors import UcpError
from ucpformat.jsonio import loads
from ucpformat.model.compressor import Compressor
from ucpformat.model.index_part import IndexPart
from ucpformat.model.references import PackList
from ucpformat.model.root import Root
from ucpformat.model.state import StateDocument
from ucpformat.model.table import ChunkTable
from ucpformat.model.values import decode
from ucpformat.patterns.atom_map_document import parse_atom_map
from ucpformat.patterns.document import parse_patterns
from ucpformat.reader import open_checkpoint
from ucpformat.storage.compression import compress, decompress
from ucpformat.storage.writing.stored_columns import Receipt
from ucpformat.tensor_files.allowed_globals import OBJECT_GLOBALS
from ucpformat.tensor_files.byte_source import MemoryRange
from ucpformat.tensor_files.legacy_archive import open_archive
from ucpformat.tensor_files.object_tree import Limits, check_tree
from ucpformat.tensor_files.safetensors_file import parse_object
from ucpformat.tensor_files.unpickle import unpickle
from ucpformat.validation import validate

__all__ = ["CHECKPOINTS", "IMPORTERS", "PARSERS", "Target", "changed", "convert_and_validate", "target_of"]

_LIMITS: Final = Limits(pickle_bytes=1 << 20, nodes=1 << 16, depth=100)
_CODECS: Final = (
    Compressor("gzip", {"level": 1}),
    Compressor("zstd", {"level": 1, "checksum": True}),
    Compressor("blosc", {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}),
)


class Target(ABC):
    """Something that takes documents."""

    seeds: Sequence[Document]

    @abstractmethod
    def run(self, document: Document) -> None:
        """One execution, of a document as `prepared`."""

    def prepared(self, number: int, document: Document, draw: random.Random) -> Document:
        """What is to be run of a mutated document, which came from the seed ``number``; not watched."""
        return document


def _root(data: bytes) -> None:
    value = loads(data, at="ucp.json", limit=4 << 20)
    list(schema.problems("root", value, "ucp.json"))
    root, _ = Root.structure(value, at="ucp.json")
    list(root.problems(at="ucp.json"))


def _index(data: bytes) -> None:
    value = loads(data, at="index/x.json")
    with suppress(UcpError):
        IndexPart.from_json(value, at="index/x.json").columns()
    if not list(schema.problems("index", value, "index/x.json")):
        list(IndexPart.structure(value, at="index/x.json").problems(at="index/x.json"))


def _state(data: bytes) -> None:
    value = loads(data, at="index/s.json")
    with suppress(UcpError):
        StateDocument.from_json(value, at="index/s.json")
    if not list(schema.problems("state", value, "index/s.json")):
        state = StateDocument.structure(value, at="index/s.json")
        list(state.problems(at="index/s.json"))
        for at, tagged in state.tagged_values(at="index/s.json"):
            decode(tagged, at=at)


def _packs(data: bytes) -> None:
    PackList.from_json(loads(data, at="index/p.json"), at="index/p.json")


def _table(data: bytes) -> None:
    table = ChunkTable.parse(data, at="index/x.bin")
    for row in range(min(int(table.counts.size), 64)):
        table.segments(row, 2)


def _pickle(data: bytes) -> None:
    limits = _LIMITS.of(len(data))
    check_tree(unpickle(data, OBJECT_GLOBALS, at="x", limits=limits), at="x", limits=limits)


def _archive(data: bytes) -> None:
    archive = open_archive(MemoryRange(data, "x"))
    archive.read_object(_LIMITS)
    archive.check()


def _codec(data: bytes) -> None:
    decompress(_CODECS[data[0] % 3 if data else 0], data[1:], 24, at="x")


def _receipt(data: bytes) -> None:
    Receipt.unpack(data, [("a", "value"), ("a", "step")])


_PARSERS: Final[Mapping[str, tuple[Callable[[bytes], object], str, str]]] = {
    "json": (lambda data: loads(data, at="x"), "ucp", ".json"),
    "root": (_root, "ucp", "ucp.json"),
    "index": (_index, "ucp", "-0.json"),
    "state": (_state, "ucp", "state.json"),
    "packs": (_packs, "ucp", "packs.json"),
    "table": (_table, "ucp", ".bin"),
    "codec": (_codec, "", ""),
    "patterns": (parse_patterns, "", "patterns.json"),
    "atom-map": (parse_atom_map, "", "atom-map.json"),
    "pickle": (_pickle, "", ""),
    "metadata": (lambda data: read_metadata(data, "x"), "dcp", ".metadata"),
    "archive": (_archive, "torch-save", ""),
    "safetensors-header": (lambda data: parse_object(data, "x"), "safetensors", ".json"),
}


class _Parser(Target):
    def __init__(self, name: str, folder: Path) -> None:
        self._parse, format_name, suffix = _PARSERS[name]
        if name == "codec":
            data = bytes(range(24))
            found = [
                bytes([number]) + compress(codec, memoryview(data)) for number, codec in enumerate(_CODECS)
            ]
        elif name == "pickle":
            found = [*_pickles(folder)]
        elif not format_name:
            library = Path(schema.__file__).parent / "patterns" / "library"
            found = [path.read_bytes() for path in sorted(library.glob(f"*{suffix}"))]
        else:
            found = [
                data
                for seed in seeds_of(format_name, folder)
                for key, data in seed.items()
                if key.endswith(suffix)
            ]
        self.seeds = [{"": data} for data in found]

    def run(self, document: Document) -> None:
        self._parse(document[""])


def _pickles(folder: Path) -> Iterator[bytes]:
    import io
    import zipfile

    for format_name in ("torch-save", "accelerate"):
        for seed in seeds_of(format_name, folder):
            for data in seed.values():
                if data[:4] == b"PK\3\4":
                    with zipfile.ZipFile(io.BytesIO(data)) as archive:
                        yield from (
                            archive.read(name) for name in archive.namelist() if name.endswith(".pkl")
                        )


class _Files(Target):
    """Documents that lie in directories; only what differs from the last one is written."""

    def __init__(self, format_name: str, folder: Path, scratch: Path) -> None:
        self.format_name = format_name
        self.seeds = seeds_of(format_name, folder)
        self._scratch = scratch / "in"
        self._lying: dict[int, dict[str, bytes]] = {}
        self._place = scratch

    def prepared(self, number: int, document: Document, draw: random.Random) -> Document:
        place = self._scratch / f"{number}{SUFFIXES.get(self.format_name, '')}"
        lying = self._lying.get(number)
        if lying is None or any("/" in name and not (place / name).parent.is_dir() for name in document):
            shutil.rmtree(place, ignore_errors=True)
            self._scratch.mkdir(parents=True, exist_ok=True)
            written(document, place)
        else:
            for name in lying.keys() - document.keys():
                (place / name if name else place).unlink()
            for name, data in document.items():
                if lying.get(name) != data:
                    (place / name if name else place).write_bytes(data)
        self._lying[number] = dict(document)
        self._place = place
        return document


class _Importer(_Files):
    """Planning and reading; one conversion in ten is written, and then validates."""

    def __init__(self, format_name: str, folder: Path, scratch: Path) -> None:
        super().__init__(format_name, folder, scratch)
        self._count = 0

    def run(self, document: Document) -> None:
        source = str(self._place)
        with suppress(UcpError):
            detect_format(source)
        with Recipe(source, self.format_name, ImportOptions()).open() as opened:
            whole(opened.job)
        self._count += 1
        if self._count % 10 == 0:
            convert_and_validate(self.format_name, self._place, self._place.parent.parent / "out")


class _Checkpoint(_Files):
    """Validating, opening, reading; most are sealed first."""

    def prepared(self, number: int, document: Document, draw: random.Random) -> Document:
        return super().prepared(number, sealed(document) if draw.random() < 0.8 else document, draw)

    def run(self, document: Document) -> None:
        problems = validate(self._place, workers=1)
        if any(not problem.at or not problem.message for problem in problems):
            raise AssertionError(f"a problem without a place: {problems}")
        with open_checkpoint(self._place, workers=1) as checkpoint:
            read_all(checkpoint)


def convert_and_validate(format_name: str, source: Path, out: Path) -> None:
    """Convert, and hold what was written against the specification: an `AssertionError` tells of a problem."""
    shutil.rmtree(out, ignore_errors=True)
    try:
        convert_checkpoint(source, out, source_format=format_name, destination_format="ucp")
    except UcpError as refusal:
        if "files/" not in refusal.message:
            raise
        convert_checkpoint(source, out, source_format=format_name, destination_format="ucp", drop=["files/*"])
    problems = validate(out, workers=1)
    if problems:
        raise AssertionError(f"converted, and then {problems[:3]}")


PARSERS: Final = tuple(_PARSERS)
IMPORTERS: Final = tuple(format_name for format_name in SEEDS if format_name != "ucp")
CHECKPOINTS: Final = ("ucp",)


def target_of(name: str, folder: Path, scratch: Path) -> Target:
    """The target of a name; ``folder`` keeps the seeds, ``scratch`` is this process's own."""
    if name in _PARSERS:
        return _Parser(name, folder)
    return _Checkpoint(name, folder, scratch) if name in CHECKPOINTS else _Importer(name, folder, scratch)


def changed(document: Document, draw: random.Random, others: Sequence[Document]) -> dict[str, bytes]:
    """A document with one file mutated, or removed, exchanged or put at another place."""
    found = dict(document)
    name = draw.choice(list(found))
    if len(found) > 1 and draw.random() < 0.1:
        other = draw.choice(list(found))
        match draw.randrange(3):
            case 0:
                del found[name]
            case 1:
                found[name], found[other] = found[other], found[name]
            case _:
                found[f"{name}{draw.choice(('0', '.tmp', '_1'))}"] = found[name]
        return found
    parts = [data for one in others[:8] for data in one.values()][:16]
    found[name] = mutated(found[name], draw, parts)
    return found
