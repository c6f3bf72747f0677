"""References from documents to objects of the store: documents by their digest (SPEC 10), and packs (SPEC 16.4)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem, error
from ucpformat.jsonio import pointer
from ucpformat.model.fields import array, integer, members, raise_first, string
from ucpformat.model.names import case_problems, key_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.jsonio import JsonValue

__all__ = ["DocumentRef", "Pack", "PackList", "sha256_digest", "sha256_string"]

_SHA256: Final = re.compile(r"sha256:[0-9a-f]{64}")
_REQUIRED: Final = frozenset({"key", "length", "digest"})


def sha256_digest(data: bytes) -> str:
    """Return ``sha256:`` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sha256_string(value: JsonValue, at: str) -> str:
    """Return ``value`` as a digest string, or ``UCP-E-SCHEMA``."""
    if not _SHA256.fullmatch(string(value, at)):
        raise error("UCP-E-SCHEMA", "a digest is 'sha256:' and 64 lower-case hexadecimal digits", at=at)
    return value  # type: ignore[return-value]  # `string` has seen to it


@dataclass(frozen=True, slots=True)
class DocumentRef:
    """An object of the store, named with its length in bytes and the SHA-256 of all of them."""

    key: str
    length: int
    digest: str

    @classmethod
    def to(cls, key: str, data: bytes) -> DocumentRef:
        """Return the reference to ``data`` stored at ``key``."""
        return cls(key, len(data), sha256_digest(data))

    def require(self, stored: DocumentRef) -> None:
        """Raise ``UCP-E-LENGTH`` or ``UCP-E-DIGEST`` where an object is not the one that is referred to."""
        if stored.length != self.length:
            message = f"the object has {stored.length} bytes, recorded are {self.length}"
            raise error("UCP-E-LENGTH", message, at=self.key)
        if stored.digest != self.digest:
            raise error("UCP-E-DIGEST", "the object does not match its recorded SHA-256", at=self.key)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> DocumentRef:
        """Read a document reference; raises ``UCP-E-SCHEMA``. The key is checked where its room is known."""
        found = members(value, _REQUIRED, frozenset(), at)
        return cls(
            string(found["key"], pointer(at, "key")),
            integer(found["length"], pointer(at, "length")),
            sha256_string(found["digest"], pointer(at, "digest")),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"key": self.key, "length": self.length, "digest": self.digest}


_LIST_MEMBERS: Final = frozenset({"packs"})
_PACK_MEMBERS: Final = frozenset({"key", "length"})
_PACK_OPTIONS: Final = frozenset({"shared"})
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Pack:
    """A file of segments: its key and its length in bytes; ``shared``: it was written for an earlier checkpoint."""

    key: str
    length: int
    shared: bool = False

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Pack:
        """Read a pack's entry; raises ``UCP-E-SCHEMA``."""
        found = members(value, _PACK_MEMBERS, _PACK_OPTIONS, at)
        shared = found.get("shared", False)
        if "shared" in found and shared is not True:
            raise error("UCP-E-SCHEMA", "it is true, or absent", at=pointer(at, "shared"))
        return cls(
            string(found["key"], pointer(at, "key")),
            integer(found["length"], pointer(at, "length")),
            shared is True,
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"key": self.key, "length": self.length, **({"shared": True} if self.shared else {})}


@dataclass(frozen=True, slots=True)
class PackList:
    """The packs of a checkpoint; segments refer to them by index."""

    packs: tuple[Pack, ...]

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> PackList:
        """Read a pack list and check its content: ``UCP-E-SCHEMA``, then what `problems` finds."""
        packs = cls.structure(value, at=at)
        raise_first(packs.problems(at=at))
        return packs

    @classmethod
    def structure(cls, value: JsonValue, *, at: str) -> PackList:
        """Read a pack list without a look at its content; raises ``UCP-E-SCHEMA``."""
        packs = array(members(value, _LIST_MEMBERS, _NONE, at)["packs"], pointer(at, "packs"))
        return cls(
            tuple(Pack.from_json(pack, at=pointer(at, "packs", index)) for index, pack in enumerate(packs))
        )

    def problems(self, *, at: str) -> Iterator[Problem]:
        """Yield ``UCP-E-KEY`` for keys that are unsafe, outside ``packs/``, or not unique."""
        for index, pack in enumerate(self.packs):
            yield from key_problems(pack.key, "packs/", pointer(at, "packs", index, "key"))
        yield from case_problems(
            (pack.key, pointer(at, "packs", index, "key")) for index, pack in enumerate(self.packs)
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"packs": [pack.to_json() for pack in self.packs]}
