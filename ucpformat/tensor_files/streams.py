"""Streams of bytes, ``io.BytesIO``, in pickles: their bytes are read as data, no stream is made and nothing is run."""

from __future__ import annotations

from typing import Any, Final

from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.unpickle import Constructor, Globals

__all__ = ["STREAM_GLOBALS", "stream_content"]

_KIND: Final = "io.BytesIO"


def _stream(arguments: tuple[Any, ...]) -> object:
    if arguments and not (len(arguments) == 1 and type(arguments[0]) is bytes):
        raise ValueError("a stream takes bytes")
    return Instance(_KIND)


STREAM_GLOBALS: Final[Globals] = {("_io", "BytesIO"): Constructor(_KIND, _stream)}
"""What a pickle may name where streams of bytes are carried."""


def stream_content(found: object) -> bytes | None:
    """Return the bytes of an object that is a stream and nothing else; None for any other, and for one with members."""
    if not isinstance(found, Instance) or found.kind != _KIND or type(found.state) is not tuple:
        return None
    match found.state:
        case (bytes() as data, int(), None | {}) if not found.state[2]:  # bytes, position, members
            return data
    return None
