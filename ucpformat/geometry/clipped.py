"""Moves cut to boxes, on either side: what a part of a tensor needs, and of which box of the other tensor.

A move counts the elements of both tensors in row-major order. Here its dims are taken apart until each goes along
one dim of a tensor, so that boxes of that tensor can be compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ucpformat.geometry.box import Box, row_major_strides
from ucpformat.geometry.piece import Strided
from ucpformat.geometry.refine import check_count
from ucpformat.geometry.transfer import Move

__all__ = ["clipped_move", "source_boxes"]

_SPAN = 2  # elements of a box that are read for each that is wanted


@dataclass(frozen=True, slots=True)
class _Run:
    """Elements of a tensor from ``first`` (an index) on: each dim goes along ``dims[i]`` of it in ``steps[i]``."""

    shape: tuple[int, ...]
    first: tuple[int, ...]
    dims: tuple[int, ...]
    steps: tuple[int, ...]
    other: Strided

    def part(self, dim: int, start: int, count: int) -> _Run:
        """Return the elements ``[start, start + count)`` along one of its dims."""
        along = self.dims[dim]
        first = list(self.first)
        first[along] += start * self.steps[dim]
        shape = (*self.shape[:dim], count, *self.shape[dim + 1 :])
        offset = self.other.offset + start * self.other.strides[dim]
        return replace(self, shape=shape, first=tuple(first), other=replace(self.other, offset=offset))

    def span(self, dim: int) -> int:
        """Return how far its last element is from its first along one of its dims."""
        return (self.shape[dim] - 1) * self.steps[dim]


def clipped_move(move: Move, shape: tuple[int, ...], box: Box) -> Iterator[Move]:
    """Yield the parts of ``move`` that end in ``box`` of the target of this ``shape``; they count in the box's memory.

    Raises UCP-E-LIMIT where it falls apart into more pieces than `MAX_PIECES`.
    """
    inner = row_major_strides(box.shape)
    for whole in _runs(move.shape, move.target, move.source, shape):
        found = [whole]
        for dim in range(len(shape)):
            found = [part for run in found for part in _clipped(run, dim, box.offset[dim], box.stop[dim])]
        for run in found:
            yield Move(run.shape, run.other, _within(run, box, inner), move.factor)


def source_boxes(move: Move, shape: tuple[int, ...]) -> Iterator[tuple[Box, Move]]:
    """Yield boxes of the source, which has ``shape``, and what goes from the memory of each to the target.

    A box has at most twice as many elements as are taken from it. Raises as `clipped_move`.
    """
    pending = list(_runs(move.shape, move.source, move.target, shape))
    while pending:
        run = pending.pop()
        extents = [1] * len(shape)
        for dim, along in enumerate(run.dims):
            extents[along] += run.span(dim)
        count = math.prod(run.shape)
        if math.prod(tuple(extents)) > _SPAN * count:
            dense = row_major_strides(shape)
            widest = max(
                range(len(run.shape)),
                key=lambda dim: (run.shape[dim] > 1, run.steps[dim] * dense[run.dims[dim]]),
            )
            middle = run.shape[widest] // 2
            pending += [run.part(widest, middle, run.shape[widest] - middle), run.part(widest, 0, middle)]
            continue
        box = Box(run.first, tuple(extents))
        own = _within(run, box, row_major_strides(box.shape))
        yield box, Move(run.shape, own, run.other, move.factor)


def _within(run: _Run, box: Box, inner: tuple[int, ...]) -> Strided:
    offset = sum((first - low) * step for first, low, step in zip(run.first, box.offset, inner, strict=True))
    return Strided(offset, tuple(step * inner[dim] for dim, step in zip(run.dims, run.steps, strict=True)))


def _clipped(run: _Run, dim: int, low: int, high: int) -> Iterator[_Run]:
    """Yield the parts of ``run`` whose index along ``dim`` is in ``[low, high)``."""
    mine = sorted(
        (number for number, along in enumerate(run.dims) if along == dim), key=run.steps.__getitem__
    )
    spans = sum(map(run.span, mine))
    first = run.first[dim]
    if first >= low and first + spans < high:
        yield run
        return
    if first + spans < low or first >= high:
        return
    # It reaches over an edge, and so has a dim along this one: the outermost is cut.
    outer = mine[-1]
    step, count = run.steps[outer], run.shape[outer]
    inner = spans - run.span(outer)
    inside = range(max(0, -((first - low) // step)), min(count, (high - 1 - inner - first) // step + 1))
    if len(mine) == 1:
        if inside:
            yield run.part(outer, inside.start, len(inside))
        return
    touching = range(max(0, -((first + inner - low) // step)), min(count, (high - 1 - first) // step + 1))
    for position in touching:
        if position not in inside:
            yield from _clipped(_fixed(run, outer, position), dim, low, high)
        elif position == inside.start:
            yield run.part(outer, inside.start, len(inside))


def _fixed(run: _Run, dim: int, position: int) -> _Run:
    """Return ``run`` at one position along a dim, without that dim."""
    part = run.part(dim, position, 1)
    strides = part.other.strides
    return replace(
        part,
        shape=(*part.shape[:dim], *part.shape[dim + 1 :]),
        dims=(*part.dims[:dim], *part.dims[dim + 1 :]),
        steps=(*part.steps[:dim], *part.steps[dim + 1 :]),
        other=Strided(part.other.offset, (*strides[:dim], *strides[dim + 1 :])),
    )


_Loop = tuple[int, int, int]
"""How many, how far apart in the tensor's memory, how far in the other."""


def _runs(extents: tuple[int, ...], own: Strided, other: Strided, shape: tuple[int, ...]) -> Iterator[_Run]:
    """Yield ``extents`` at ``own`` of a dense tensor of ``shape`` as runs, each dim of which goes along one dim."""
    if 0 in extents:
        return
    dense = row_major_strides(shape)
    loops = tuple(loop for loop in zip(extents, own.strides, other.strides, strict=True) if loop[0] > 1)
    pending = [(loops, own.offset, other.offset)]
    found = 0
    while pending:
        loops, start, there = pending.pop()
        check_count(found := found + 1)
        first = _index(start, dense, shape)
        dims = tuple(_dim(step, dense, shape) for _, step, _ in loops)
        cut = _first_cut(loops, dims, first, dense, shape)
        if cut is None:
            steps = tuple(step // dense[dim] for (_, step, _), dim in zip(loops, dims, strict=True))
            strides = tuple(far for _, _, far in loops)
            yield _Run(tuple(count for count, _, _ in loops), first, dims, steps, Strided(there, strides))
            continue
        at, head, row = cut
        count, step, far = loops[at]
        before, after = loops[:at], loops[at + 1 :]
        parts: list[tuple[int, tuple[_Loop, ...]]] = []
        if row:
            # Whole rows: one loop over them, one inside.
            body = count // row
            parts.append((0, ((body, row * step, row * far), (row, step, far))))
            head = body * row
        else:
            parts.append((0, ((head, step, far),)))
        if head < count:
            parts.append((head, ((count - head, step, far),)))
        for skip, middle in parts:
            kept = tuple(loop for loop in middle if loop[0] > 1)
            pending.append(((*before, *kept, *after), start + skip * step, there + skip * far))


def _index(start: int, dense: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(start // step % extent for step, extent in zip(dense, shape, strict=True))


def _dim(step: int, dense: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Return the innermost dim along which elements can be ``step`` apart."""
    return next(dim for dim in reversed(range(len(shape))) if step < dense[dim] * shape[dim])


def _first_cut(
    loops: tuple[_Loop, ...],
    dims: tuple[int, ...],
    first: tuple[int, ...],
    dense: tuple[int, ...],
    shape: tuple[int, ...],
) -> tuple[int, int, int] | None:
    """Return a loop that leaves its dim: which, how many of it do not, and how many make a row where rows are whole."""
    reach = list(first)
    for at in sorted(range(len(loops)), key=lambda at: loops[at][1]):
        count, step, _ = loops[at]
        dim = dims[at]
        if step % dense[dim]:
            return at, 1, 0
        step //= dense[dim]
        if reach[dim] + (count - 1) * step >= shape[dim]:
            if shape[dim] % step == 0 and reach[dim] < step:
                return at, 0, shape[dim] // step
            return at, (shape[dim] - 1 - reach[dim]) // step + 1, 0
        reach[dim] += (count - 1) * step
    return None
