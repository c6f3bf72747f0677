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

_PIECE_BYTES: Final = 1 << 22
_BLOCK: Final = 1 << 17
"""Elements that are summed at a time, as float64."""
_SAMPLED: Final = 1 << 12
"""Elements of each block, at most, whose magnitudes are counted."""
_SHORT: Final = 1 << 13
_OFFSET: Final = 1100
"""Makes every exponent of a float64 positive."""
_MOST_WORKERS: Final = 8


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
        total: the sum of the finite ones, in float64.
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
    for low in range(0, flat.size, _BLOCK):
        found.add(_of_block(flat[low : low + _BLOCK].astype(np.float64)))
    return found


def _of_block(values: NDArray[np.float64]) -> SlotStatistics:
    found = SlotStatistics(count=values.size)
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(values.sum())
        if not math.isfinite(total):
            found.nan = int(np.isnan(values).sum())
            found.inf = int(np.isinf(values).sum())
            values = values[np.isfinite(values)]
            total = float(values.sum())
        if values.size:
            found.minimum, found.maximum = float(values.min()), float(values.max())
            found.total = total
            # In parts that are too short for BLAS to start threads of its own, of which there are enough.
            parts = (values[low : low + _SHORT] for low in range(0, values.size, _SHORT))
            found.squares = sum(float(np.dot(part, part)) for part in parts)
        found.zeros = int(np.count_nonzero(values == 0))
    sample = values[:: max(1, values.size // _SAMPLED)]
    _, exponents = np.frexp(sample[sample != 0])
    counts = np.bincount(exponents + _OFFSET)
    found.magnitudes = {int(place) - _OFFSET - 1: int(counts[place]) for place in np.flatnonzero(counts)}
    return found
