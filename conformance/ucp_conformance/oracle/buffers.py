"""Buffers: where the tensors of one group lie, cell by cell (SPEC 12.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ucp_conformance.oracle.layout_rules import wrong

__all__ = ["check_place", "clashes", "entry_of"]


def _behind(steps: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]] | None:
    """Return the steps behind the concat, None where there is none."""
    kinds = [step["kind"] for step in steps]
    return steps[kinds.index("concat") + 1 :] if "concat" in kinds else None


def check_place(
    mesh: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], place: Mapping[str, Any] | None
) -> None:
    """Check UCP-D-067, UCP-D-069 to UCP-D-071."""
    behind = _behind(steps)
    if (behind is None) != (place is None):
        raise wrong("a place without a concat, or a concat without a place")
    if behind is None or place is None:
        return
    axes = place.get("axes", [])
    known = {axis["name"]: axis for axis in mesh["axes"]}
    if len(set(axes)) < len(axes) or not set(axes) <= known.keys():
        raise wrong("a place whose axes are not distinct axes of the mesh")
    one = [shard["axis"] for step in behind for shard in (step, *_own(step)) if shard["kind"] == "shard"]
    one += [step["axis"] for step in steps if step["kind"] == "partial"]
    if set(one) & set(axes):
        raise wrong("a place that differs along an axis along which it is one buffer")
    if any("by" in known[axis] and known[axis]["by"] not in axes for axis in axes):
        raise wrong("an axis without the one that decides its size")
    count = math.prod(_most(known[axis]) for axis in axes)
    if len(place["offsets"]) != count or len(place["totals"]) != count:
        raise wrong("a place without an entry for every combination of positions")


def _own(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [shard for entry in step.get("steps", ()) for shard in entry or ()]


def _most(axis: Mapping[str, Any]) -> int:
    return int(axis["size"] if "size" in axis else max(axis["sizes"]))


def entry_of(
    mesh: Mapping[str, Any], place: Mapping[str, Any] | None, where: Mapping[str, int]
) -> tuple[int, int]:
    """Return offset and total at a coordinate, by a place that was checked."""
    if place is None:
        raise AssertionError("unchecked")
    number = 0
    for axis in place.get("axes", ()):
        number = number * _most(next(known for known in mesh["axes"] if known["name"] == axis)) + where[axis]
    return place["offsets"][number], place["totals"][number]


Held = Mapping[tuple[int, ...], tuple[int, int, int] | None]


def clashes(tensors: Sequence[Held]) -> Iterator[int]:
    """Yield which tensors of a buffer break UCP-D-073 or UCP-D-074 beside earlier ones.

    Of each, what lies in the buffer at every coordinate: first element, elements, elements of the buffer.
    """
    for number, tensor in enumerate(tensors):
        for coordinate, mine in tensor.items():
            for other in tensors[:number]:
                theirs = other[coordinate]
                if mine is None or theirs is None:
                    continue
                common = set(range(mine[0], mine[0] + mine[1])) & set(range(theirs[0], theirs[0] + theirs[1]))
                if common or mine[2] != theirs[2]:
                    yield number
                    break
