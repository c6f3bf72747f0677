"""What is read by one call each: runs of bytes, sorted, and put together or cut (SPEC sections 17.2 and 17.3).

Where runs lie is held in columns. A slot that is one checksum block or less, and goes straight into an array, is its
place in them and that array, and no other object: there are such by the hundred thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ucpformat.storage.checksum import packed
from ucpformat.storage.host_memory import flat_bytes
from ucpformat.storage.reading.byte_runs import CALL_BYTES, ByteRun, cut, merged
from ucpformat.storage.workers import call_edges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["Blocks", "Call", "Reads", "as_reads"]


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
        """The first run of each call, and the one behind its last; ``gap`` and ``window`` as `Calls` has them."""
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
        """Bytes from the first to the last."""
        return int(self.stops[call[1] - 1] - self.starts[call[0]])

    def call(self, edges: tuple[int, int]) -> Call:
        """A call as objects."""
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
        """Which share bytes with another, or are more than one call reads."""
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
        """One run as an object."""
        item = self.items[number]
        if isinstance(item, ByteRun):
            return item
        key, start, stop = self.keys[self.of[number]], int(self.starts[number]), int(self.stops[number])
        checksum = packed([int(self.checksums[number])])
        return ByteRun(key, start, stop, start, checksum, ((start, flat_bytes(item)),), ())

    def without(self, some: NDArray[np.bool_]) -> Reads:
        """All others."""
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
    """Whatever is read at once; runs that share bytes are made one, and long ones cut, such that each fits a call."""
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
