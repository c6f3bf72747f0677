"""Values that differ from rank to rank, put together to one (SPEC section 15.2), and opaque bytes, stored as blobs.

On their way from rank to rank opaque bytes are tagged values of the type `OPAQUE_TYPE`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.jsonio import dumps_canonical
from ucpformat.model.values import NamedValue, decode, encode

if TYPE_CHECKING:
    from ucpformat.distributed.group import Group
    from ucpformat.distributed.local_state import LocalState, OwnValue
    from ucpformat.jsonio import JsonValue

__all__ = [
    "OPAQUE_MEDIA",
    "OPAQUE_TYPE",
    "PER_RANK",
    "Owners",
    "announced",
    "entry_of",
    "opaque_value",
    "owners_of",
    "parted",
    "whole_of",
]

PER_RANK: Final = "ucp.PerRank"

Owners = dict[str, list[int]]
"""For every value, the rank that gives the entry of each position."""


def announced(local: LocalState, group: Group) -> bytes:
    """Return what a rank tells the others of its own values: positions, and digests instead of entries."""
    heads = {
        name: [*_position(own, group), hashlib.sha256(dumps_canonical(own.value)).hexdigest()]
        for name, own in sorted(local.own.items())
    }
    return json.dumps(heads).encode() if heads else b""


def owners_of(group: Group, said: Sequence[bytes]) -> Owners:
    """Return who gives which entry: of ranks at one position, whose entries are equal, the first.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` where ranks contradict one another, or a position is nobody's.
    """
    found: dict[str, dict[int, tuple[int, str]]] = {}
    sizes: dict[str, int] = {}
    for rank, head in zip(group.ranks, said, strict=True):
        for name, (position, size, digest) in (json.loads(head) if head else {}).items():
            if sizes.setdefault(name, size) != size:
                message = f"rank {rank} says that there are {size} positions, another {sizes[name]}"
                raise error("UCP-E-MISMATCH", message, at=name)
            first, other = found.setdefault(name, {}).setdefault(position, (rank, digest))
            if other != digest:
                message = (
                    f"ranks {first} and {rank} are both at position {position}, and have different values; "
                    "name the axis along which it differs"
                )
                raise error("UCP-E-MISMATCH", message, at=name)
    owners: Owners = {}
    for name, size in sizes.items():
        missing = [position for position in range(size) if position not in found[name]]
        if missing:
            raise error("UCP-E-MISMATCH", f"no rank has a value for position {missing[0]} of {size}", at=name)
        owners[name] = [found[name][position][0] for position in range(size)]
    return owners


def entry_of(local: LocalState, group: Group, owners: Owners) -> dict[str, list[JsonValue]]:
    """Return the entries that are this rank's to give: name to position and entry."""
    given: dict[str, list[JsonValue]] = {}
    for name, own in local.own.items():
        position, _ = _position(own, group)
        if owners[name][position] == group.rank:
            given[name] = [position, own.value]
    return given


def whole_of(
    values: Mapping[str, JsonValue], entries: Sequence[Mapping[str, list[JsonValue]]]
) -> dict[str, JsonValue]:
    """Return the values, those that differ from rank to rank with all their entries."""
    by_name: dict[str, dict[int, JsonValue]] = {}
    for given in entries:
        for name, (position, value) in given.items():
            if isinstance(position, int):
                by_name.setdefault(name, {})[position] = value
    whole = dict(values)
    for name, found in by_name.items():
        body = whole[name]
        inner = body["$object"] if isinstance(body, dict) else None
        content = inner["value"] if isinstance(inner, dict) else None
        if isinstance(content, dict):
            ordered = [found[position] for position in sorted(found)]
            whole[name] = {"$object": {"type": PER_RANK, "value": {**content, "entries": ordered}}}
    return whole


def _position(own: OwnValue, group: Group) -> tuple[int, int]:
    if own.position is None or own.size is None:
        return list(group.ranks).index(group.rank), len(group.ranks)
    return own.position, own.size


OPAQUE_TYPE: Final = "io.BytesIO"
OPAQUE_MEDIA: Final = "application/octet-stream"


def parted(values: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], dict[str, bytes]]:
    """Return the values that stay in the state document, and the bytes of those that become blobs."""
    plain: dict[str, JsonValue] = {}
    blobs: dict[str, bytes] = {}
    for name, value in values.items():
        body = value.get("$object") if isinstance(value, dict) else None
        if isinstance(body, dict) and body.get("type") == OPAQUE_TYPE:
            found = decode(body["value"], at=name)
            if isinstance(found, bytes):
                blobs[name] = found
                continue
        plain[name] = value
    return plain, blobs


def opaque_value(data: bytes) -> JsonValue:
    """Return the tagged value that `parted` takes."""
    return encode(NamedValue(OPAQUE_TYPE, data), at="")
