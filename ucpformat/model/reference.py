"""References from one document to another object (SPEC 10): key, length and digest."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.jsonio import pointer
from ucpformat.model.fields import integer, members, string

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["DocumentRef", "sha256_digest", "sha256_string"]

_SHA256: Final = re.compile(r"sha256:[0-9a-f]{64}")
_REQUIRED: Final = frozenset({"key", "length", "digest"})


def sha256_digest(data: bytes) -> str:
    """``sha256:`` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sha256_string(value: JsonValue, at: str) -> str:
    """``value`` as a digest string, or ``UCP-E-SCHEMA``."""
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
        """The reference to ``data`` stored at ``key``."""
        return cls(key, len(data), sha256_digest(data))

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
        """The JSON object that `from_json` reads."""
        return {"key": self.key, "length": self.length, "digest": self.digest}
