"""Runs of bytes of objects: which of them go where, and which are read by one call (SPEC sections 17.2 and 17.3).

What is dense on both sides goes straight into its destination; everything else is read into spare memory, a window at a
time, and copied from there. Runs that share checksum blocks become one, so that no stored byte is read twice. Where
runs lie is held in columns. A slot that is one checksum block or less, and goes straight into an array, is its place in
them and that array, and no other object: there are such by the hundred thousand.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.geometry import Box, row_major_strides
from ucpformat.storage.checksum import BLOCK_BYTES, packed
from ucpformat.storage.host_memory import flat_bytes, selection
from ucpformat.storage.reading.destinations import Destination, RowDestination
from ucpformat.storage.workers import call_edges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.model.table import Segment

__all__ = [
    "CALL_BYTES",
    "Blocks",
    "ByteRun",
    "Call",
    "Reads",
    "Stretch",
    "as_reads",
    "byte_runs",
    "cut",
    "merged",
    "stretches",
]


class Stretch(NamedTuple):
    """Bytes ``[start, stop)`` of a segment, which hold ``box``, in coordinates of the segment, and what lies between.

    ``strides`` are in bytes.
    """

    box: Box
    start: int
    stop: int
    strides: tuple[int, ...]

    @property
    def in_blocks(self) -> tuple[int, int]:
        """The range widened to whole checksum blocks; the last one may be longer than the segment."""
        return self.start // BLOCK_BYTES * BLOCK_BYTES, -(-self.stop // BLOCK_BYTES) * BLOCK_BYTES


def stretches(box: Box, shape: tuple[int, ...], item_bytes: int) -> Iterator[Stretch]:
    """Cut a box of a dense tensor of ``shape``, not empty, where a whole checksum block or more lies between its bytes.

    No two stretches share a block, so that each is read and verified once, and a block that is not needed is not read.
    """
    strides = tuple(stride * item_bytes for stride in row_major_strides(shape))
    span, cut = item_bytes, 0  # bytes from the first to the last cell, in the dims that are not cut
    # Outer gaps are at least as wide as inner ones: the first that is wide, from within, is the last to be cut at.
    for dim in range(box.ndim - 1, -1, -1):
        if box.shape[dim] > 1 and strides[dim] - span >= BLOCK_BYTES:
            cut = dim + 1
            break
        span += (box.shape[dim] - 1) * strides[dim]
    first = sum(map(int.__mul__, box.offset, strides))
    if not cut:
        yield Stretch(box, first, first + span, strides)
        return
    inner = (1,) * cut + box.shape[cut:]
    for index in itertools.product(*map(range, box.shape[:cut])):
        start = first + sum(map(int.__mul__, index, strides))
        offset = (*map(int.__add__, box.offset, index), *box.offset[cut:])
        yield Stretch(Box(offset, inner), start, start + span, strides)


CALL_BYTES: Final = 1 << 22
"""Of a call that throws nothing away: a multiple of a block, small enough to be verified while in cache."""


class ByteRun(NamedTuple):
    """Bytes ``[offset, stop)`` of an object, all of one segment, which begins at ``origin`` and has ``checksums``.

    Either memory that they go ``straight`` into, in order, each with the byte of the object where it begins; or
    destinations that they are copied to.
    """

    key: str
    offset: int
    stop: int
    origin: int
    checksums: bytes
    straight: tuple[tuple[int, memoryview], ...]
    copied: tuple[Destination | RowDestination, ...]

    def pieces(self, nbytes: int) -> Iterator[ByteRun]:
        """Yield the run cut after each ``nbytes``."""
        if self.stop - self.offset <= nbytes:
            yield self
            return
        key, offset, stop, origin, checksums, straight, copied = self
        for low in range(offset, stop, nbytes):
            high = min(stop, low + nbytes)
            yield ByteRun(
                key,
                low,
                high,
                origin,
                checksums,
                tuple(
                    [
                        (max(start, low), memory[max(0, low - start) : high - start])
                        for start, memory in straight
                        if start < high and low < start + memory.nbytes
                    ]
                ),
                tuple([one for one in copied if one.start < high and low < one.stop]),
            )


def byte_runs(
    key: str, segment: Segment, held: Box, part: Box, target: NDArray[np.generic], *, verify: bool
) -> Iterator[ByteRun]:
    """Yield the runs that fill ``target`` with the box ``part``, not empty, of an uncompressed segment of ``held``.

    With ``verify`` they are whole checksum blocks.
    """
    local, origin = part.relative_to(held), segment.offset
    for stretch in stretches(local, held.shape, target.itemsize):
        memory = target if stretch.box is local else target[selection(stretch.box, local)]
        start, stop = stretch.start, stretch.stop
        straight: tuple[tuple[int, memoryview], ...] = ()
        copied: tuple[Destination, ...] = ()
        if memory.flags.c_contiguous and stop - start == memory.nbytes:
            straight = ((origin + start, flat_bytes(memory)),)
        else:
            copied = (Destination(memory, origin + start, origin + stop, stretch.strides),)
        if verify:
            start, stop = stretch.in_blocks
            stop = min(stop, segment.covered)
        yield ByteRun(key, origin + start, origin + stop, origin, segment.checksums, straight, copied)


def merged(runs: Iterable[ByteRun]) -> Iterator[ByteRun]:
    """Yield runs in order of object and offset; those of a segment that share bytes are one."""
    group: list[ByteRun] = []
    end = 0
    for run in runs:
        if group:
            last = group[-1]
            if not (
                run.offset < end
                and run.key == last.key
                and run.origin == last.origin
                and run.checksums == last.checksums
            ):
                yield last if len(group) == 1 else _as_one(group, end)
                group, end = [], 0
        group.append(run)
        end = max(end, run.stop)
    if group:
        yield group[0] if len(group) == 1 else _as_one(group, end)


def _as_one(runs: Sequence[ByteRun], stop: int) -> ByteRun:
    straight = sorted((one for run in runs for one in run.straight), key=itemgetter(0))
    copied: list[Destination | RowDestination] = [one for run in runs for one in run.copied]
    ends = [start + memory.nbytes for start, memory in straight]
    if copied or any(start < end for end, (start, _) in zip(ends, straight[1:], strict=False)):
        for end, (start, memory) in zip(ends, straight, strict=True):
            copied.append(Destination(np.frombuffer(memory, np.uint8), start, end, (1,)))
        straight = []
    return runs[0]._replace(stop=stop, straight=tuple(straight), copied=tuple(copied))


def cut(runs: Iterable[ByteRun], window: int) -> Iterator[ByteRun]:
    """Yield runs in pieces that one call reads; ``window`` as `Calls` has it."""
    for run in runs:
        yield from run.pieces(window if run.copied else CALL_BYTES)


class Blocks(NamedTuple):
    """Columns: arrays, contiguous, and the bytes that fill each, which are a segment of one checksum block or less.

    ``of`` says which of the objects ``keys`` has them, ``checksums`` their CRC-32C.
    """

    keys: Sequence[str]
    of: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    arrays: list[NDArray[np.generic]]


class Call(NamedTuple):
    """What one call reads of an object: where each run begins and ends, and is a run of, or the array that it fills.

    ``spare`` bytes, gaps among them, do not go straight to where they belong; ``checksums`` are those for arrays.
    """

    key: str
    starts: list[int]
    stops: list[int]
    spare: int
    checksums: list[int]
    items: list[ByteRun | NDArray[np.generic]]


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """Runs in the order of their objects and places; ``straight`` are the bytes of each that are not copied again."""

    keys: Sequence[str]
    of: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    straight: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    items: list[ByteRun | NDArray[np.generic]]

    def calls(self, *, gap: int, window: int, most: int) -> Iterator[tuple[int, int]]:
        """Yield the first run of each call, and the one behind its last; ``gap`` and ``window`` as `Calls` has them."""
        for first, last in call_edges(
            self.of, self.starts, self.stops, gap=gap, nbytes=CALL_BYTES, most=most
        ):
            # What is copied shall still be in the processor's cache by then.
            if self.span((first, last)) > window and not self.straight[first:last].all():
                some = slice(first, last)
                for low, high in call_edges(
                    self.of[some], self.starts[some], self.stops[some], gap=gap, nbytes=window, most=most
                ):
                    yield first + low, first + high
            else:
                yield first, last

    def span(self, call: tuple[int, int]) -> int:
        """Return bytes from the first to the last."""
        return int(self.stops[call[1] - 1] - self.starts[call[0]])

    def call(self, edges: tuple[int, int]) -> Call:
        """Return what a call between two edges reads."""
        some = slice(*edges)
        return Call(
            self.keys[self.of[edges[0]]],
            self.starts[some].tolist(),
            self.stops[some].tolist(),
            self.span(edges) - int(self.straight[some].sum()),
            self.checksums[some].tolist(),
            self.items[some],
        )

    def shared_or_long(self, window: int) -> NDArray[np.bool_]:
        """Return which share bytes with another, or are more than one call reads."""
        long = self.stops - self.starts > np.where(self.straight > 0, CALL_BYTES, window)
        if self.starts.size < 2:
            return long
        # Of each run, the one among it and those before it that ends last; those of other objects end before all.
        by_end = np.lexsort((self.stops, self.of))
        ranks = np.empty_like(by_end)
        ranks[by_end] = np.arange(by_end.size)
        furthest = by_end[np.maximum.accumulate(ranks)]
        within = (self.of[1:] == self.of[:-1]) & (self.starts[1:] < self.stops[furthest[:-1]])
        long[1:] |= within
        long[:-1] |= within
        return long

    def run(self, number: int) -> ByteRun:
        """Return the run of a number, a block too, as a `ByteRun`."""
        item = self.items[number]
        if isinstance(item, ByteRun):
            return item
        key, start, stop = self.keys[self.of[number]], int(self.starts[number]), int(self.stops[number])
        checksum = packed([int(self.checksums[number])])
        return ByteRun(key, start, stop, start, checksum, ((start, flat_bytes(item)),), ())

    def without(self, some: NDArray[np.bool_]) -> Reads:
        """Return all reads but these."""
        left = ~some
        items = [self.items[number] for number in np.flatnonzero(left).tolist()]
        return Reads(
            self.keys,
            self.of[left],
            self.starts[left],
            self.stops[left],
            self.straight[left],
            self.checksums[left],
            items,
        )


def as_reads(runs: Sequence[ByteRun], blocks: Sequence[Blocks], *, window: int) -> Reads:
    """Return runs as reads: those that share bytes are joined, and long ones are cut so that each fits a call."""
    reads = _sorted([_of_runs(runs), *map(_of_blocks, blocks)])
    odd = reads.shared_or_long(window)
    if not odd.any():
        return reads
    again = cut(merged(map(reads.run, np.flatnonzero(odd).tolist())), window)
    return _sorted([_of_runs([*again]), reads.without(odd)])


def _of_runs(runs: Sequence[ByteRun]) -> Reads:
    numbers: dict[str, int] = {}
    places = [
        (numbers.setdefault(key, len(numbers)), start, stop, sum(memory.nbytes for _, memory in straight))
        for key, start, stop, _, _, straight, _ in runs
    ]
    of, starts, stops, straight = np.array(places, np.int64).reshape(-1, 4).T
    return Reads([*numbers], of, starts, stops, straight, np.zeros(len(runs), np.uint32), [*runs])


def _of_blocks(blocks: Blocks) -> Reads:
    keys, of, starts, stops, checksums, arrays = blocks
    return Reads(keys, of, starts, stops, stops - starts, checksums, [*arrays])


def _sorted(some: Sequence[Reads]) -> Reads:
    keys = sorted({key for reads in some for key in reads.keys})
    numbers = {key: number for number, key in enumerate(keys)}
    of = np.concatenate(
        [np.array([numbers[key] for key in reads.keys], np.int64)[reads.of] for reads in some]
    )
    starts = np.concatenate([reads.starts for reads in some])
    stops = np.concatenate([reads.stops for reads in some])
    order = np.lexsort((stops, starts, of))
    items = [item for reads in some for item in reads.items]
    return Reads(
        keys,
        of[order],
        starts[order],
        stops[order],
        np.concatenate([reads.straight for reads in some])[order],
        np.concatenate([reads.checksums for reads in some])[order],
        [items[number] for number in order.tolist()],
    )
