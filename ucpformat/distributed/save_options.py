"""How to save together, and what came of it (SPEC section 17.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.root import Storage
    from ucpformat.storage.store import Durability
    from ucpformat.writer import StoredBytes

__all__ = ["SaveOptions", "SaveReport"]


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How to save; the same on all ranks but for ``workers``. ``annotations`` are those of the root document."""

    storage: Storage = "packed"
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    step: int | None = None
    workers: int | None = None
    durability: Durability = "fsync"
    annotations: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What came of it: the root digest, the logical bytes that this rank wrote, and those that it sent to others.

    ``stored`` is what the whole checkpoint takes; the same on all ranks.
    """

    digest: str
    nbytes: int
    sent: int
    stored: StoredBytes
