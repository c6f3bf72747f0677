"""Opaque bytes among the values of a state: stored as blobs, which nobody interprets (SPEC section 15).

On their way from rank to rank they are tagged values of the type `OPAQUE_TYPE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ucpformat.model.values import NamedValue, decode, encode

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["OPAQUE_MEDIA", "OPAQUE_TYPE", "opaque_value", "parted"]

OPAQUE_TYPE: Final = "io.BytesIO"
OPAQUE_MEDIA: Final = "application/octet-stream"


def parted(values: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], dict[str, bytes]]:
    """The values that stay in the state document, and the bytes of those that become blobs."""
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
    """The tagged value that `parted` takes."""
    return encode(NamedValue(OPAQUE_TYPE, data), at="")
