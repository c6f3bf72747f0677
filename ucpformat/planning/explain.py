"""What a layout does to one tensor: step by step, and who holds what in the end (SPEC sections 12 and 13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ucpformat.geometry import (
    BlockRule,
    Blocks,
    BufferPlace,
    Concat,
    Flatten,
    Join,
    Layout,
    Lowering,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Partial,
    Permute,
    Rule,
    Scale,
    Shard,
    Step,
    View,
    lower,
)

if TYPE_CHECKING:
    from ucpformat.geometry import Coordinate, Region

__all__ = ["Explanation", "StepTaken", "explain", "rank_words", "shape_words", "step_words"]


@dataclass(frozen=True, slots=True)
class StepTaken:
    """A step in words, and the shape of the local tensor behind it at one coordinate, None where nothing is held."""

    words: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """How one tensor is spread: the steps at ``coordinate``, where ``rank`` sits, and the regions of all ranks.

    ``replicated`` are the axes that no step names: ranks along them hold the same.
    """

    lowering: Lowering
    rank: int
    coordinate: Coordinate
    steps: tuple[StepTaken, ...]
    regions: tuple[Region, ...]
    replicated: tuple[str, ...]


def explain(
    layout: Layout, shape: tuple[int, ...], place: BufferPlace | None = None, *, rank: int | None = None
) -> Explanation:
    """Explain how ``layout`` spreads a tensor of ``shape``, at ``rank`` or at the first that holds an element.

    Raises as `lower`; UCP-E-LAYOUT where the rank is not in the mesh.
    """
    lowering = lower(layout, shape, place=place)
    regions = lowering.regions()
    if rank is None:
        filled = [region for region in regions if region.local_map.pieces]
        rank = min((region.holders[0] for region in filled or regions), default=layout.mesh.rank_at(0))
    coordinate = layout.mesh.coordinate_of(rank)
    taken = [_taken(layout, number, shape, place, coordinate) for number in range(len(layout.steps))]
    free = set(range(len(layout.mesh.axes))) - lowering.used_axes
    partial = {step.axis for step in layout.steps if isinstance(step, Partial)}
    names = [layout.mesh.axes[axis].name for axis in sorted(free)]
    return Explanation(
        lowering,
        rank,
        coordinate,
        tuple(taken),
        regions,
        tuple(name for name in names if name not in partial),
    )


def _taken(
    layout: Layout, number: int, shape: tuple[int, ...], place: BufferPlace | None, coordinate: Coordinate
) -> StepTaken:
    head = Layout(layout.mesh, layout.steps[: number + 1])
    has_buffer = any(isinstance(step, Concat) for step in head.steps)
    held = lower(head, shape, place=place if has_buffer else None).at(coordinate)
    words = step_words(layout.steps[number], layout.mesh, place)
    return StepTaken(words, None if held is None else held.shape)


def step_words(step: Step, mesh: Mesh, place: BufferPlace | None = None) -> str:
    """Return what a step does, in words."""
    match step:
        case Shard(axis, dim, rule):
            return f"dim {dim} is split over {_positions(mesh, axis)}, {_rule_words(rule)}"
        case Blocks(dim, sizes, own):
            return f"dim {dim} is cut into {_blocks_words(sizes)}; {_own_words(own)}"
        case Join(dim):
            return f"the blocks of dim {dim} are joined to one"
        case Flatten():
            return "the tensor becomes one-dimensional, row by row"
        case Only(axis, coordinates):
            return f"only position {_listed(coordinates)} of {axis} holds it"
        case View(shape):
            return f"it is seen as {shape_words(shape)}, in the same order of elements"
        case Permute(order):
            return f"its dims are taken in the order {_listed(order)}"
        case Pad(dim, None, multiple):
            return f"dim {dim} is padded at its end to a multiple of {multiple}"
        case Pad(dim, to):
            return f"dim {dim} is padded at its end to {to}"
        case Concat(group):
            return f"it lies in the buffer {group!r}, {_place_words(place)}"
        case Partial(axis, reduce):
            return f"ranks along {axis} hold contributions, whose {reduce} is the tensor"
        case Scale(factor):
            return f"every value is {factor} times the logical one"
        case _:
            return "every rank has an entry of its own along dim 0"


def shape_words(shape: tuple[int, ...]) -> str:
    """Return ``64x64``, or ``scalar``."""
    return "x".join(map(str, shape)) or "scalar"


def rank_words(ranks: tuple[int, ...]) -> str:
    """Return ``rank 3``, ``ranks 0 to 3 and 8``: ascending ranks, runs of three or more in short."""
    parts: list[str] = []
    start = 0
    while start < len(ranks):
        stop = start
        while stop + 1 < len(ranks) and ranks[stop + 1] == ranks[stop] + 1:
            stop += 1
        if stop - start < 2:
            parts += [str(rank) for rank in ranks[start : stop + 1]]
        else:
            parts.append(f"{ranks[start]} to {ranks[stop]}")
        start = stop + 1
    if len(parts) > 9:
        parts = [*parts[:8], f"others, {len(ranks)} in all"]
    words = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {words}"


def _positions(mesh: Mesh, axis: str) -> str:
    found = next(entry for entry in mesh.axes if entry.name == axis)
    if isinstance(found, MeshAxis):
        return f"the {found.size} positions of {axis}"
    return f"{axis}, which has {_listed(found.sizes)} positions by {found.by}"


def _rule_words(rule: Rule) -> str:
    match rule:
        case "ceil":
            return "in parts of the quotient rounded up"
        case "even":
            return "in equal parts"
        case "balanced":
            return "in parts that differ by one at most"
        case _:
            return f"in parts of {_listed(rule)}"


def _blocks_words(sizes: tuple[int, ...] | BlockRule) -> str:
    if isinstance(sizes, BlockRule):
        return f"{sizes.count} blocks, {_rule_words(sizes.rule)}"
    return f"blocks of {_listed(sizes)}"


def _own_words(own: tuple[tuple[Shard, ...] | None, ...] | None) -> str:
    told = "what follows acts inside each"
    whole = [number for number, steps in enumerate(own or ()) if steps == ()]
    split = [(number, steps) for number, steps in enumerate(own or ()) if steps]
    exceptions = [f"block {_listed(tuple(whole))} is kept whole"] if whole else []
    for number, steps in split:
        how = " and ".join(f"over {step.axis}, {_rule_words(step.rule)}" for step in steps)
        exceptions.append(f"block {number} is split {how}")
    return f"{told}, but {'; '.join(exceptions)}" if exceptions else told


def _place_words(place: BufferPlace | None) -> str:
    if place is None:
        return "nobody says where"
    if not place.axes:
        return f"from element {place.offsets[0]} on, of {place.totals[0]}"
    return f"at another place along {_listed(place.axes)}"


def _listed(values: tuple[object, ...]) -> str:
    shown = [str(value) for value in values[:8]] + (["..."] if len(values) > 8 else [])
    return ", ".join(shown)
