"""Copies between two ranks as both of them number them, cut to a largest size (SPEC section 17.2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ucpformat.geometry.box import row_major_strides
from ucpformat.geometry.transfer import Copy

__all__ = ["cut_copy", "in_message_order"]


def in_message_order(copies: Iterable[Copy]) -> list[Copy]:
    """Return the copies of one tensor between two ranks in an order that follows from them alone.

    The parts of two ranks in a plan list the copies between them in different orders.
    """
    return sorted(copies, key=_place)


def _place(copy: Copy) -> tuple[object, ...]:
    return (
        copy.contribution,
        copy.source.offset,
        copy.target.offset,
        copy.shape,
        copy.source.strides,
        copy.target.strides,
    )


def cut_copy(copy: Copy, most: int) -> Iterator[Copy]:
    """Return the parts of a copy, of at most ``most`` elements each and at least 1, in row-major order."""
    if copy.size <= most:
        yield copy
        return
    shape = copy.shape
    inner = row_major_strides(shape)
    dim = sum(count > most for count in inner)
    rows = most // inner[dim]
    rest = len(shape) - dim - 1
    for head in itertools.product(*map(range, shape[:dim])):
        for start in range(0, shape[dim], rows):
            by = (*head, start, *(0,) * rest)
            yield replace(
                copy,
                shape=(*(1,) * dim, min(rows, shape[dim] - start), *shape[dim + 1 :]),
                source=copy.source.shifted(by),
                target=copy.target.shifted(by),
            )
