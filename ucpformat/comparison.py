"""Comparing two checkpoints by what they hold, not by how they hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ucpformat.geometry import Box
from ucpformat.jsonio import equal

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.reader import Checkpoint
    from ucpformat.views import SlotView

__all__ = ["Difference", "compare"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: ``what`` is a path such as ``atoms/wte.weight/value``."""

    kind: Literal["added", "removed", "changed"]
    what: str
    detail: str = ""


def compare(first: Checkpoint, second: Checkpoint) -> Iterator[Difference]:
    """Differences in atoms, slots, logical bytes, aliases, values, optimizers and blobs.

    A weight that is tied in one checkpoint and stored apart in the other is an alias there and an atom here.
    Slots whose content digests are both recorded are compared by them; others are read, chunk by chunk.

    Raises:
        UcpError: what reading raises.
    """
    # Names of atoms alone: looking up a mapping finds aliases as well.
    ours, theirs = set(first), set(second)
    for name in sorted(ours | theirs):
        path = f"atoms/{name}"
        if name not in theirs:
            yield Difference("removed", path)
        elif name not in ours:
            yield Difference("added", path)
        else:
            yield from _compare_atoms(first, second, name, path)
    for member in ("values", "optimizers", "blobs"):
        yield from _compare_objects(_state_member(first, member), _state_member(second, member), member)


def _state_member(checkpoint: Checkpoint, member: str) -> Mapping[str, JsonValue]:
    if member == "blobs":
        # Keys carry attempt identifiers: the content is what counts.
        return {
            name: {"media_type": blob.media_type, "digest": blob.object.digest}
            for name, blob in checkpoint.state.blobs.items()
        }
    found = checkpoint.state.to_json()[member]
    return found if isinstance(found, dict) else {}


def _compare_atoms(first: Checkpoint, second: Checkpoint, name: str, path: str) -> Iterator[Difference]:
    a, b = first[name], second[name]
    if set(a.atom.aliases) != set(b.atom.aliases):
        yield Difference("changed", f"{path}/aliases", f"{list(a.atom.aliases)} to {list(b.atom.aliases)}")
    for slot in sorted({*a, *b}):
        here = f"{path}/{slot}"
        if slot not in b:
            yield Difference("removed", here)
        elif slot not in a:
            yield Difference("added", here)
        else:
            yield from _compare_slots(a[slot], b[slot], here)


def _compare_slots(a: SlotView, b: SlotView, path: str) -> Iterator[Difference]:
    if (a.dtype.name, a.shape) != (b.dtype.name, b.shape):
        yield Difference("changed", path, f"{a.dtype.name}{list(a.shape)} to {b.dtype.name}{list(b.shape)}")
        return
    known = (a.stored.slot.content, b.stored.slot.content)
    if None not in known:
        if known[0] != known[1]:
            yield Difference("changed", path, "other bytes")
        return
    grid = a.stored.grid
    changed = 0
    for chunk in range(grid.count):
        box = grid.box_at(chunk)
        changed += not np.array_equal(_bits(a, box), _bits(b, box))
    if changed:
        yield Difference("changed", path, f"other bytes in {changed} of {grid.count} chunks")


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
