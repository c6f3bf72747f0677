"""Static cases: one file each, which says what the case's files are, or how they differ from those of its parent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ucp_conformance.mutation import entry_of, file_of
from ucp_conformance.resources import vectors_folder

__all__ = ["Vector", "all_vectors", "read_vector", "vector_of", "vectors_digest", "write_vectors"]


@dataclass(frozen=True, slots=True)
class Vector:
    """A case and the bytes of its files, whose keys begin with ``checkpoint/`` or ``expected/``."""

    case: Mapping[str, Any]
    files: Mapping[str, bytes]

    @property
    def id(self) -> str:
        """The name of the case."""
        return str(self.case["id"])

    @property
    def checkpoint(self) -> dict[str, bytes]:
        """The objects of the checkpoint by their keys."""
        return self._below("checkpoint/")

    @property
    def expected(self) -> dict[str, bytes]:
        """What is to be read, and what is given to writers, by name."""
        return self._below("expected/")

    def _below(self, folder: str) -> dict[str, bytes]:
        return {key.removeprefix(folder): data for key, data in self.files.items() if key.startswith(folder)}

    def plain(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files of the case as a plain directory holds them, ``case.json`` among them."""
        yield "case.json", (json.dumps(self.case, indent=1) + "\n").encode()
        yield from self.files.items()

    def unpack(self, folder: Path) -> None:
        """Write the case as plain files into ``folder``."""
        for key, data in self.plain():
            target = folder / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def document(self, parent: Vector | None) -> dict[str, Any]:
        """Return what the file of the case holds; files that equal those of ``parent`` are left out."""
        inherited = _inherited(parent)
        entries: dict[str, Any] = {
            key: entry_of(data, inherited.get(key))
            for key, data in sorted(self.files.items())
            if inherited.get(key) != data
        }
        entries |= dict.fromkeys(inherited.keys() - self.files.keys())
        return {**self.case, "files": dict(sorted(entries.items()))}


def vector_of(
    case: Mapping[str, Any], checkpoint: Mapping[str, bytes], expected: Mapping[str, bytes]
) -> Vector:
    """Return the case with the objects of its checkpoint and what it expects or gives."""
    files = {f"checkpoint/{key}": data for key, data in checkpoint.items()}
    return Vector(case, files | {f"expected/{key}": data for key, data in expected.items()})


def _inherited(parent: Vector | None) -> dict[str, bytes]:
    """Return the files that a mutation shares: the checkpoint, and nothing of what its parent expects."""
    return (
        {f"checkpoint/{key}": data for key, data in parent.checkpoint.items()} if parent is not None else {}
    )


def read_vector(document: Mapping[str, Any], parent: Vector | None) -> Vector:
    """Return the case that ``document`` holds, made of ``parent`` where it is a mutation.

    Raises:
        ValueError: if its files cannot be made of those of the parent.
    """
    case = {name: value for name, value in document.items() if name != "files"}
    files = _inherited(parent)
    for key, entry in document["files"].items():
        if entry is None:
            del files[key]
        else:
            files[key] = file_of(entry, files.get(key))
    return Vector(case, files)


@cache
def all_vectors() -> tuple[Vector, ...]:
    """Return every static case, in order of names."""
    root = vectors_folder()
    documents = {}
    for path in root.rglob("*.json"):
        document = json.loads(path.read_bytes())
        if f"{document['id']}.json" != path.relative_to(root).as_posix():
            raise ValueError(f"{path} holds the case {document['id']}")
        documents[document["id"]] = document
    found: dict[str, Vector] = {}
    # A parent is no mutation itself.
    for name, document in sorted(documents.items(), key=lambda item: "mutates" in item[1]):
        found[name] = read_vector(document, found[document["mutates"]] if "mutates" in document else None)
    return tuple(found[name] for name in sorted(found, key=lambda name: name.split("/")))


def vectors_digest() -> str:
    """Return one digest of all cases as plain files, so that reports can be compared."""
    plain = {f"{vector.id}/{key}": data for vector in all_vectors() for key, data in vector.plain()}
    whole = hashlib.sha256()
    for key in sorted(plain, key=lambda key: key.split("/")):
        whole.update(key.encode() + b"\0")
        whole.update(hashlib.sha256(plain[key]).digest())
    return "sha256:" + whole.hexdigest()


def write_vectors(vectors: Iterable[Vector], root: Path) -> None:
    """Write the file of each case below ``root``; parents must be among ``vectors``."""
    known = {vector.id: vector for vector in vectors}
    for vector in known.values():
        parent = known[vector.case["mutates"]] if "mutates" in vector.case else None
        path = root / f"{vector.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vector.document(parent), indent=1) + "\n", encoding="utf-8")
