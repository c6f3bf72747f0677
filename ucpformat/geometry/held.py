"""Who holds which cells of a tensor, as boxes that are disjoint (SPEC section 13)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ucpformat.geometry.box import Box
from ucpformat.geometry.cover import first_overlap
from ucpformat.geometry.piece import Holdings, Piece
from ucpformat.geometry.refine import seen_in

__all__ = ["HeldBox", "held_boxes"]


@dataclass(frozen=True, slots=True)
class HeldBox:
    """A box of a tensor and the ranks that hold all of it, ascending."""

    box: Box
    holders: tuple[int, ...]


def held_boxes(sources: Iterable[tuple[Holdings, frozenset[int]]]) -> tuple[HeldBox, ...]:
    """Return what is held as disjoint boxes in coordinates of the shape, by offset.

    ``sources`` are ways of holding one tensor, each with the ranks that do so; holders that are not among them
    count for nothing. Whether anything is missing is not looked at. Raises UCP-E-LIMIT as `seen_in`.
    """
    found: dict[Box, set[int]] = {}
    for holdings, ranks in sources:
        for region in holdings.filled():
            holders = ranks.intersection(region.holders)
            if holders:
                pieces: tuple[Piece, ...] = seen_in(region.local_map.pieces, holdings.view, holdings.shape)
                for piece in pieces:
                    found.setdefault(piece.box, set()).update(holders)
    entries = list(found.items())
    if first_overlap([box for box, _ in entries]) is not None:
        entries = _disjoint(entries)
    entries.sort(key=lambda entry: (entry[0].offset, entry[0].shape))
    return tuple(HeldBox(box, tuple(sorted(holders))) for box, holders in entries)


def _disjoint(entries: list[tuple[Box, set[int]]]) -> list[tuple[Box, set[int]]]:
    """Cut boxes up until they are equal or disjoint; each part with all its holders."""
    done: list[tuple[Box, set[int]]] = []
    for box, holders in entries:
        rest = [box]
        cut: list[tuple[Box, set[int]]] = []
        for other, theirs in done:
            common = other.intersect(box)
            if common is None:
                cut.append((other, theirs))
                continue
            cut.extend((part, theirs) for part in other.subtract(common))
            cut.append((common, theirs | holders))
            rest = [part for piece in rest for part in piece.subtract(common)]
        done = cut + [(part, holders) for part in rest]
    return done
