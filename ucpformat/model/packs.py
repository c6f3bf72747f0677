"""The pack list (SPEC 16.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem
from ucpformat.jsonio import pointer
from ucpformat.model.fields import array, integer, members, raise_first, string
from ucpformat.model.keys import case_problems, key_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.jsonio import JsonValue

__all__ = ["Pack", "PackList"]

_LIST_MEMBERS: Final = frozenset({"packs"})
_PACK_MEMBERS: Final = frozenset({"key", "length"})
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Pack:
    """A file of segments: its key and its length in bytes."""

    key: str
    length: int

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Pack:
        """Read a pack's entry; raises ``UCP-E-SCHEMA``."""
        found = members(value, _PACK_MEMBERS, _NONE, at)
        return cls(string(found["key"], pointer(at, "key")), integer(found["length"], pointer(at, "length")))

    def to_json(self) -> dict[str, JsonValue]:
        """The JSON object that `from_json` reads."""
        return {"key": self.key, "length": self.length}


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
        """``UCP-E-KEY`` for keys that are unsafe, outside ``packs/``, or not unique."""
        for index, pack in enumerate(self.packs):
            yield from key_problems(pack.key, "packs/", pointer(at, "packs", index, "key"))
        yield from case_problems(
            (pack.key, pointer(at, "packs", index, "key")) for index, pack in enumerate(self.packs)
        )

    def to_json(self) -> dict[str, JsonValue]:
        """The JSON object that `from_json` reads."""
        return {"packs": [pack.to_json() for pack in self.packs]}
