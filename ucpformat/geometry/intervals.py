"""Interval lists: what is left of one dim after some steps, in order (SPEC section 13).

An interval is ``(start, length)`` in the coordinates of the dim before any step; a list of them is read as
concatenated. Steps keep the order, so starts ascend and intervals never overlap. An interval whose start is
`HOLE` is padding, or belongs to another tensor of the same buffer: no element of this one is there.
"""

from __future__ import annotations

from typing import Final

from ucpformat.errors import error
from ucpformat.geometry.steps import Rule, RuleName

__all__ = ["HOLE", "Interval", "cut_up", "extent_of", "merged", "part", "rule_sizes", "taken"]

HOLE: Final = -1

Interval = tuple[int, int]


def part(extent: int, parts: int, rule: Rule, index: int, at: str) -> Interval:
    """Return start and length of part ``index`` of ``extent`` under ``rule`` (see `steps.Shard`).

    Raises UCP-E-LAYOUT, with ``at`` as the place of the step, where the rule does not fit the extent.
    """
    if rule == "ceil":
        chunk = -(-extent // parts)
        start = min(index * chunk, extent)
        return start, min(chunk, extent - start)
    if rule == "balanced":
        quotient, remainder = divmod(extent, parts)
        return index * quotient + min(index, remainder), quotient + (index < remainder)
    if rule == "even":
        if extent % parts:
            raise error(
                "UCP-E-LAYOUT",
                f"{parts} parts do not divide {extent} elements: use another rule",
                at=f"{at}/rule",
            )
        chunk = extent // parts
        return index * chunk, chunk
    check_sum(rule, extent, at)
    return sum(rule[:index]), rule[index]


def rule_sizes(extent: int, parts: int, rule: RuleName, at: str) -> tuple[int, ...]:
    """Return the lengths of all parts; raises as `part`."""
    return tuple(part(extent, parts, rule, index, at)[1] for index in range(parts))


def check_sum(sizes: tuple[int, ...], extent: int, at: str) -> None:
    """Raise UCP-E-LAYOUT at the step's ``sizes`` unless they sum to ``extent``."""
    if sum(sizes) != extent:
        raise error(
            "UCP-E-LAYOUT", f"sizes sum to {sum(sizes)}, but the extent is {extent}", at=f"{at}/sizes"
        )


def extent_of(intervals: list[Interval]) -> int:
    """Return the number of elements in the list."""
    return sum(length for _, length in intervals)


def taken(intervals: list[Interval], start: int, length: int) -> list[Interval]:
    """Return elements ``[start, start + length)`` of the concatenation, empty intervals left out."""
    result: list[Interval] = []
    stop = start + length
    position = 0
    for first, extent in intervals:
        low, high = max(start, position), min(stop, position + extent)
        if low < high:
            result.append((HOLE if first == HOLE else first + low - position, high - low))
        position += extent
    return result


def cut_up(intervals: list[Interval], sizes: tuple[int, ...]) -> list[list[Interval]]:
    """Return consecutive runs of the concatenation, of ``sizes`` that sum to its extent, in one sweep."""
    waiting = [interval for interval in reversed(intervals) if interval[1]]
    runs: list[list[Interval]] = []
    for size in sizes:
        run: list[Interval] = []
        while size:
            first, length = waiting.pop()
            if length > size:
                waiting.append((HOLE if first == HOLE else first + size, length - size))
                length = size
            run.append((first, length))
            size -= length
        runs.append(run)
    return runs


def merged(intervals: list[Interval]) -> list[Interval]:
    """Return the same elements with neighbours that continue each other joined."""
    result: list[Interval] = []
    for first, length in intervals:
        if result:
            before, extent = result[-1]
            if first == (HOLE if before == HOLE else before + extent):
                result[-1] = (before, extent + length)
                continue
        result.append((first, length))
    return result
