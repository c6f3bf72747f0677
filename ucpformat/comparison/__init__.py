"""Comparing two checkpoints by what they hold, not by how they hold it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from ucpformat.comparison.measuring import Measure, TensorDifference
from ucpformat.comparison.same_bytes import Files, unshared_boxes
from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.html_facts import html_facts
from ucpformat.jsonio import equal
from ucpformat.reader import open_checkpoint
from ucpformat.storage.reading.documents import check_object
from ucpformat.text import human_bytes

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.process_image import ProcessImage
    from ucpformat.reader import Checkpoint
    from ucpformat.views import AtomView, SlotView

__all__ = ["Comparison", "Difference", "TensorDifference", "compare", "diff"]

_READ_BYTES: Final = 1 << 24
"""What is read of each checkpoint at a time."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two checkpoints.

    Attributes:
        kind: what became of it from the first to the second checkpoint.
        what: a path, such as ``atoms/wte.weight/value``.
        detail: how it differs, in words.
        old: of a value that was removed or changed, what the first checkpoint has, as JSON.
        new: of a value that was added or changed, what the second one has.
        tensor: by how much the elements of a tensor differ, where they were read.

    >>> report = ucp.save("a.ucp", {"epoch": 3}), ucp.save("b.ucp", {"epoch": 4})
    >>> one = ucp.diff("a.ucp", "b.ucp").differences[0]
    >>> one.what, one.old, one.new
    ('values/epoch', 3, 4)
    """

    kind: Literal["added", "removed", "changed"]
    what: str
    detail: str = ""
    old: JsonValue = None
    new: JsonValue = None
    tensor: TensorDifference | None = None

    def is_within(self, tolerance: float) -> bool:
        """Return whether this is a tensor no element of which differs by more than ``tolerance``.

        >>> difference.is_within(0.01), difference.is_within(0.5)
        (False, True)
        """
        return self.tensor is not None and self.tensor.is_within(tolerance)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the object that ``ucp diff --format json`` prints.

        >>> [*difference.to_json()]
        ['kind', 'what', 'detail', 'old', 'new', 'tensor']
        """
        return {
            "kind": self.kind,
            "what": self.what,
            "detail": self.detail,
            "old": self.old,
            "new": self.new,
            "tensor": None if self.tensor is None else self.tensor.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing two checkpoints.

    Attributes:
        differences: all of them, in order of what differs; none where both hold the same.
        slots_by_digest: how many slots were compared by their recorded digests alone.
        slots_by_bytes: how many were read.
        slots_by_sharing: how many are the same bytes of the same files, and so were not looked at.
        fetched: bytes of tensors that were read, of both together.
        tolerance: what was asked for.

    >>> report = ucp.save("a.ucp", {"epoch": 3}), ucp.save("b.ucp", {"epoch": 3})
    >>> ucp.diff("a.ucp", "b.ucp").is_equal
    True
    """

    differences: tuple[Difference, ...]
    slots_by_digest: int
    slots_by_bytes: int
    slots_by_sharing: int = 0
    fetched: int = field(default=0, compare=False)
    tolerance: float | None = None

    def __repr__(self) -> str:
        return f"<Comparison: {self._summary()}>"

    def _repr_html_(self) -> str:
        facts = {"comparison": self._summary()} | dict.fromkeys(self.warnings, "")
        rows = [(one.kind, one.what, one.detail or one.tensor or "") for one in self.differences]
        return html_facts(facts, ("", "what", "how"), rows)

    def _summary(self) -> str:
        count = len(self.differences)
        found = f"{count:,} difference{'s' if count > 1 else ''}" if count else "both hold the same"
        return f"{found}, {human_bytes(self.fetched)} read"

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same.

        >>> report = ucp.save("a.ucp", {"w": np.ones(2)}), ucp.save("b.ucp", {"w": np.zeros(2)})
        >>> ucp.diff("a.ucp", "b.ucp").is_equal
        False
        """
        return not self.differences

    @property
    def is_within_tolerance(self) -> bool:
        """Whether both hold the same but for elements of tensors that differ by no more than the tolerance.

        >>> report = ucp.save("a.ucp", {"w": np.ones(2)}), ucp.save("b.ucp", {"w": np.full(2, 1.001)})
        >>> ucp.diff("a.ucp", "b.ucp", tolerance=0.01).is_within_tolerance
        True
        """
        tolerance = self.tolerance or 0.0
        return all(one.is_within(tolerance) for one in self.differences)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the comparison did not look at, in words.

        >>> report = ucp.save("a.ucp", {"w": np.ones(2)}), ucp.save("b.ucp", {"w": np.ones(2)})
        >>> ucp.diff("a.ucp", "b.ucp").warnings[0].partition(",")[0]
        '1 tensor was compared by recorded digests alone'
        >>> ucp.diff("a.ucp", "b.ucp", by="bytes").warnings
        ()
        """
        if not self.slots_by_digest:
            return ()
        count = f"{self.slots_by_digest:,} tensor{'s were' if self.slots_by_digest > 1 else ' was'}"
        return (f"{count} compared by recorded digests alone, which do not show damage that came later",)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the object that ``ucp diff --format json`` prints; members may be added, and none is renamed.

        >>> report = ucp.save("a.ucp", {"w": np.ones(2)}), ucp.save("b.ucp", {"w": np.zeros(2)})
        >>> found = ucp.diff("a.ucp", "b.ucp").to_json()
        >>> found["equal"], found["differences"][0]["tensor"]["max_abs"]
        (False, 1.0)
        """
        return {
            "equal": self.is_equal,
            "tolerance": self.tolerance,
            "within_tolerance": self.is_within_tolerance,
            "slots_by_sharing": self.slots_by_sharing,
            "slots_by_digest": self.slots_by_digest,
            "slots_by_bytes": self.slots_by_bytes,
            "fetched": self.fetched,
            "warnings": [*self.warnings],
            "differences": [one.to_json() for one in self.differences],
        }


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    by: Literal["digests", "bytes"] = "digests",
    measure: bool = True,
    tolerance: float | None = None,
) -> Comparison:
    """Compare what two checkpoints hold: names, shapes, data types, tensors, values, optimizers and blobs.

    Storage, chunks, compression and layouts do not count: they say how, not what. What both have from the same bytes
    of the same files, as increments of a run do, is equal. By ``digests`` other tensors are compared by the digests of
    their content that were recorded when they were saved, and damage that came later is not seen; tensors without them
    are read. By ``bytes`` everything of both is read and verified, what they share as well.
    Of tensors that differ is read what has other checksums in both, to say which rows differ and by how much, but not
    without ``measure``. A ``tolerance`` t, for `Comparison.is_within_tolerance`, admits elements x and y whose
    difference is at most t times the largest of 1, abs(x) and abs(y).

    Raises:
        UcpError: what opening and reading raise, such as ``UCP-E-CHECKSUM``; ``UCP-E-MISMATCH`` for another ``by``, for
            a tolerance that is negative or no number, and for one without ``measure``.

    >>> report = ucp.save("a.ucp", {"w": np.ones(2), "epoch": 3}), ucp.save("b.ucp", {"w": np.zeros(2), "epoch": 3})
    >>> for one in ucp.diff("a.ucp", "b.ucp").differences:
    ...     print(one.kind, one.what, one.detail)
    changed atoms/w/value 2 of 2 rows, 2 elements; at most 1 absolute, 1 relative, 4,607,182,418,800,017,408 ULP
    """
    if by not in ("digests", "bytes"):
        raise error("UCP-E-MISMATCH", f'by= is "digests" or "bytes", not {by!r}')
    if tolerance is not None:
        if not measure:
            message = "a tolerance is about elements: they are not read with measure=False"
            raise error("UCP-E-MISMATCH", message, at="tolerance")
        if not (isinstance(tolerance, int | float) and math.isfinite(tolerance) and tolerance >= 0):
            message = f"a tolerance is a number from 0 on, not {tolerance!r}"
            raise error("UCP-E-MISMATCH", message, at="tolerance")
    with open_checkpoint(first) as one, open_checkpoint(second) as other:
        return compare(one, other, by=by, measure=measure, tolerance=tolerance)


def compare(
    first: Checkpoint,
    second: Checkpoint,
    *,
    by: Literal["digests", "bytes"] = "digests",
    measure: bool = True,
    tolerance: float | None = None,
) -> Comparison:
    """Compare two open checkpoints as `diff` does.

    A weight that is tied in one checkpoint and stored apart in the other is an alias there and an atom here.

    Raises:
        UcpError: what reading raises, such as ``UCP-E-CHECKSUM`` for bytes that do not match their checksum.
    """
    return _Comparing(first, second, reads_all=by == "bytes", measures=measure).run(tolerance)


class _Comparing:
    """One comparison under way."""

    def __init__(self, first: Checkpoint, second: Checkpoint, *, reads_all: bool, measures: bool) -> None:
        self._first = first
        self._second = second
        self._files = Files(first.store), Files(second.store)
        self._reads_all = reads_all
        self._measures = measures
        self._by_digest = self._by_bytes = self._by_sharing = 0

    def run(self, tolerance: float | None) -> Comparison:
        before = self._first.fetched + self._second.fetched
        found = tuple(self._differences())
        fetched = self._first.fetched + self._second.fetched - before
        return Comparison(found, self._by_digest, self._by_bytes, self._by_sharing, fetched, tolerance)

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
                for image in checkpoint.images.values():
                    for file in image.files:
                        check_object(checkpoint.store, file.object)
        for member in ("values", "optimizers", "blobs", "images", "pipeline"):
            a, b = (_state_member(checkpoint, member) for checkpoint in (self._first, self._second))
            yield from _compare_objects(a, b, member)

    def _atoms(self, a: AtomView, b: AtomView, path: str) -> Iterator[Difference]:
        if set(a.aliases) != set(b.aliases):
            aliases: tuple[list[JsonValue], list[JsonValue]] = [*a.aliases], [*b.aliases]
            yield Difference("changed", f"{path}/aliases", old=aliases[0], new=aliases[1])
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
            what = f"{a.dtype.name}{list(a.shape)} to {b.dtype.name}{list(b.shape)}"
            yield Difference("changed", path, what)
            return
        boxes: Iterable[Box]
        known = (a.stored.content, b.stored.content)
        has_other_digest = False
        if self._reads_all:
            self._by_bytes += 1
            boxes = map(a.stored.grid.box_at, range(a.stored.grid.count))
        else:
            boxes = [box for some in unshared_boxes(a.stored, b.stored, *self._files) for box in some]
            if not boxes:
                self._by_sharing += 1
                return
            if None not in known:
                has_other_digest = known[0] != known[1]
                if not (has_other_digest and self._measures):
                    self._by_digest += 1
                    if has_other_digest:
                        yield Difference("changed", path, "other bytes")
                    return
                # Digests are made of the checksums: what these show to be equal is as surely equal as by those.
                other = unshared_boxes(a.stored, b.stored, *self._files, by_checksums=True)
                boxes = [box for some in other for box in some] or boxes
            self._by_bytes += 1
        measured = self._measured(a, b, boxes)
        if measured.changed:
            found = measured if self._measures else None
            yield Difference("changed", path, str(found or "other bytes"), tensor=found)
        elif has_other_digest:
            # One of both records a digest that is not that of its bytes.
            yield Difference("changed", path, "other recorded digests of the same bytes; validate both")

    def _measured(self, a: SlotView, b: SlotView, boxes: Iterable[Box]) -> TensorDifference:
        measure = Measure(a.stored.dtype, a.shape)
        for some in _batches(boxes, a.stored.dtype.item_bytes):
            sides = []
            for checkpoint, slot in ((self._first, a), (self._second, b)):
                arrays = [np.empty(box.shape, slot.dtype) for box in some]
                checkpoint.reader.read(
                    (slot.stored, box, array) for box, array in zip(some, arrays, strict=True)
                )
                sides.append(arrays)
            for box, one, other in zip(some, *sides, strict=True):
                measure.add(box, one, other)
        return measure.result()


def _batches(boxes: Iterable[Box], item_bytes: int) -> Iterator[list[Box]]:
    """Yield the boxes, some at a time, those that are too large in parts."""
    batch: list[Box] = []
    nbytes = 0
    for box in boxes:
        for part in _parts(box, max(1, _READ_BYTES // item_bytes)):
            if batch and nbytes + part.size * item_bytes > _READ_BYTES:
                yield batch
                batch, nbytes = [], 0
            batch.append(part)
            nbytes += part.size * item_bytes
    if batch:
        yield batch


def _parts(box: Box, most: int) -> Iterator[Box]:
    """Cut a box into parts of so many elements or fewer, along its first dimensions."""
    if box.size <= most:
        yield box
        return
    dim = next(dim for dim, extent in enumerate(box.shape) if extent > 1)
    step = max(1, most // (box.size // box.shape[dim]))
    for first in range(0, box.shape[dim], step):
        extent = min(step, box.shape[dim] - first)
        offset = (*box.offset[:dim], box.offset[dim] + first, *box.offset[dim + 1 :])
        yield from _parts(Box(offset, (*box.shape[:dim], extent, *box.shape[dim + 1 :])), most)


def _image(image: ProcessImage) -> JsonValue:
    """Return what is compared of a process image: not the keys of its objects."""
    files: list[JsonValue] = [
        {"path": file.path, "executable": file.is_executable, "digest": file.object.digest}
        for file in image.files
    ]
    return {**image.to_json(), "files": files}


def _state_member(checkpoint: Checkpoint, member: str) -> Mapping[str, JsonValue]:
    if member == "blobs":
        # Keys carry attempt identifiers: the content is what counts.
        return {
            name: {"media_type": blob.media_type, "digest": blob.object.digest, "length": blob.object.length}
            for name, blob in checkpoint.state.blobs.items()
        }
    if member == "images":
        return {name: _image(image) for name, image in checkpoint.images.items()}
    found = checkpoint.state.to_json().get(member)
    return found if isinstance(found, dict) else {}


def _compare_objects(
    a: Mapping[str, JsonValue], b: Mapping[str, JsonValue], path: str
) -> Iterator[Difference]:
    for name in sorted({*a, *b}):
        here = f"{path}/{name}"
        if name not in b:
            yield Difference("removed", here, old=a[name])
        elif name not in a:
            yield Difference("added", here, new=b[name])
        else:
            yield from _compare_values(a[name], b[name], here)


def _compare_values(a: JsonValue, b: JsonValue, path: str) -> Iterator[Difference]:
    """Go down to what differs in objects and in lists of one length; other values differ as a whole."""
    if equal(a, b):
        return
    if isinstance(a, dict) and isinstance(b, dict) and not any(name[:1] == "$" for name in (*a, *b)):
        if path.partition("/")[0] == "blobs":
            yield Difference("changed", path, "other content", old=a, new=b)
        else:
            yield from _compare_objects(a, b, path)
        return
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _compare_values(one, other, f"{path}/{number}")
        return
    yield Difference("changed", path, old=a, new=b)
