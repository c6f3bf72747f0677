"""What the elements of tensors look like: whether any is NaN, their range, mean, norm and magnitudes.

What is stored as it is passes by, block by block, in several threads: memory is a few MiB for each of them. What is
compressed, or was written over, is read piece by piece.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.inspection.element_sums import SlotStatistics, add_elements
from ucpformat.inspection.together import as_doubles, magnitudes_together, statistics_together
from ucpformat.storage.reading.streaming import passing_runs
from ucpformat.views import reader_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.storage.reading.streaming import PassingRun
    from ucpformat.views import SlotView

__all__ = ["SlotStatistics", "statistics"]

_PIECE_BYTES: Final = 1 << 23
_SAMPLED: Final = 1 << 12
"""Elements, at least, whose magnitudes are counted, of a tensor that has so many."""
_SMALL: Final = 1 << 11
"""Elements at most of a slot that is looked at together with others."""
_FURTHEST: Final = 256
"""Of so many elements one is counted, at least."""


def statistics(
    slots: Sequence[SlotView], *, workers: int | None = None, progress: Callable[[int], None] = lambda _: None
) -> list[SlotStatistics]:
    """Read slots of an open checkpoint, and return the statistics of each.

    ``progress`` is told logical bytes, from any thread.

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
        call = _Call(slots, progress)
        runs, others = call.plan(numbers)
        reader.pass_elements(runs, call.look, others, workers)
        # In the order of tasks, so that sums are the same each time.
        for task in sorted(call.made):
            for number, one in call.made[task].items():
                found[number].add(one)
    return found


class _Call:
    """What tasks find: each task, by its kind and number, of the slots that it sees."""

    def __init__(self, slots: Sequence[SlotView], progress: Callable[[int], None]) -> None:
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
        pieces = ((number, piece) for number in others for piece in _pieces(self._slots[number]))
        return runs, (partial(self._read, *one, task) for task, one in enumerate(pieces))

    def look(self, task: int, passing: Iterator[tuple[PassingRun, NDArray[np.uint8]]]) -> None:
        """Add up what passes by: small slots together, others block by block."""
        made: dict[int, SlotStatistics] = {}
        samples: dict[int, list[NDArray[np.float64]]] = {}
        small: dict[int, NDArray[np.float64]] = {}
        done = 0
        for run, octets in passing:
            view = self._slots[run.number]
            elements = octets.view(view.dtype)
            done += octets.size
            if elements.size == view.size <= _SMALL:
                small[run.number] = as_doubles(elements)
                continue
            if run.number not in made:
                made[run.number], samples[run.number] = SlotStatistics(), []
            add_elements(made[run.number], elements)
            samples[run.number].append(as_doubles(elements[:: _step(view.size)]))
        made |= zip(small, statistics_together(list(small.values())), strict=True)
        _set_magnitudes(made, samples | {number: [values] for number, values in small.items()})
        self.made[(1, task)] = made
        self._progress(done)

    def _read(self, number: int, piece: tuple[slice, ...], task: int) -> None:
        view = self._slots[number]
        elements = view[piece].reshape(-1)
        made = {number: SlotStatistics()}
        add_elements(made[number], elements)
        _set_magnitudes(made, {number: [as_doubles(elements[:: _step(view.size)])]})
        self.made[(2, task)] = made
        self._progress(elements.nbytes)


def _set_magnitudes(made: dict[int, SlotStatistics], samples: dict[int, list[NDArray[np.float64]]]) -> None:
    found = magnitudes_together([np.concatenate(some) for some in samples.values()])
    for number, magnitudes in zip(samples, found, strict=True):
        made[number].magnitudes = magnitudes


def _step(size: int) -> int:
    """Return of how many elements one is counted: an odd number, which does not look at the same columns again."""
    return min(_FURTHEST, size // _SAMPLED) | 1


def _pieces(view: SlotView) -> Iterator[tuple[slice, ...]]:
    """Yield selections of a few MiB that tile a slot, each within a chunk; whole chunks of what is compressed."""
    extents = list(view.chunk_shape)
    item = view.dtype.itemsize
    for axis in range(len(extents) if view.stored.compressor is None else 0):
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
