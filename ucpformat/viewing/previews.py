"""Small pictures of tensors, which a page carries where it has no tensors: the first elements, and means of cells.

They have the forms that `js/view/matrix.mjs` makes of tensors themselves, and are read with their checksums verified.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ucpformat.reader import Checkpoint
    from ucpformat.views import SlotView

__all__ = ["previews"]

WINDOW: Final = (16, 12)
"""Rows and columns of the elements that are carried."""
_CELLS: Final = 48
_FOLDED: Final = 1024
"""Columns of the matrix as which a vector is shown."""
_WHOLE: Final = 8 << 20
"""Bytes of a tensor up to which all of it is read."""
_BAND: Final = 1 << 20
"""Bytes that are read of each of the eight bands of a larger one."""


def previews(checkpoint: Checkpoint, limit: int) -> dict[str, dict[str, object]]:
    """Return previews by atom and slot, of the largest slots first, while their JSON has at most ``limit`` bytes.

    Raises:
        UcpError: what reading raises.
    """
    slots = [(name, slot, view) for name, atom in checkpoint.items() for slot, view in atom.items()]
    found: dict[str, dict[str, object]] = {}
    room = limit
    for name, slot, view in sorted(slots, key=lambda one: (-one[2].nbytes, one[0], one[1])):
        made = _preview(view)
        taken = len(json.dumps([name, slot, made], separators=(",", ":")))
        if taken > room:
            break
        room -= taken
        found.setdefault(name, {})[slot] = made
    return found


def _preview(view: SlotView) -> dict[str, object]:
    shape = [min(size, most) for size, most in zip(view.shape[-2:], WINDOW[-view.ndim :], strict=False)]
    extents = [*(min(1, size) for size in view.shape[:-2]), *shape]
    window = np.asarray(view[tuple(slice(0, extent) for extent in extents)] if extents else view.read())
    made: dict[str, object] = {
        "shape": extents,
        "elements": base64.b64encode(np.ascontiguousarray(window).tobytes()).decode(),
    }
    if view.size == 0 or (view.ndim > 1 and view.shape[-1] * view.dtype.itemsize > _WHOLE):
        return made  # of rows that are so long not even a few are worth reading for a picture
    return made | {"map": _heat_map(view)}


def _heat_map(view: SlotView) -> dict[str, object]:
    """Return means of cells of a slot as a matrix, each a byte: 0 where nothing was read, 1 where it is not finite."""
    columns = view.shape[-1] if view.ndim > 1 else min(view.size, _FOLDED)
    rows = -(-view.size // columns)
    is_whole = view.nbytes <= _WHOLE
    height, width = min(rows, _CELLS if is_whole else 8), min(columns, _CELLS)
    sums, counts = np.zeros((height, width)), np.zeros((height, width))
    starts = -(-np.arange(width) * columns // width)
    for first, block, held in _blocks(view, rows, columns, height if not is_whole else None):
        bands = -(-(np.arange(first, first + len(block)) + 1) * height // rows) - 1
        np.add.at(sums, bands, np.add.reduceat(block, starts, axis=1))
        np.add.at(counts, bands, np.add.reduceat(held, starts, axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        cells = sums / counts
    finite = np.isfinite(cells)
    most = float(np.abs(cells[finite]).max(initial=0.0))
    codes = np.where(counts > 0, 1, 0).astype(np.uint8)
    codes[finite] = 2 + np.round((cells[finite] / (most or 1) + 1) * 126.5).astype(np.uint8)
    return {
        "rows": rows,
        "columns": columns,
        "height": height,
        "width": width,
        "isWhole": is_whole,
        "most": most,
        "cells": base64.b64encode(codes.tobytes()).decode(),
    }


def _blocks(
    view: SlotView, rows: int, columns: int, bands: int | None
) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield rows of the matrix, with where they begin, and whether each element is there: all, or some of each band."""
    per_band = max(1, _BAND // (columns * view.dtype.itemsize))
    for band in range(bands or 1):
        first = band * rows // bands if bands else 0
        stop = min((band + 1) * rows // bands, first + per_band) if bands else rows
        flat = _numbers(view, first, stop, columns)
        held = np.zeros(-(-flat.size // columns) * columns)
        held[: flat.size] = 1
        block = np.zeros(held.size)
        block[: flat.size] = flat
        yield first, block.reshape(-1, columns), held.reshape(-1, columns)


def _numbers(view: SlotView, first: int, stop: int, columns: int) -> NDArray[np.float64]:
    """Return elements of rows of the matrix, of complex ones the real part; fewer rows where an index ends."""
    if (first, stop) == (0, -(-view.size // columns)):
        data = view.read()
    elif view.ndim == 1:
        data = view[first * columns : min(stop * columns, view.size)]
    else:
        *outer, row = np.unravel_index(first, view.shape[:-1])
        last = min(int(row) + stop - first, view.shape[-2])
        data = view[(*(int(i) for i in outer), slice(int(row), last))]
    values = np.asarray(data).reshape(-1)
    return (values.real if values.dtype.kind == "c" else values).astype(np.float64)
