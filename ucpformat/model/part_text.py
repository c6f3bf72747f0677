"""Index parts as text, made without the objects of `Atom` and `Slot` (SPEC 11.1).

The texts are those that ``dumps_canonical`` makes of ``to_json``. The slots of a model repeat few names, types and
shapes, so that what they share is made once, and a slot adds its content digest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ucpformat.jsonio import dumps_canonical, quoted
from ucpformat.model.atom import Slot, place_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ucpformat.geometry import BufferPlace
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compressor

__all__ = ["atom_text", "part_text", "slot_text"]


def slot_text(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    *,
    layout: int | None = None,
    place: BufferPlace | None = None,
    compressor: Compressor | None = None,
    content: str | None = None,
    annotations: Mapping[str, JsonValue],
) -> str:
    """Return a slot as a member of ``slots``."""
    text = _head(name, dtype, shape, layout)
    if place is not None:
        text += f',"place":{_text(place_to_json(place))}'
    if compressor is not None:
        text += f',"compressor":{_text(compressor.to_json())}'
    if content is not None:
        text += f',"content":"{content}"'
    if annotations:
        text += f',"annotations":{_text(dict(annotations))}'
    return text + "}"


@lru_cache(maxsize=4096)
def _head(name: str, dtype: str, shape: tuple[int, ...], layout: int | None) -> str:
    return f"{quoted(name)}:{_text(Slot(name, dtype, shape, layout).to_json())[:-1]}"


def atom_text(
    name: str,
    key: str,
    slots: Sequence[str],
    *,
    aliases: Sequence[str] = (),
    annotations: Mapping[str, JsonValue],
) -> str:
    """Return an atom of slots of these texts, in the order of their names."""
    text = f'{{"name":{quoted(name)},"key":{quoted(key)},"slots":{{{",".join(slots)}}}'
    if aliases:
        text += f',"aliases":{_text(list(aliases))}'
    if annotations:
        text += f',"annotations":{_text(dict(annotations))}'
    return text + "}"


def part_text(atoms: Sequence[str]) -> str:
    """Return an index part of atoms of these texts."""
    return f'{{"atoms":[{",".join(atoms)}]}}'


def _text(value: JsonValue) -> str:
    return dumps_canonical(value).decode()
