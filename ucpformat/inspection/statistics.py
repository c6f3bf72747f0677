"""What the elements of tensors look like: whether any is NaN, their range, mean, norm and magnitudes.

What is stored as it is passes by in several threads: memory is some MiB for each of them. What was written over is read
piece by piece, and what is compressed chunk by chunk, within a `DecodingRoom`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.inspection.element_sums import SlotStatistics, add_elements
from ucpformat.inspection.together import as_doubles, magnitudes_together, statistics_together
from ucpformat.storage.reading.streaming import passing_runs
from ucpformat.views import reader_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.storage.reading.box_reader import BoxReader
    from ucpformat.storage.reading.streaming import PassingRun
    from ucpformat.views import SlotView

__all__ = ["SlotStatistics", "statistics"]

_PIECE_BYTES: Final = 1 << 23
_SAMPLED: Final = 1 << 12
"""Elements, at least, whose magnitudes are counted, of a tensor that has so many."""
_SMALL: Final = 1 << 11
"""Elements at most of a slot that is looked at together with others."""
_HELD: Final = 1 << 17
"""Elements, in float64, of so many such slots as are held until they are looked at."""
_FURTHEST: Final = 256
"""Of so many elements one is counted, at least."""


def statistics(
    slots: Sequence[SlotView], *, workers: int | None = None, progress: Callable[[int], None] = lambda _: None
) -> list[SlotStatistics]:
    """Read slots of an open checkpoint, and return the statistics of each.

    ``progress`` is told logical bytes, from any thread. Up to eight workers take 256 MiB of memory together, however
    large the slots are; a compressed chunk of more than 120 MiB takes twice its size, alone.

    Raises:
        UcpError: what reading raises: nothing is said of damaged tensors.

    >>> statistics([ckpt["fc.weight"]["value"]])[0].maximum
    5.0
    """
    by_reader = defaultdict(list)
    for number, view in enumerate(slots):
        by_reader[reader_of(view)].append(number)
    found = [SlotStatistics() for _ in slots]
    for reader, numbers in by_reader.items():
        call = _Call(reader, slots, progress)
        runs, others = call.plan(numbers)
        reader.pass_elements(runs, call.look, others, workers)
        # In the order of tasks, so that sums are the same each time.
        for task in sorted(call.made):
            for number, one in call.made[task].items():
                found[number].add(one)
    return found


class _Call:
    """What tasks find: each task, by its kind and number, of the slots that it sees."""

    def __init__(self, reader: BoxReader, slots: Sequence[SlotView], progress: Callable[[int], None]) -> None:
        self._reader = reader
        self._slots = slots
        self._progress = progress
        self.made: dict[tuple[int, ...], dict[int, SlotStatistics]] = {}

    def plan(self, numbers: Sequence[int]) -> tuple[list[PassingRun], Iterator[Callable[[], None]]]:
        """Return runs that pass by, and how to read what does not; take note of zeros that are not stored."""
        runs: list[PassingRun] = []
        others: list[int] = []
        for number in numbers:
            view = self._slots[number]
            passing = passing_runs(number, view.stored)
            if passing is None:
                others.append(number)
                continue
            of_slot, zeros = passing
            runs += of_slot
            if zeros:
                parts = zeros * (2 if view.dtype.kind == "c" else 1)
                self.made[(0, number)] = {
                    number: SlotStatistics(parts, zeros=parts, minimum=0.0, maximum=0.0)
                }
                self._progress(zeros * view.dtype.itemsize)
        tasks = chain.from_iterable(map(self._reading, others))
        return runs, (partial(one, task) for task, one in enumerate(tasks))

    def look(self, task: int, passing: Iterator[tuple[PassingRun, NDArray[np.uint8]]]) -> None:
        """Add up what passes by."""
        sums = _Sums(self._slots)
        done = 0
        for run, octets in passing:
            sums.add(run.number, octets.view(self._slots[run.number].dtype))
            done += octets.size
        self.made[(1, task)] = sums.made()
        self._progress(done)

    def _reading(self, number: int) -> Iterator[Callable[[int], None]]:
        """Yield tasks that add up a slot which does not pass by; they are told their number."""
        view = self._slots[number]
        if view.stored.compressor is not None:
            yield from (partial(self._decode, number, chunk) for chunk in range(view.stored.grid.count))
        else:
            yield from (partial(self._read, number, piece) for piece in _pieces(view))

    def _read(self, number: int, piece: tuple[slice, ...], task: int) -> None:
        self._take(number, task, self._slots[number][piece])

    def _decode(self, number: int, chunk: int, task: int) -> None:
        take = partial(self._take, number, task)
        self._reader.look_at_decoded(self._slots[number].stored, chunk, take, nbytes=2 * _PIECE_BYTES)

    def _take(self, number: int, task: int, elements: NDArray[np.generic]) -> None:
        sums = _Sums(self._slots)
        for part in _flat(elements):
            sums.add(number, part)
        self.made[(2, task)] = sums.made()
        self._progress(elements.nbytes)


class _Sums:
    """What one task adds up: slots that are small together, others block by block."""

    def __init__(self, slots: Sequence[SlotView]) -> None:
        self._slots = slots
        self._made: dict[int, SlotStatistics] = {}
        self._samples: dict[int, list[NDArray[np.float64]]] = {}
        self._small: dict[int, NDArray[np.float64]] = {}
        self._held = 0

    def add(self, number: int, elements: NDArray[np.generic]) -> None:
        """Take elements of a slot in, in one dimension."""
        size = self._slots[number].size
        if elements.size == size <= _SMALL:
            self._small[number] = as_doubles(elements)
            self._held += size
            if self._held >= _HELD:
                self._add_small()
            return
        if number not in self._made:
            self._made[number], self._samples[number] = SlotStatistics(), []
        add_elements(self._made[number], elements)
        self._samples[number].append(as_doubles(elements[:: _step(size)]))

    def made(self) -> dict[int, SlotStatistics]:
        """Return the statistics of slots by their numbers."""
        self._add_small()
        self._set_magnitudes({number: np.concatenate(some) for number, some in self._samples.items()})
        return self._made

    def _add_small(self) -> None:
        self._made |= zip(self._small, statistics_together([*self._small.values()]), strict=True)
        self._set_magnitudes(self._small)
        self._small, self._held = {}, 0

    def _set_magnitudes(self, samples: dict[int, NDArray[np.float64]]) -> None:
        for number, magnitudes in zip(samples, magnitudes_together([*samples.values()]), strict=True):
            self._made[number].magnitudes = magnitudes


def _step(size: int) -> int:
    """Return of how many elements one is counted: an odd number, which does not look at the same columns again."""
    return min(_FURTHEST, size // _SAMPLED) | 1


def _flat(elements: NDArray[np.generic]) -> Iterator[NDArray[np.generic]]:
    """Yield elements in one dimension, a few MiB at a time where they have to be copied for it."""
    if elements.flags.c_contiguous or elements.nbytes <= _PIECE_BYTES:
        yield elements.reshape(-1)
        return
    rows = max(1, len(elements) * _PIECE_BYTES // elements.nbytes)
    for low in range(0, len(elements), rows):
        yield from _flat(elements[low] if rows == 1 else elements[low : low + rows])


def _pieces(view: SlotView) -> Iterator[tuple[slice, ...]]:
    """Yield selections of a few MiB that tile a slot, each within a chunk."""
    extents = list(view.chunk_shape)
    item = view.dtype.itemsize
    for axis in range(len(extents)):
        rest = math.prod(extents[axis + 1 :]) * item
        extents[axis] = max(1, min(extents[axis], _PIECE_BYTES // max(1, rest * math.prod(extents[:axis]))))
    starts = [
        _starts(size, chunk, step)
        for size, chunk, step in zip(view.shape, view.chunk_shape, extents, strict=True)
    ]
    yield from product(*starts)


def _starts(size: int, chunk: int, step: int) -> list[slice]:
    return [
        slice(low, min(low + step, first + chunk, size))
        for first in range(0, size, chunk)
        for low in range(first, min(first + chunk, size), step)
    ]
