"""The root document (SPEC 10): its members, its digest, and the first steps of opening (SPEC 17.1)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, cast

from ucpformat import jsonio
from ucpformat.errors import Problem, error
from ucpformat.geometry import Layout, Mesh
from ucpformat.jsonio import pointer
from ucpformat.model.envelope import ENVELOPE_MEMBERS, Envelope, check_version, negotiate
from ucpformat.model.fields import array, choice, integer, members, raise_first, string
from ucpformat.model.layout_json import LayoutRecord, MeshRecord, layout_to_json, mesh_to_json, resolve
from ucpformat.model.names import case_problems, key_problems, name_problems
from ucpformat.model.references import DocumentRef, sha256_string

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.jsonio import JsonValue

__all__ = [
    "MAX_CHUNK_BYTES",
    "MAX_DOCUMENT_BYTES",
    "MAX_ROOT_BYTES",
    "MAX_TABLE_BYTES",
    "MIN_CHUNK_BYTES",
    "ROOT_KEY",
    "LogPosition",
    "Part",
    "Producer",
    "Progress",
    "Root",
    "Storage",
    "log_id",
    "parse_root",
    "root_digest",
]

ROOT_KEY: Final = "ucp.json"
MAX_ROOT_BYTES: Final = 4 << 20
MAX_DOCUMENT_BYTES: Final = 1 << 28
MAX_TABLE_BYTES: Final = 1 << 30
MIN_CHUNK_BYTES: Final = 16
MAX_CHUNK_BYTES: Final = 1 << 30

Storage = Literal["plain", "packed"]
_STORAGES: Final = ("plain", "packed")
_NONE: Final[frozenset[str]] = frozenset()
_UNSEALED: Final = "sha256:" + "0" * 64
_ROOT_REQUIRED: Final = ENVELOPE_MEMBERS | {"digest", "storage", "chunk_bytes", "meshes", "layouts", "parts"}
_LOG_ID: Final = re.compile(r"[0-9a-f]{32}")
_ROOT_OPTIONAL: Final = frozenset({"producer", "progress", "packs", "state"})


@dataclass(frozen=True, slots=True)
class Producer:
    """The software that wrote the checkpoint."""

    name: str
    version: str

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Producer:
        """Read a producer object; raises ``UCP-E-SCHEMA``."""
        found = members(value, frozenset({"name", "version"}), _NONE, at)
        return cls(
            string(found["name"], pointer(at, "name")), string(found["version"], pointer(at, "version"))
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"name": self.name, "version": self.version}


def log_id(value: JsonValue, at: str) -> str:
    """Return a value as the id of an update log; raises ``UCP-E-SCHEMA``."""
    text = string(value, at)
    if _LOG_ID.fullmatch(text) is None:
        raise error("UCP-E-SCHEMA", f"the id of a log is 32 hexadecimal digits, not {text!r}", at=at)
    return text


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The update log and its epoch that a state belongs to (SPEC-UPDATE-LOGS section 4); the step is the progress."""

    id: str
    epoch: int

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> LogPosition:
        """Read the position; raises ``UCP-E-SCHEMA``."""
        found = members(value, frozenset({"id", "epoch"}), _NONE, at)
        return cls(log_id(found["id"], pointer(at, "id")), integer(found["epoch"], pointer(at, "epoch")))

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"id": self.id, "epoch": self.epoch}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training had come: ``step`` optimizer steps, None where the writer did not know, and the update log."""

    step: int | None = None
    log: LogPosition | None = None

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Progress:
        """Read a progress object; raises ``UCP-E-SCHEMA``."""
        found = members(value, _NONE, frozenset({"step", "log"}), at)
        return cls(
            integer(found["step"], pointer(at, "step")) if "step" in found else None,
            LogPosition.from_json(found["log"], at=pointer(at, "log")) if "log" in found else None,
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        value: dict[str, JsonValue] = {} if self.step is None else {"step": self.step}
        return value if self.log is None else {**value, "log": self.log.to_json()}


@dataclass(frozen=True, slots=True)
class Part:
    """An index part and its chunk table: names of the first and last atom, and how many there are."""

    first: str
    last: str
    atoms: int
    index: DocumentRef
    table: DocumentRef

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Part:
        """Read a part's entry; raises ``UCP-E-SCHEMA``."""
        found = members(value, frozenset({"first", "last", "atoms", "index", "table"}), _NONE, at)
        return cls(
            string(found["first"], pointer(at, "first")),
            string(found["last"], pointer(at, "last")),
            integer(found["atoms"], pointer(at, "atoms"), least=1),
            DocumentRef.from_json(found["index"], at=pointer(at, "index")),
            DocumentRef.from_json(found["table"], at=pointer(at, "table")),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {
            "first": self.first,
            "last": self.last,
            "atoms": self.atoms,
            "index": self.index.to_json(),
            "table": self.table.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The root document. ``digest`` is that of the bytes it was parsed from; `seal` makes its own."""

    envelope: Envelope = field(default_factory=Envelope)
    digest: str = _UNSEALED
    storage: Storage
    chunk_bytes: int
    meshes: tuple[Mesh, ...] = ()
    layouts: tuple[Layout, ...] = ()
    packs: DocumentRef | None = None
    state: DocumentRef | None = None
    parts: tuple[Part, ...] = ()
    producer: Producer | None = None
    progress: Progress | None = None

    @property
    def step(self) -> int | None:
        """How many optimizer steps were done, None where the writer did not say."""
        return None if self.progress is None else self.progress.step

    @property
    def log(self) -> LogPosition | None:
        """The update log that goes on from the state, None where there is none."""
        return None if self.progress is None else self.progress.log

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Root:
        """Read a root document and check its content (SPEC 17.1, step 7), but not digest and features.

        Raises the first by precedence: ``UCP-E-FORMAT``, ``UCP-E-VERSION``, ``UCP-E-SCHEMA``,
        ``UCP-E-LIMIT``, ``UCP-E-KEY``, ``UCP-E-NAME``, ``UCP-E-REFERENCE``,
        ``UCP-E-FEATURE-SET``, ``UCP-E-LAYOUT``.
        """
        root, problems = cls.structure(value, at=at)
        raise_first(problems)
        return root

    @classmethod
    def structure(cls, value: JsonValue, *, at: str) -> tuple[Root, tuple[Problem, ...]]:
        """Read a structurally sound root document, and say what is wrong with its content.

        Meshes and layouts with problems are left out of the root. Raises ``UCP-E-FORMAT``, ``UCP-E-VERSION``,
        ``UCP-E-SCHEMA``.
        """
        return cls._checked(check_version(value, at=at), at)

    @classmethod
    def _checked(cls, value: dict[str, JsonValue], at: str) -> tuple[Root, tuple[Problem, ...]]:
        found = members(value, _ROOT_REQUIRED, _ROOT_OPTIONAL, at)
        storage = cast("Storage", choice(found["storage"], _STORAGES, pointer(at, "storage")))
        if (storage == "packed") != ("packs" in found):
            message = "'packs' must be there when the storage is 'packed', and only then"
            raise error("UCP-E-SCHEMA", message, at=at)
        meshes = [
            MeshRecord.from_json(mesh, at=pointer(at, "meshes", index))
            for index, mesh in enumerate(array(found["meshes"], pointer(at, "meshes")))
        ]
        layouts = [
            LayoutRecord.from_json(layout, at=pointer(at, "layouts", index))
            for index, layout in enumerate(array(found["layouts"], pointer(at, "layouts")))
        ]
        packs, state = (
            DocumentRef.from_json(found[member], at=pointer(at, member)) if member in found else None
            for member in ("packs", "state")
        )
        producer = (
            Producer.from_json(found["producer"], at=pointer(at, "producer")) if "producer" in found else None
        )
        progress = (
            Progress.from_json(found["progress"], at=pointer(at, "progress")) if "progress" in found else None
        )
        root = cls(
            envelope=Envelope.from_json(value, at=at),
            digest=sha256_string(found["digest"], pointer(at, "digest")),
            storage=storage,
            chunk_bytes=integer(
                found["chunk_bytes"], pointer(at, "chunk_bytes"), least=MIN_CHUNK_BYTES, most=MAX_CHUNK_BYTES
            ),
            packs=packs,
            state=state,
            parts=tuple(
                Part.from_json(part, at=pointer(at, "parts", index))
                for index, part in enumerate(array(found["parts"], pointer(at, "parts")))
            ),
            producer=producer,
            progress=progress,
        )
        resolved = resolve(meshes, layouts, at=at)
        whole = replace(root, meshes=resolved.meshes, layouts=resolved.layouts)
        return whole, (*root.problems(at=at), *resolved.problems)

    def references(self) -> Iterator[tuple[str, DocumentRef]]:
        """Yield every reference after its pointer, in the order of the document."""
        if self.packs is not None:
            yield "/packs", self.packs
        if self.state is not None:
            yield "/state", self.state
        for index, part in enumerate(self.parts):
            yield f"/parts/{index}/index", part.index
            yield f"/parts/{index}/table", part.table

    def problems(self, *, at: str) -> Iterator[Problem]:
        """Yield problems of keys, names, features and recorded lengths; faulty meshes and layouts cannot exist."""
        for place, reference in self.references():
            limit = MAX_TABLE_BYTES if place.endswith("/table") else MAX_DOCUMENT_BYTES
            if reference.length > limit:
                message = f"{reference.length} bytes are more than the limit of {limit}"
                yield Problem("UCP-E-LIMIT", f"{at}#{place}/length", message)
            yield from key_problems(reference.key, "index/", f"{at}#{place}/key")
        yield from case_problems(
            (reference.key, f"{at}#{place}/key") for place, reference in self.references()
        )
        last = ""
        for index, part in enumerate(self.parts):
            here = pointer(at, "parts", index)
            yield from name_problems(part.first, f"{here}/first")
            yield from name_problems(part.last, f"{here}/last")
            if index and part.first <= last:
                yield Problem(
                    "UCP-E-NAME", f"{here}/first", "a part begins after the last name of the one before"
                )
            if part.last < part.first or (part.last == part.first) != (part.atoms == 1):
                message = f"'first', 'last' and {part.atoms} atoms do not fit together"
                yield Problem("UCP-E-NAME", f"{here}/last", message)
            last = part.last
        yield from self.envelope.problems(at=at)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads; what is absent is left out."""
        value: dict[str, JsonValue] = {**self.envelope.to_json(), "digest": self.digest}
        if self.producer is not None:
            value["producer"] = self.producer.to_json()
        if self.progress is not None:
            value["progress"] = self.progress.to_json()
        value["storage"] = self.storage
        value["chunk_bytes"] = self.chunk_bytes
        value["meshes"] = [mesh_to_json(mesh) for mesh in self.meshes]
        value["layouts"] = [layout_to_json(layout, self.meshes) for layout in self.layouts]
        if self.packs is not None:
            value["packs"] = self.packs.to_json()
        if self.state is not None:
            value["state"] = self.state.to_json()
        value["parts"] = [part.to_json() for part in self.parts]
        return value

    def seal(self) -> tuple[bytes, str]:
        """Return the content of the root document, and the root digest in it.

        Raises ``UCP-E-LIMIT``: it would be over 4 MiB: make fewer and larger parts.
        """
        value = self.to_json()
        value["digest"] = _UNSEALED
        digest = "sha256:" + hashlib.sha256(_render(value)).hexdigest()
        value["digest"] = digest
        data = _render(value)
        if len(data) > MAX_ROOT_BYTES:
            message = (
                f"the root document would have {len(data)} bytes, over 4 MiB: make fewer and larger parts"
            )
            raise error("UCP-E-LIMIT", message, at=ROOT_KEY)
        return data, digest


def _render(value: dict[str, JsonValue]) -> bytes:
    """Return one line per member, and per item of its longer arrays: to be read by people, and diffed."""
    lines = []
    for name, member in value.items():
        label = jsonio.dumps_canonical(name)
        if type(member) is list and name in ("meshes", "layouts", "parts") and member:
            items = b",\n    ".join(jsonio.dumps_canonical(item) for item in member)
            lines.append(b"  %s: [\n    %s\n  ]" % (label, items))
        else:
            lines.append(b"  %s: %s" % (label, jsonio.dumps_canonical(member)))
    return b"{\n%s\n}\n" % b",\n".join(lines)


def root_digest(data: bytes, digest: str, *, at: str = ROOT_KEY) -> str:
    """Return the root digest of ``data``, in which the 64 digits of ``digest`` count as zeros (UCP-D-018).

    Raises ``UCP-E-DIGEST``: the digits do not occur exactly once, so that it is uncertain which to replace.
    """
    digits = digest.removeprefix("sha256:").encode("utf-8")
    found = data.find(digits)
    if found < 0 or data.find(digits, found + 1) >= 0:
        raise error(
            "UCP-E-DIGEST",
            "the digits of the root digest must occur exactly once in the root document",
            at=pointer(at, "digest"),
        )
    blank = hashlib.sha256(data[:found])
    blank.update(b"0" * len(digits))
    blank.update(data[found + len(digits) :])
    return "sha256:" + blank.hexdigest()


def _check_digest(data: bytes, value: dict[str, JsonValue], at: str) -> None:
    here = pointer(at, "digest")
    recorded = value.get("digest")
    if type(recorded) is not str or len(recorded) != len(_UNSEALED):
        raise error("UCP-E-DIGEST", "the root document records no root digest", at=here)
    if root_digest(data, recorded, at=at) != recorded:
        message = "the root document is damaged: its bytes do not match the root digest that it records"
        raise error("UCP-E-DIGEST", message, at=here)


def parse_root(data: bytes, *, features: frozenset[str], extensions: frozenset[str]) -> Root:
    """Return the root document with the content ``data``, by steps 2 to 7 of SPEC 17.1, in that order.

    ``features`` and ``extensions`` are the names that the reader understands.

    Raises ``UCP-E-LIMIT``, ``UCP-E-JSON``: too long, too deep, or not strict JSON.
    Raises ``UCP-E-FORMAT``: no well-formed envelope.
    Raises ``UCP-E-VERSION``: another version.
    Raises ``UCP-E-DIGEST``: the bytes are not those that were sealed.
    Raises ``UCP-E-FEATURE``, ``UCP-E-EXTENSION``: something that the reader does not understand.
    Raises ``UCP-E-SCHEMA`` and further: as `Root.from_json`.
    """
    at = ROOT_KEY
    value = jsonio.loads(data, at=at, limit=MAX_ROOT_BYTES)
    found = check_version(value, at=at)
    _check_digest(data, found, at)
    negotiate(
        cast("list[str]", found["read_features"]),
        cast("dict[str, JsonValue]", found["extensions"]),
        features=features,
        known_extensions=extensions,
        at=at,
    )
    root, problems = Root._checked(found, at)
    raise_first(problems)
    return root
