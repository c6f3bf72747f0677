"""Collecting problems instead of stopping at the first (SPEC section 18), and the damage that was found with them.

Damage is places in objects: what is lost by it, and what a repair has to bring back.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ucpformat.errors import Problem, UcpError
from ucpformat.storage.stores.remote.repetition import is_not_repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from ucpformat.model.references import DocumentRef
    from ucpformat.storage.reading.stored_slot import StoredSlot

__all__ = [
    "Damage",
    "Findings",
    "SegmentDamage",
    "as_runs",
    "joined_runs",
]

_OF_BYTES: Final = frozenset({"UCP-E-DIGEST", "UCP-E-CHECKSUM", "UCP-E-CODEC", "UCP-E-PADDING"})


class Findings:
    """Problems in the order they were found, each once, and the damage that was found with them."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}
        self.damage = Damage()

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._problems)

    def told(self) -> list[Problem]:
        """Return the problems but those of the bytes of an object that has another length (UCP-V-005)."""
        other = {problem.at for problem in self._problems if problem.code == "UCP-E-LENGTH"}
        return [one for one in self._problems if one.at not in other or one.code not in _OF_BYTES]

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, *problems: Problem) -> None:
        """Record problems."""
        self.extend(problems)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Record problems."""
        self._problems.update(dict.fromkeys(problems))

    def give_up(self, refusal: UcpError) -> None:
        """Record that the store does not answer; once, since it says nothing about the checkpoint."""
        if not any(problem.code == refusal.code for problem in self._problems):
            self.add(refusal.problem())

    def collecting(self) -> _Collecting:
        """Return a context that records what its block raises, and goes on behind it; `has_refused` then tells so.

        What a store raises that does not answer goes on upward: everything behind it would fail in the same way.
        """
        return _Collecting(self)


class _Collecting(AbstractContextManager["_Collecting", bool]):
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.has_refused = False

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(value, UcpError) or is_not_repeated(value):
            return False
        self.has_refused = True
        self._findings.add(value.problem())
        return True


class SegmentDamage(NamedTuple):
    """A segment whose stored bytes are not all there: ``number`` among those of its chunk.

    ``blocks`` are half-open ranges of its checksum blocks, in order. There are none where the blocks are good and what
    surrounds them is not: the length of a chunk's own object, or the four bytes of Zarr's codec at its end.
    """

    stored: StoredSlot
    chunk: int
    number: int
    blocks: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Damage:
    """Everything that was found damaged, in the order it was found.

    ``segments``: stored bytes that are wrong, or not there. ``chunks``: those that cannot be read though their bytes
    are as recorded. ``contradicted``: slots whose bytes are not those of their content digest. ``documents``: keys of
    documents and tables. ``metadata``: keys of Zarr documents. ``packs``: numbers of packs that are missing, of another
    length, or not zero between segments. ``blobs``: those that are damaged, and
    files of process images, each with what people call it. ``unchecked``: slots that nobody looked at.
    """

    segments: list[SegmentDamage] = field(default_factory=list)
    chunks: list[tuple[StoredSlot, int]] = field(default_factory=list)
    contradicted: list[StoredSlot] = field(default_factory=list)
    documents: dict[str, None] = field(default_factory=dict)
    metadata: dict[str, None] = field(default_factory=dict)
    packs: dict[int, None] = field(default_factory=dict)
    blobs: list[tuple[str, DocumentRef]] = field(default_factory=list)
    unchecked: list[StoredSlot] = field(default_factory=list)

    @property
    def is_any(self) -> bool:
        """Whether anything was found that other bytes could put right."""
        return bool(self.segments or self.documents or self.metadata or self.packs or self.blobs)


def as_runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as half-open ranges."""
    return joined_runs([(number, number + 1) for number in numbers])


def joined_runs(runs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return half-open ranges in order, those that meet or overlap as one."""
    found: list[tuple[int, int]] = []
    for first, stop in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((first, stop))
    return tuple(found)
