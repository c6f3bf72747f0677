"""Joining boxes that continue one another, so that many small ones are said as few (SPEC section 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucpformat.geometry.box import Box

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["joined"]


def joined(boxes: Iterable[Box]) -> list[Box]:
    """Return the cells of disjoint boxes of one tensor as fewer of them, in order of offset, none empty.

    Neighbours along the last dim are joined first, those along the first dim last: so tiles become rows, and rows
    become blocks of rows.
    """
    found = [box for box in boxes if not box.is_empty]
    for dim in range(found[0].ndim - 1, -1, -1) if found else ():
        found = _joined_along(dim, found)
    return sorted(found, key=lambda box: (box.offset, box.shape))


def _joined_along(dim: int, boxes: list[Box]) -> list[Box]:
    def others(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return box.offset[:dim] + box.offset[dim + 1 :], box.shape[:dim] + box.shape[dim + 1 :]

    result: list[Box] = []
    for box in sorted(boxes, key=lambda box: (others(box), box.offset[dim])):
        if result:
            last = result[-1]
            if others(last) == others(box) and last.stop[dim] == box.offset[dim]:
                extent = last.shape[dim] + box.shape[dim]
                result[-1] = Box(last.offset, (*last.shape[:dim], extent, *last.shape[dim + 1 :]))
                continue
        result.append(box)
    return result
