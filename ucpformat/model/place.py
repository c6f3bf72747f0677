"""Places of tensors in buffers as JSON (SPEC 11.1, 12.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ucpformat.geometry import BufferPlace
from ucpformat.jsonio import pointer
from ucpformat.model.fields import array, integers, members, string

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["place_from_json", "place_to_json"]

_REQUIRED: Final = frozenset({"offsets", "totals"})
_OPTIONAL: Final = frozenset({"axes"})


def place_from_json(value: JsonValue, at: str) -> BufferPlace:
    """Read the ``place`` of a slot in its buffer; raises ``UCP-E-SCHEMA``."""
    found = members(value, _REQUIRED, _OPTIONAL, at)
    here = pointer(at, "axes")
    return BufferPlace(
        integers(found["offsets"], pointer(at, "offsets"), items=1),
        integers(found["totals"], pointer(at, "totals"), items=1),
        tuple(
            string(axis, pointer(here, index))
            for index, axis in enumerate(array(found.get("axes", []), here))
        ),
    )


def place_to_json(place: BufferPlace) -> dict[str, JsonValue]:
    """Return the JSON object of a place; without axes where it is the same everywhere."""
    value: dict[str, JsonValue] = {"offsets": list(place.offsets), "totals": list(place.totals)}
    if place.axes:
        value["axes"] = list(place.axes)
    return value
