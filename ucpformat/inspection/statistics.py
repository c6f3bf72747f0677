"""What the elements of tensors look like: whether any is NaN, their range, mean, norm and magnitudes.

Tensors are read once, piece by piece, in several threads: memory is a few MiB for each of them.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.views import SlotView

__all__ = ["SlotStatistics", "statistics"]

_PIECE_BYTES: Final = 1 << 23
_BLOCK: Final = 1 << 18
"""Elements that are looked at together: few enough for caches, so many that threads seldom wait between calls."""
_SAMPLED: Final = 1 << 14
"""Elements of each piece, at most, whose magnitudes are counted."""
_SHORT: Final = 1 << 10
"""Elements that are added in the data type that they are looked at in, as a row, before float64 takes over."""
_OFFSET: Final = 1100
"""Makes every exponent of a float64 positive."""
_MOST_WORKERS: Final = 8
_LEAST_LARGEST: Final = 1e-12
_MOST_LARGEST: Final = 1e15
"""Between these, squares of the largest element fit float32, and those that do not count for nothing beside them."""


@dataclass(slots=True)
class SlotStatistics:
    """Of a slot's elements; those of complex numbers are their real and imaginary parts, of bools 0 and 1.

    Attributes:
        count: how many elements there are.
        nan: how many of them are NaN.
        inf: how many are infinite.
        zeros: how many are zero.
        minimum: the least finite one; None where none is finite.
        maximum: the largest finite one.
        total: the sum of the finite ones, in float64; of bfloat16, a thousand at a time in float32.
        squares: the sum of their squares.
        magnitudes: of some elements that are neither zero nor infinite, how many have an absolute value from 2**n up to
            2**(n+1), by n: all of a small tensor, evenly distant ones of a large one.
    """

    count: int = 0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    minimum: float | None = None
    maximum: float | None = None
    total: float = 0.0
    squares: float = 0.0
    magnitudes: dict[int, int] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The mean of the finite elements; None where there is none."""
        finite = self.count - self.nan - self.inf
        return self.total / finite if finite else None

    @property
    def norm(self) -> float:
        """The Euclidean norm of the finite elements."""
        return math.sqrt(self.squares)

    def add(self, other: SlotStatistics) -> None:
        """Take other elements in."""
        self.count += other.count
        self.nan += other.nan
        self.inf += other.inf
        self.zeros += other.zeros
        for name, better in (("minimum", min), ("maximum", max)):
            found = [one for one in (getattr(self, name), getattr(other, name)) if one is not None]
            setattr(self, name, better(found) if found else None)
        self.total += other.total
        self.squares += other.squares
        for exponent, count in other.magnitudes.items():
            self.magnitudes[exponent] = self.magnitudes.get(exponent, 0) + count

    def to_json(self) -> dict[str, object]:
        """Return it for JSON, which has no infinities: a sum that overflows is None."""

        def number(value: float | None) -> float | None:
            return value if value is not None and math.isfinite(value) else None

        return {
            "count": self.count,
            "nan": self.nan,
            "inf": self.inf,
            "zeros": self.zeros,
            "min": number(self.minimum),
            "max": number(self.maximum),
            "mean": number(self.mean),
            "norm": number(self.norm),
            "magnitudes": {str(exponent): self.magnitudes[exponent] for exponent in sorted(self.magnitudes)},
        }


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
    found = [SlotStatistics() for _ in slots]
    count = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
    tasks = ((number, view, piece) for number, view in enumerate(slots) for piece in _pieces(view))

    def of(task: tuple[int, SlotView, tuple[slice, ...]]) -> tuple[int, SlotStatistics]:
        number, view, piece = task
        data = view[piece] if piece else view.read()
        made = _of_array(np.asarray(data))
        progress(np.asarray(data).nbytes)
        return number, made

    with ThreadPoolExecutor(count, thread_name_prefix="ucp-stats") as executor:
        for number, made in _in_turn(executor, of, tasks, 4 * count):
            found[number].add(made)
    return found


def _in_turn(
    executor: ThreadPoolExecutor, work: Callable[[Any], Any], tasks: Iterable[Any], ahead: int
) -> Iterator[Any]:
    """Yield results in order, of which ``ahead`` are under way: a checkpoint may have millions of pieces."""
    waiting = []
    for task in tasks:
        waiting.append(executor.submit(work, task))
        if len(waiting) >= ahead:
            yield waiting.pop(0).result()
    for one in waiting:
        yield one.result()


def _pieces(view: SlotView) -> Iterator[tuple[slice, ...]]:
    """Yield selections of a few MiB that tile a slot, each within a chunk; an empty one for all of a small one."""
    if view.nbytes <= _PIECE_BYTES:
        if view.size:
            yield ()
        return
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


def _of_array(data: NDArray[np.generic]) -> SlotStatistics:
    flat = data.reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(np.float32 if flat.dtype.itemsize == 8 else np.float64)
    found = SlotStatistics()
    # One memory for all blocks, which stays in the cache: fresh memory would cost more than the sums.
    room = np.empty(min(flat.size, _BLOCK), np.float64)
    for low in range(0, flat.size, _BLOCK):
        block = flat[low : low + _BLOCK]
        made = None
        if block.dtype.name == "bfloat16":
            made = _of_short_floats(block, room)
        if made is None:
            values = room[: block.size]
            np.copyto(values, block, casting="unsafe")
            made = _of_block(values, block if block.dtype == np.float32 else values)
        found.add(made)
    found.magnitudes = _magnitudes(flat)
    return found


def _of_short_floats(block: NDArray[np.generic], room: NDArray[np.float64]) -> SlotStatistics | None:
    """Return the statistics of bfloat16 elements, or None where float32 has not the range for their squares."""
    values = room.view(np.float32)[: block.size]
    np.copyto(values, block, casting="unsafe")
    low, high = float(values.min()), float(values.max())
    largest = max(-low, high)
    if not _LEAST_LARGEST < largest < _MOST_LARGEST:  # also where one is NaN
        return None
    found = SlotStatistics(values.size, minimum=low, maximum=high)
    found.total, found.squares = _sums(values)
    found.zeros = int(np.count_nonzero(values == 0))
    return found


def _of_block(values: NDArray[np.float64], same: NDArray[np.generic]) -> SlotStatistics:
    """Return the statistics of elements; ``same`` has them too, of a shorter type, to compare them in."""
    found = SlotStatistics(count=values.size)
    with np.errstate(over="ignore", invalid="ignore"):
        total, squares = _sums(values)
        if not math.isfinite(total):
            found.nan = int(np.isnan(values).sum())
            found.inf = int(np.isinf(values).sum())
            values = same = values[np.isfinite(values)]
            total, squares = _sums(values)
        if values.size:
            found.minimum, found.maximum = float(same.min()), float(same.max())
            found.total, found.squares = total, squares
        found.zeros = int(np.count_nonzero(same == 0))
    return found


def _sums(values: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Return the sum and that of squares: of rows that are too short for BLAS to start threads of its own."""
    total = squares = 0.0
    whole = values.size // _SHORT * _SHORT
    for part in (values[:whole].reshape(-1, 1, _SHORT), values[whole:].reshape(1, 1, -1)):
        if part.size:
            # One call for all rows, as threads wait for one another between calls.
            ones = np.ones((part.shape[2], 1), values.dtype)
            total += float(np.matmul(part, ones).sum(dtype=np.float64))
            squares += float(np.matmul(part, part.transpose(0, 2, 1)).sum(dtype=np.float64))
    return total, squares


def _magnitudes(values: NDArray[np.generic]) -> dict[int, int]:
    sample = values[:: max(1, values.size // _SAMPLED)].astype(np.float64)
    _, exponents = np.frexp(sample[(sample != 0) & np.isfinite(sample)])
    counts = np.bincount(exponents + _OFFSET)
    return {int(place) - _OFFSET - 1: int(counts[place]) for place in np.flatnonzero(counts)}
