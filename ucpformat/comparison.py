"""Comparing two checkpoints by what they hold, not by how they hold it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.jsonio import equal
from ucpformat.reader import open_checkpoint

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.reader import Checkpoint
    from ucpformat.views import AtomView, SlotView

__all__ = ["Comparison", "Difference", "compare", "diff"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two checkpoints.

    Attributes:
        kind: what became of it from the first to the second checkpoint.
        what: a path, such as ``atoms/wte.weight/value``.
        detail: how it differs, in words.

    >>> report = ucp.save("a.ucp", {"epoch": 3}), ucp.save("b.ucp", {"epoch": 4})
    >>> ucp.diff("a.ucp", "b.ucp").differences[0].what
    'values/epoch'
    """

    kind: Literal["added", "removed", "changed"]
    what: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing two checkpoints.

    Attributes:
        differences: all of them, in order of what differs; none where both hold the same.
        slots_by_digest: how many slots were compared by their recorded digests.
        slots_by_bytes: how many were compared by their bytes.

    >>> report = ucp.save("a.ucp", {"epoch": 3}), ucp.save("b.ucp", {"epoch": 3})
    >>> ucp.diff("a.ucp", "b.ucp").is_equal
    True
    """

    differences: tuple[Difference, ...]
    slots_by_digest: int
    slots_by_bytes: int

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same.

        >>> report = ucp.save("a.ucp", {"w": np.ones(2)}), ucp.save("b.ucp", {"w": np.zeros(2)})
        >>> ucp.diff("a.ucp", "b.ucp").is_equal
        False
        """
        return not self.differences


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    by: Literal["digests", "bytes"] = "digests",
) -> Comparison:
    """Compare what two checkpoints hold: names, shapes, data types, tensors, values, optimizers and blobs.

    Storage, chunks, compression and layouts do not count: they say how, not what. By ``digests`` tensors are compared
    by the digests of their content that were recorded when they were saved, and damage that came later is not seen;
    tensors without them are read. By ``bytes`` everything of both is read and verified.

    Raises:
        UcpError: what opening and reading raise, such as ``UCP-E-CHECKSUM``; ``UCP-E-MISMATCH`` for another ``by``.

    >>> report = ucp.save("a.ucp", {"w": np.ones(2), "epoch": 3}), ucp.save("b.ucp", {"w": np.zeros(2), "epoch": 3})
    >>> [(one.kind, one.what) for one in ucp.diff("a.ucp", "b.ucp").differences]
    [('changed', 'atoms/w/value')]
    """
    if by not in ("digests", "bytes"):
        raise error("UCP-E-MISMATCH", f'by= is "digests" or "bytes", not {by!r}')
    with open_checkpoint(first) as one, open_checkpoint(second) as other:
        return compare(one, other, by=by)


def compare(
    first: Checkpoint, second: Checkpoint, *, by: Literal["digests", "bytes"] = "digests"
) -> Comparison:
    """Compare atoms, slots, logical bytes, aliases, values, optimizers and blobs.

    A weight that is tied in one checkpoint and stored apart in the other is an alias there and an atom here.
    By ``digests``, slots whose content digests are both recorded are compared by these, and damage to their stored
    bytes is not seen; other slots are read. By ``bytes``, every slot and blob is read and verified, chunk by chunk.

    Raises:
        UcpError: what reading raises, such as ``UCP-E-CHECKSUM`` for bytes that do not match their checksum.
    """
    return _Comparing(first, second, reads_all=by == "bytes").run()


class _Comparing:
    """One comparison under way."""

    def __init__(self, first: Checkpoint, second: Checkpoint, *, reads_all: bool) -> None:
        self._first = first
        self._second = second
        self._reads_all = reads_all
        self._by_digest = 0
        self._by_bytes = 0

    def run(self) -> Comparison:
        found = tuple(self._differences())
        return Comparison(found, self._by_digest, self._by_bytes)

    def _differences(self) -> Iterator[Difference]:
        # Names of atoms alone: looking up a mapping finds aliases as well.
        ours, theirs = set(self._first), set(self._second)
        for name in sorted(ours | theirs):
            path = f"atoms/{name}"
            if name not in theirs:
                yield Difference("removed", path)
            elif name not in ours:
                yield Difference("added", path)
            else:
                yield from self._atoms(self._first[name], self._second[name], path)
        if self._reads_all:
            for checkpoint in (self._first, self._second):
                for name in checkpoint.state.blobs:
                    checkpoint.blobs[name]  # which checks it; the digests tell whether two are equal
        for member in ("values", "optimizers", "blobs", "pipeline"):
            a, b = (_state_member(checkpoint, member) for checkpoint in (self._first, self._second))
            yield from _compare_objects(a, b, member)

    def _atoms(self, a: AtomView, b: AtomView, path: str) -> Iterator[Difference]:
        if set(a.aliases) != set(b.aliases):
            yield Difference("changed", f"{path}/aliases", f"{list(a.aliases)} to {list(b.aliases)}")
        for slot in sorted({*a, *b}):
            here = f"{path}/{slot}"
            if slot not in b:
                yield Difference("removed", here)
            elif slot not in a:
                yield Difference("added", here)
            else:
                yield from self._slots(a[slot], b[slot], here)

    def _slots(self, a: SlotView, b: SlotView, path: str) -> Iterator[Difference]:
        if (a.dtype.name, a.shape) != (b.dtype.name, b.shape):
            yield Difference(
                "changed", path, f"{a.dtype.name}{list(a.shape)} to {b.dtype.name}{list(b.shape)}"
            )
            return
        known = (a.stored.slot.content, b.stored.slot.content)
        if None not in known and not self._reads_all:
            self._by_digest += 1
            if known[0] != known[1]:
                yield Difference("changed", path, "other bytes")
            return
        self._by_bytes += 1
        grid = a.stored.grid
        changed = 0
        for chunk in range(grid.count):
            box = grid.box_at(chunk)
            changed += not np.array_equal(_bits(a, box), _bits(b, box))
        if changed:
            yield Difference("changed", path, f"other bytes in {changed} of {grid.count} chunks")


def _state_member(checkpoint: Checkpoint, member: str) -> Mapping[str, JsonValue]:
    if member == "blobs":
        # Keys carry attempt identifiers: the content is what counts.
        return {
            name: {"media_type": blob.media_type, "digest": blob.object.digest}
            for name, blob in checkpoint.state.blobs.items()
        }
    found = checkpoint.state.to_json().get(member)
    return found if isinstance(found, dict) else {}


def _bits(slot: SlotView, box: Box) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    data = slot[tuple(slice(start, stop) for start, stop in zip(box.offset, box.stop, strict=True))]
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def _compare_objects(
    a: Mapping[str, JsonValue], b: Mapping[str, JsonValue], member: str
) -> Iterator[Difference]:
    for name in sorted({*a, *b}):
        path = f"{member}/{name}"
        if name not in b:
            yield Difference("removed", path)
        elif name not in a:
            yield Difference("added", path)
        elif not equal(a[name], b[name]):
            yield Difference("changed", path)
