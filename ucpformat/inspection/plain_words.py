"""Values as a person writes them: ``(0.9, 0.999)``, not their encoding (SPEC section 11.4)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import UcpError
from ucpformat.model.values import NamedValue, TensorValue, decode

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["in_words"]

_BRACKETS: Final = {
    "list": ("[", "]"),
    "tuple": ("(", ")"),
    "set": ("set(", ")"),
    "frozenset": ("frozenset(", ")"),
}


def in_words(value: JsonValue) -> str:
    """Return an encoded value in the words of Python; one that cannot be decoded, as it is.

    >>> in_words({"$tuple": [0.9, 0.999]})
    '(0.9, 0.999)'
    """
    try:
        return _words(decode(value, at=""))
    except UcpError:
        return json.dumps(value)


def _words(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        left, right = _BRACKETS[type(value).__name__]
        items = ", ".join(map(_words, value))
        return f"{left}{items}{',' if isinstance(value, tuple) and len(value) == 1 else ''}{right}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_words(key)}: {_words(one)}' for key, one in value.items())}}}"
    if isinstance(value, NamedValue):
        return f"{value.type}({_words(value.value)})"
    if isinstance(value, TensorValue):
        return "a tensor"
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}, {'x'.join(map(str, value.shape)) or 'scalar'}"
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    return repr(value)
