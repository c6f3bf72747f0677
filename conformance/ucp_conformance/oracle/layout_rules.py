"""Rules of meshes and layouts that need no shape (SPEC 12)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from ucp_conformance.oracle.problem import RefusalError

__all__ = ["check_mesh", "check_steps", "coordinates", "positions", "wrong"]

MOST: Final = 1 << 20


def wrong(why: str) -> RefusalError:
    """Return the refusal of a layout."""
    return RefusalError("UCP-E-LAYOUT", "", why)


def check_mesh(mesh: Mapping[str, Any]) -> None:
    """Check UCP-D-039, UCP-D-040, UCP-D-041."""
    names = [axis["name"] for axis in mesh["axes"]]
    if len(set(names)) < len(names) or "" in names:
        raise wrong("axis names are not unique or empty")
    earlier: dict[str, int] = {}
    for axis in mesh["axes"]:
        if "size" in axis:
            earlier[axis["name"]] = axis["size"]
        elif axis["by"] not in earlier or len(axis["sizes"]) != earlier[axis["by"]]:
            raise wrong("an axis whose sizes do not fit the axis that decides them")
    size = 1
    for name, positions in earlier.items():
        deciding = [axis["sizes"] for axis in mesh["axes"] if axis.get("by") == name]
        size *= (
            sum(math.prod(sizes[at] for sizes in deciding) for at in range(positions))
            if deciding
            else positions
        )
    if size > MOST:
        raise RefusalError("UCP-E-LIMIT", "", "too many coordinates")
    ranks = mesh.get("ranks")
    if ranks is not None and (len(ranks) != size or len(set(ranks)) != size):
        raise wrong("ranks are not one per coordinate, or not distinct")


def coordinates(mesh: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Yield all coordinates, row-major."""

    def beginnings(axes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, ...]]:
        if not axes:
            yield ()
            return
        names = [axis["name"] for axis in axes]
        for start in beginnings(axes[:-1]):
            where = dict(zip(names, start, strict=False))
            yield from ((*start, at) for at in range(positions(mesh, names[-1], where)))

    return beginnings(mesh["axes"])


def positions(mesh: Mapping[str, Any], name: str, where: Mapping[str, int]) -> int:
    """Return how many positions an axis has at a coordinate."""
    axis = next(axis for axis in mesh["axes"] if axis["name"] == name)
    return int(axis["size"] if "size" in axis else axis["sizes"][where[axis["by"]]])


def check_steps(mesh: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> int:
    """Check what can be checked of steps without a shape; return how many ranges they make at most."""
    sizes = {axis["name"]: axis.get("size", 0) or min(axis["sizes"]) for axis in mesh["axes"]}
    ragged = {axis["name"]: axis["by"] for axis in mesh["axes"] if "by" in axis}
    placed = False
    boxes = 1  # no more than the blocks of all dimensions make together
    used: set[str] = set()
    own: dict[
        int, tuple[set[str], bool]
    ] = {}  # open blocks of a dimension: axes of own steps, any free block
    flat = buffered = has_factor = False
    reduce: dict[str, str] = {}

    def take(axis: str, taken: set[str]) -> int:
        if axis not in sizes:
            raise wrong(f"no axis {axis!r}")
        if axis in taken:
            raise wrong(f"axis {axis!r} is used twice")
        if any(ragged.get(other) == axis for other in taken.union(used, *(axes for axes, _ in own.values()))):
            raise wrong(f"axis {axis!r} decides the size of one that is used already")
        return int(sizes[axis])

    def elsewhere(dim: int | None) -> set[str]:
        return used.union(*(axes for other, (axes, _) in own.items() if other != dim))

    def rule(step: Mapping[str, Any], size: int) -> None:
        if "sizes" in step and step["axis"] in ragged:
            raise wrong("sizes for an axis whose size differs")
        if "sizes" in step and len(step["sizes"]) != size:
            raise wrong("sizes are not one per position")

    for step in steps:
        kind = step["kind"]
        if kind in ("view", "permute"):
            if placed:
                raise wrong("views and permutations come first")
            if kind == "permute" and sorted(step["order"]) != list(range(len(step["order"]))):
                raise wrong("the order does not name every dimension once")
            continue
        placed = placed or kind not in ("only", "partial", "scale")
        if flat and step.get("dim", 0) != 0:
            raise wrong("a flat tensor has one dimension")
        if kind == "shard":
            dim = step["dim"]
            if dim in own and not own[dim][1]:
                raise wrong("no block is left to this step")
            rule(step, take(step["axis"], elsewhere(dim)))
            used.add(step["axis"])
        elif kind == "blocks":
            dim = step["dim"]
            if dim in own:
                raise wrong("blocks within blocks")
            count = len(step["sizes"]) if "sizes" in step else step["count"]
            if count > MOST:
                raise RefusalError("UCP-E-LIMIT", "", "too many blocks")
            boxes *= count
            entries = step.get("steps", [None] * count)
            if len(entries) != count:
                raise wrong("steps are not one per block")
            axes: set[str] = set()
            for entry in entries:
                mine: set[str] = set()
                for shard in entry or ():
                    if shard["dim"] != dim:
                        raise wrong("a block's own step splits another dimension")
                    rule(shard, take(shard["axis"], elsewhere(None) | mine))
                    mine.add(shard["axis"])
                axes |= mine
            own[dim] = axes, None in entries
        elif kind == "pad":
            if step["dim"] in own:
                raise wrong("padding a dimension with open blocks")
        elif kind == "join":
            if step["dim"] not in own:
                raise wrong("there are no blocks to join")
            used |= own.pop(step["dim"])[0]
        elif kind == "flatten":
            if flat:
                raise wrong("flatten occurs twice")
            flat = True
            for axes, _ in own.values():
                used |= axes
            own.clear()
        elif kind == "only":
            size = take(step["axis"], elsewhere(None))
            places = step["coordinates"]
            if any(place >= size for place in places) or any(b <= a for a, b in pairwise(places)):
                raise wrong("positions are not ascending positions of the axis")
            used.add(step["axis"])
        elif kind == "concat":
            if not flat or buffered or 0 in own:
                raise wrong("a concat that is not of a flat tensor, or a second one")
            buffered = True
        elif kind == "partial":
            take(step["axis"], elsewhere(None))
            if step["axis"] in ragged:
                raise wrong("copies along an axis whose size differs")
            if step["reduce"] != reduce.setdefault("", step["reduce"]):
                raise wrong("two reductions")
            used.add(step["axis"])
        elif kind == "scale":
            if has_factor:
                raise wrong("two factors")
            has_factor = True
        elif kind == "local":
            if len(steps) > 1:
                raise wrong("local beside other steps")
        else:
            raise wrong(f"unknown step {kind!r}")
    return boxes
