"""Reading a box of a strided tensor from a byte source in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.tensor_files.byte_source import ByteSource

__all__ = ["contiguous_strides", "element_view", "read_strided", "slabs"]

_MAX_SPAN: Final = 32 << 20  # bytes held at a time
_SMALL_SPAN: Final = 64 << 10  # below this one read is cheaper than several
_MAX_WASTE: Final = 4  # bytes read for each byte wanted
_CARRIERS: Final = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous tensor."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def element_view(out: npt.NDArray[np.uint8], size: int, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return flat bytes seen as elements of ``size`` bytes in ``shape``; the element type only carries bits."""
    return out.reshape(-1).view(_CARRIERS[size]).reshape(tuple(shape))


def read_strided(source: ByteSource, start: int, strides: Sequence[int], target: npt.NDArray[Any]) -> None:
    """Fill ``target`` from elements at ``start + sum(index * stride) * itemsize`` of ``source``.

    ``strides`` count elements and are not negative (torch has no others); ``target`` has the box's shape and
    is a view from `element_view` or a slice of one. Reads rows, or spans that waste little, at most 32 MiB at
    a time. Raises ``UCP-E-SOURCE``.
    """
    size = target.itemsize
    shape = target.shape
    if target.size == 0:
        return
    span = (sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1) * size
    if target.flags.c_contiguous and span == target.nbytes and _in_order(shape, strides):
        source.read_into(start, target.reshape(-1).view(np.uint8).data)
        return
    if span <= _SMALL_SPAN or (span <= _MAX_SPAN and span <= _MAX_WASTE * target.nbytes):
        elements = np.frombuffer(source.read(start, span), dtype=target.dtype)
        steps = [stride * size for stride in strides]
        target[...] = np.lib.stride_tricks.as_strided(elements, shape, steps, writeable=False)
        return
    widest = max(range(len(shape)), key=lambda dim: (shape[dim] - 1) * strides[dim])
    middle = shape[widest] // 2
    lower: list[Any] = [slice(None)] * len(shape)
    upper = list(lower)
    lower[widest], upper[widest] = slice(None, middle), slice(middle, None)
    read_strided(source, start, strides, target[tuple(lower)])
    read_strided(source, start + middle * strides[widest] * size, strides, target[tuple(upper)])


def _in_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = contiguous_strides(shape)
    return all(
        extent == 1 or stride == want for extent, stride, want in zip(shape, strides, expected, strict=True)
    )


def slabs(shape: tuple[int, ...], size: int, limit: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield boxes (offset, shape) that tile ``shape`` in C order, each of at most ``limit`` bytes.

    ``size`` is the bytes of an element; a box has one element at least. An empty shape has one empty box.
    """
    inner = [size]
    for extent in reversed(shape):
        inner.append(inner[-1] * extent)
    inner.reverse()  # inner[dim]: bytes of the dimensions from dim on
    if inner[0] <= limit or not shape:
        yield (0,) * len(shape), shape
        return
    dim = next(d for d in range(len(shape)) if inner[d + 1] <= limit or d == len(shape) - 1)
    step = max(1, limit // inner[dim + 1])
    for outer in np.ndindex(*shape[:dim]):
        for start in range(0, shape[dim], step):
            count = min(step, shape[dim] - start)
            rest = shape[dim + 1 :]
            yield (*outer, start, *(0 for _ in rest)), (*(1 for _ in outer), count, *rest)
