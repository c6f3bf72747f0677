"""``ucp plan --explain``: how one atom is spread, in words and small pictures, or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from ucpformat.drawing.picture import lines_of, picture_of
from ucpformat.errors import error
from ucpformat.planning import Explanation, about, explain, rank_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.geometry import Box, Region
    from ucpformat.model.atom import Slot
    from ucpformat.planning import Side

__all__ = ["ExplainedSlots", "explained_slots", "explanation_lines", "explanations_json"]

_REGIONS_SHOWN: Final = 16
_BOXES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class ExplainedSlots:
    """Slots of an atom that are spread alike; no explanation where their layout is not recorded."""

    slots: tuple[Slot, ...]
    explanation: Explanation | None


def explained_slots(side: Side, name: str, rank: int | None) -> list[ExplainedSlots]:
    """Explain every slot of an atom, at ``rank`` where that is given.

    Raises UCP-E-MISMATCH where the side has no such atom, and as `planning.explain`.
    """
    slots = sorted(
        (slot for (atom, _), slot in side.slots.items() if atom == name), key=lambda slot: slot.name
    )
    if not slots:
        near = get_close_matches(name, {atom for atom, _ in side.slots}, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        atom, _, last = name.rpartition("/")
        if (atom, last) in side.slots:
            hint = f"; {last!r} is a slot of {atom!r}: give the name of the atom"
        raise error("UCP-E-MISMATCH", f"{side.label} has no atom {name!r}{hint}")
    alike: dict[object, list[Slot]] = {}
    for slot in slots:
        alike.setdefault((slot.layout, slot.shape, slot.place), []).append(slot)
    explained: list[ExplainedSlots] = []
    for group in alike.values():
        first = group[0]
        explanation = None
        if first.layout is not None:
            with about((name, first.name)):
                explanation = explain(side.layouts[first.layout], first.shape, first.place, rank=rank)
        explained.append(ExplainedSlots(tuple(group), explanation))
    return explained


def explanation_lines(side: Side, name: str, explained: Sequence[ExplainedSlots]) -> Iterator[str]:
    """Yield lines for people."""
    for entry in explained:
        kinds = ", ".join(f"{slot.name} ({slot.dtype})" for slot in entry.slots)
        yield f"{name}: {kinds}, {shape_words(entry.slots[0].shape)}, in {side.label}"
        if entry.explanation is None:
            yield "  who holds it is not recorded"
        else:
            yield from (f"  {line}".rstrip() for line in _explained(entry.explanation))


def _explained(explanation: Explanation) -> Iterator[str]:
    lowering, mesh = explanation.lowering, explanation.lowering.layout.mesh
    axes = " x ".join(f"{axis.name} {axis.size}" for axis in mesh.axes) or "one rank"
    yield f"mesh: {axes}"
    where = ", ".join(
        f"{axis.name} {position}" for axis, position in zip(mesh.axes, explanation.coordinate, strict=True)
    )
    yield f"at rank {explanation.rank}{f' ({where})' if where else ''} it begins as {shape_words(lowering.shape)}"
    for number, step in enumerate(explanation.steps, 1):
        outcome = "nothing" if step.shape is None else shape_words(step.shape)
        yield f"{number}. {step.words}: {outcome}"
    if explanation.replicated:
        yield f"ranks along {', '.join(explanation.replicated)} hold the same"
    yield (
        "who holds what:"
        if lowering.view == lowering.shape
        else (f"who holds what, seen as {shape_words(lowering.view)}:")
    )
    for region in explanation.regions[:_REGIONS_SHOWN]:
        yield f"  {_held(region)}"
    if len(explanation.regions) > _REGIONS_SHOWN:
        yield f"  and {len(explanation.regions) - _REGIONS_SHOWN} more parts; --format json lists all"
    picture = picture_of(lowering, explanation.regions)
    if picture is not None and lowering.shape:
        if len(lowering.shape) > 2:
            yield f"dims {' and '.join(map(str, picture.dims))} are shown, at index 0 of the others"
        if not picture.is_exact:
            yield "scaled down: each cell shows who holds its first element"
        yield from lines_of(picture)


def _held(region: Region) -> str:
    held = region.local_map
    if not held.pieces:
        return f"{rank_words(region.holders)}: {shape_words(held.shape)}, no element"
    boxes = ", ".join(_box_words(piece.box) for piece in held.pieces[:_BOXES_SHOWN])
    more = f" and {len(held.pieces) - _BOXES_SHOWN} more boxes" if len(held.pieces) > _BOXES_SHOWN else ""
    others = held.size - held.mapped
    rest = f", and {others} elements of padding or of other tensors" if others else ""
    return f"{rank_words(region.holders)}: {shape_words(held.shape)}, {boxes}{more}{rest}"


def _box_words(box: Box) -> str:
    """Return ``[0:16, 0:64]``, as numpy writes it; ``[]`` is the one element of a scalar."""
    return f"[{', '.join(f'{low}:{high}' for low, high in zip(box.offset, box.stop, strict=True))}]"


def explanations_json(
    name: str, explained: Sequence[tuple[Side, Sequence[ExplainedSlots]]]
) -> dict[str, object]:
    """Return all explanations, every region and box."""
    return {
        "atom": name,
        "sides": [
            {"side": side.label, "explained": [_entry_json(entry) for entry in entries]}
            for side, entries in explained
        ],
    }


def _entry_json(entry: ExplainedSlots) -> dict[str, object]:
    value: dict[str, object] = {
        "slots": {slot.name: slot.dtype for slot in entry.slots},
        "shape": list(entry.slots[0].shape),
    }
    explanation = entry.explanation
    if explanation is None:
        return value
    return {
        **value,
        "view": list(explanation.lowering.view),
        "rank": explanation.rank,
        "coordinate": list(explanation.coordinate),
        "steps": [
            {"words": step.words, "shape": None if step.shape is None else list(step.shape)}
            for step in explanation.steps
        ],
        "replicated": list(explanation.replicated),
        "regions": [
            {
                "ranks": list(region.holders),
                "local_shape": list(region.local_map.shape),
                "boxes": [
                    {"offset": list(piece.box.offset), "shape": list(piece.box.shape)}
                    for piece in region.local_map.pieces
                ],
            }
            for region in explanation.regions
        ],
    }
