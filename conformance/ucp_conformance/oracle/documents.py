"""The JSON documents of a checkpoint: opening, and what the text demands beyond the schemas."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from ucp_conformance.oracle import layouts
from ucp_conformance.oracle.bytes_of import ITEM_BYTES, sha256
from ucp_conformance.oracle.problem import Problem, RefusalError, pointer
from ucp_conformance.oracle.store import Store, is_component, is_key
from ucp_conformance.oracle.strict_json import LARGEST, parse
from ucp_conformance.resources import schema_validator

__all__ = [
    "MOST_DOCUMENT",
    "Collected",
    "atom_problems",
    "document",
    "fetch",
    "is_name",
    "open_root",
    "references",
    "schema",
    "standalone",
    "unique_names",
]

ROOT: Final = "ucp.json"
MOST_ROOT: Final = 4 << 20
MOST_DOCUMENT: Final = 1 << 28
MOST_TABLE: Final = 1 << 30
KNOWN_FEATURES: Final = frozenset(
    {"blosc", "incremental", "process-images", "row-overwrite", "weight-versions", "zstd"}
)
_MEMBERS: Final[dict[str, type]] = {
    "read_features": list,
    "write_features": list,
    "extensions": dict,
    "annotations": dict,
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Collected:
    """Problems in the order in which they were met."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, code: str, at: str, why: str = "") -> None:
        """Keep a problem, once."""
        if all((code, at) != (problem.code, problem.at) for problem in self.problems):
            self.problems.append(Problem(code, at, why))

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Keep what refuses inside."""
        try:
            yield
        except RefusalError as refusal:
            self.problems.append(refusal.problem)


def schema(name: str, value: Any, at: str) -> None:
    """Raise UCP-E-SCHEMA unless the document meets its schema."""
    found = _schema_fault(name, json.dumps(value))
    if found is not None:
        raise RefusalError("UCP-E-SCHEMA", pointer(at, *found[0]), found[1])


@lru_cache(maxsize=4096)
def _schema_fault(name: str, text: str) -> tuple[tuple[str | int, ...], str] | None:
    fault = next(iter(schema_validator(name).iter_errors(json.loads(text))), None)
    return None if fault is None else (tuple(fault.absolute_path), fault.message[:200])


def open_root(store: Store, found: Collected) -> dict[str, Any] | None:
    """Do steps 1 to 7 of SPEC 17.1 and return the root; None where nothing further can be trusted."""
    size = store.size(ROOT)
    if size is None:
        raise RefusalError("UCP-E-NOT-FOUND", ROOT)
    data = store.read(ROOT)
    value = parse(data, at=ROOT, limit=MOST_ROOT)
    _envelope(value)
    if value["format_version"] != 0:
        raise RefusalError("UCP-E-VERSION", pointer(ROOT, "format_version"))
    with found.refusals():
        _digest(data, value)
    known = True
    for feature in value["read_features"]:
        if feature not in KNOWN_FEATURES:
            found.add("UCP-E-FEATURE", pointer(ROOT, "read_features"))
            known = False
    for name, extension in value["extensions"].items():
        if not isinstance(extension, dict) or extension.get("must_understand", True) is not False:
            found.add("UCP-E-EXTENSION", pointer(ROOT, "extensions", name))
            known = False
    if not known:
        return None
    schema("root", value, ROOT)
    _root_content(value, found)
    return dict(value)


def _envelope(value: Any, key: str = ROOT) -> None:
    def wrong(*at: str) -> RefusalError:
        return RefusalError("UCP-E-FORMAT", pointer(key, *at))

    if not isinstance(value, dict):
        raise wrong()
    for name in ("format", "format_version", *_MEMBERS):
        if name not in value:
            raise wrong()
    if value["format"] != "ucp":
        raise wrong("format")
    if type(value["format_version"]) is not int:
        raise wrong("format_version")
    for name, kind in _MEMBERS.items():
        if not isinstance(value[name], kind):
            raise wrong(name)
        if kind is list and not all(isinstance(item, str) for item in value[name]):
            raise wrong(name)


def standalone(value: Any, key: str) -> None:
    """Refuse what no document that stands alone has in its envelope (UCP-R-022)."""
    _envelope(value, key)
    if value["format_version"] != 0:
        raise RefusalError("UCP-E-VERSION", pointer(key, "format_version"))
    if value["read_features"]:
        raise RefusalError("UCP-E-FEATURE", pointer(key, "read_features"))
    for name, extension in value["extensions"].items():
        if not isinstance(extension, dict) or extension.get("must_understand", True) is not False:
            raise RefusalError("UCP-E-EXTENSION", pointer(key, "extensions", name))


def _digest(data: bytes, value: dict[str, Any]) -> None:
    recorded = value.get("digest")
    at = pointer(ROOT, "digest")
    if not isinstance(recorded, str) or not re.fullmatch("sha256:[0-9a-f]{64}", recorded):
        raise RefusalError("UCP-E-DIGEST", at, "there is none")
    digits = recorded[7:].encode()
    pieces = re.split(b"(?=" + digits + b")", data)
    if len(pieces) != 2:
        raise RefusalError("UCP-E-DIGEST", at, "the digits do not occur once")
    blank = pieces[0] + b"0" * 64 + pieces[1][64:]
    if hashlib.sha256(blank).hexdigest() != recorded[7:]:
        raise RefusalError("UCP-E-DIGEST", at, "the bytes are others")


def references(root: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield kind, place and reference of every document that the root refers to."""
    for name in ("packs", "state"):
        if name in root:
            yield name, pointer(ROOT, name), root[name]
    for number, part in enumerate(root["parts"]):
        for name in ("index", "table"):
            yield name, pointer(ROOT, "parts", number, name), part[name]


def _root_content(root: dict[str, Any], found: Collected) -> None:
    keys: set[str] = set()
    for kind, at, reference in references(root):
        if reference["length"] > (MOST_TABLE if kind == "table" else MOST_DOCUMENT):
            found.add("UCP-E-LIMIT", pointer(at, "length"))
        key = reference["key"]
        if not is_key(key) or not key.startswith("index/") or key.lower() == "index/claim":
            found.add("UCP-E-KEY", pointer(at, "key"))
        if key.lower() in keys:
            found.add("UCP-E-KEY", pointer(at, "key"), "a key twice, but for case")
        keys.add(key.lower())
    last: bytes | None = None
    for number, part in enumerate(root["parts"]):
        at = pointer(ROOT, "parts", number)
        for member in ("first", "last"):
            if not is_name(part[member]):
                found.add("UCP-E-NAME", pointer(at, member))
        first, end = part["first"].encode(), part["last"].encode()
        if (last is not None and first <= last) or end < first or (first == end) != (part["atoms"] == 1):
            found.add("UCP-E-NAME", at, "parts are not sorted")
        last = end
    for member in ("read_features", "write_features"):
        if root[member] != sorted(set(root[member])):
            found.add("UCP-E-FEATURE-SET", pointer(ROOT, member))
    if set(root["read_features"]) & set(root["write_features"]):
        found.add("UCP-E-FEATURE-SET", pointer(ROOT, "write_features"))
    for number, mesh in enumerate(root["meshes"]):
        with found.refusals(), _placed(pointer(ROOT, "meshes", number)):
            layouts.check_mesh(mesh)
    for number, layout in enumerate(root["layouts"]):
        at = pointer(ROOT, "layouts", number)
        if layout["mesh"] >= len(root["meshes"]):
            found.add("UCP-E-REFERENCE", pointer(at, "mesh"))
            continue
        with found.refusals(), _placed(at):
            layouts.check_steps(root["meshes"][layout["mesh"]], layout["steps"])
    behind: dict[tuple[int, str], Any] = {}
    for number, layout in enumerate(root["layouts"]):
        kinds = [step["kind"] for step in layout["steps"]]
        if "concat" in kinds:
            rest = layout["steps"][kinds.index("concat") :]
            if behind.setdefault((layout["mesh"], rest[0]["group"]), rest) != rest:
                found.add("UCP-E-LAYOUT", pointer(ROOT, "layouts", number), "other steps behind one concat")


@contextmanager
def _placed(at: str) -> Iterator[None]:
    try:
        yield
    except RefusalError as refusal:
        raise RefusalError(refusal.problem.code, at, refusal.problem.why) from None


def is_name(text: str) -> bool:
    """Return whether UCP-D-023 holds."""
    return 1 <= len(text.encode()) <= 1024 and not _CONTROL.search(text)


def fetch(store: Store, reference: dict[str, Any]) -> bytes:
    """Return the bytes of a referenced document, checked (UCP-R-013)."""
    key = reference["key"]
    if not is_key(key):
        raise RefusalError("UCP-E-KEY", key)
    data = store.read(key)
    if len(data) != reference["length"]:
        raise RefusalError("UCP-E-LENGTH", key)
    if sha256(data) != reference["digest"]:
        raise RefusalError("UCP-E-DIGEST", key)
    return data


def document(store: Store, kind: str, reference: dict[str, Any]) -> Any:
    """Return a referenced JSON document that meets its schema."""
    value = parse(fetch(store, reference), at=reference["key"], limit=MOST_DOCUMENT)
    schema(kind, value, reference["key"])
    return value


def atom_problems(atoms: list[dict[str, Any]], layouts_count: int, at: str, found: Collected) -> None:
    """Report problems of names, keys, slots, references and shapes of one part."""
    for number, atom in enumerate(atoms):
        here = pointer(at, "atoms", number)
        if not all(map(is_name, (atom["name"], *atom.get("aliases", ())))):
            found.add("UCP-E-NAME", pointer(here, "name"))
        if number and atom["name"].encode() <= atoms[number - 1]["name"].encode():
            found.add("UCP-E-NAME", pointer(here, "name"), "atoms are not sorted")
        if not is_component(atom["key"]) or atom["key"].lower() == "zarr.json":
            found.add("UCP-E-KEY", pointer(here, "key"))
        folded: set[str] = set()
        for name, slot in atom["slots"].items():
            place = pointer(here, "slots", name)
            if (
                not is_component(name)
                or len(name) > 64
                or name.lower() == "zarr.json"
                or name.lower() in folded
            ):
                found.add("UCP-E-KEY", place)
            folded.add(name.lower())
            if slot["dtype"] not in ITEM_BYTES:
                found.add("UCP-E-DTYPE", pointer(place, "dtype"))
            if slot.get("layout", -1) >= layouts_count:
                found.add("UCP-E-REFERENCE", pointer(place, "layout"))
            size = ITEM_BYTES.get(slot["dtype"], 1)
            for extent in slot["shape"]:
                size *= max(1, extent)
            if len(slot["shape"]) > 32 or size > LARGEST:
                found.add("UCP-E-SHAPE", pointer(place, "shape"))


def unique_names(parts: Iterable[tuple[str, list[dict[str, Any]]]], found: Collected) -> None:
    """Check UCP-D-017 and UCP-D-028, over all parts."""
    names: set[str] = set()
    keys: set[str] = set()
    for at, atoms in parts:
        for number, atom in enumerate(atoms):
            here = pointer(at, "atoms", number)
            for name in (atom["name"], *atom.get("aliases", ())):
                if name in names:
                    found.add("UCP-E-NAME", here, "a name twice")
                names.add(name)
            if atom["key"].lower() in keys:
                found.add("UCP-E-KEY", pointer(here, "key"), "a key twice")
            keys.add(atom["key"].lower())
