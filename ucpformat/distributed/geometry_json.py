"""Layouts and places as JSON between the processes of one job: every step, also those that no document has."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, cast

from ucpformat import geometry

if TYPE_CHECKING:
    from ucpformat.geometry import BufferPlace, Layout
    from ucpformat.jsonio import JsonValue

__all__ = ["layout_from", "place_from", "to_json"]

_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        geometry.BlockRule,
        geometry.Blocks,
        geometry.BufferPlace,
        geometry.Concat,
        geometry.Flatten,
        geometry.Join,
        geometry.Layout,
        geometry.LocalOnly,
        geometry.Mesh,
        geometry.MeshAxis,
        geometry.Only,
        geometry.Pad,
        geometry.Partial,
        geometry.Permute,
        geometry.RaggedAxis,
        geometry.Scale,
        geometry.Shard,
        geometry.View,
    )
}
_FRACTION: Final = "Fraction"


def to_json(value: object) -> JsonValue:
    """Return a layout or a place: dataclasses as an object of their name and fields, tuples as arrays."""
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Fraction):
        return {_FRACTION: [value.numerator, value.denominator]}
    if type(value).__name__ in _KINDS:
        found = cast("Any", value)
        return {type(value).__name__: [to_json(getattr(found, item.name)) for item in fields(found)]}
    return cast("JsonValue", value)


def _from_json(value: JsonValue) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    if isinstance(value, dict):
        ((name, arguments),) = value.items()
        made = map(_from_json, cast("list[JsonValue]", arguments))
        return Fraction(*made) if name == _FRACTION else _KINDS[name](*made)
    return value


def layout_from(value: JsonValue) -> Layout:
    """Return the layout that `to_json` was given."""
    return cast("Layout", _from_json(value))


def place_from(value: JsonValue) -> BufferPlace:
    """Return the place that `to_json` was given."""
    return cast("BufferPlace", _from_json(value))
