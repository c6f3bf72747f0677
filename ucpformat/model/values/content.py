"""The content of single tags (SPEC section 15.1): numbers, bytes, arrays; two values that Python has no type for.

Functions that read raise ValueError with a sentence; their callers know the place.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.jsonio import MAX_INTEGER
from ucpformat.model.atom import MAX_NDIM
from ucpformat.model.dtype import DTYPES, clear_unused_bits, dtype, unused_bits_are_zero

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue
    from ucpformat.model.dtype import DType

__all__ = [
    "LONE_SURROGATE",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "TYPE_NAME",
    "NamedValue",
    "TensorValue",
    "array_of",
    "bytes_from",
    "bytes_to",
    "check_tensor",
    "element_bytes",
    "float_from",
    "float_to",
    "integer_from",
    "integer_to",
    "tensor_from",
    "tensor_to",
]

MAX_DEPTH: Final = 56
MAX_DIGITS: Final = 4096

TYPE_NAME: Final = re.compile(r"(?=.{1,200}\Z)[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_INTEGER: Final = re.compile(r"-?[1-9][0-9]*")
_BODY_MEMBERS: Final = frozenset({"dtype", "shape", "data"})


@dataclass(frozen=True, slots=True)
class NamedValue:
    """An object of a type that is not known here: the name of the type and its plain content."""

    type: str
    value: object


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A tensor without its framework: data type name, shape, and row-major little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def float_to(number: float) -> JsonValue:
    """Encode a float."""
    if not math.isfinite(number):
        return {"$float": "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"}
    # Python's repr is the grammar of the specification: shortest digits, an exponent from 1e16 on.
    return {"$float": repr(number)} if number.is_integer() else number


def float_from(value: JsonValue) -> float:
    """Decode a float, as a number or as a ``$float``."""
    if type(value) is float:
        if math.isfinite(value) and not value.is_integer():
            return value
        raise ValueError(f"the float {value!r} must be a $float")
    if type(value) is dict and len(value) == 1:
        text = value.get("$float")
        if type(text) is str:
            return _float_text(text)
    raise ValueError("a float is a non-integral number or a $float")


def _float_text(text: str) -> float:
    # No canonical text is longer than 24 characters; nothing longer is worth converting.
    try:
        number = float(text) if len(text) <= 32 else None
    except ValueError:
        number = None
    if number is None or float_to(number) != {"$float": text}:
        raise ValueError(
            f"{text[:40]!r} is not the text of a $float, which holds what no JSON number can, at its shortest"
        )
    return number


def integer_to(number: int) -> JsonValue:
    """Encode an integer; raises ValueError beyond 4096 digits."""
    if abs(number) <= MAX_INTEGER:
        return number
    # By the size in bits first: the conversion is quadratic, and Python limits it. 10 > 2**3.32.
    if number.bit_length() > 3.33 * MAX_DIGITS or len(text := str(abs(number))) > MAX_DIGITS:
        raise ValueError(f"an integer of more than {MAX_DIGITS} digits")
    return {"$int": f"-{text}" if number < 0 else text}


def integer_from(text: JsonValue) -> int:
    """Decode the content of ``$int``."""
    if type(text) is not str or _INTEGER.fullmatch(text) is None:
        raise ValueError("the content of $int is a decimal integer without leading zeros")
    if len(text.removeprefix("-")) > MAX_DIGITS:
        raise ValueError(f"a $int has at most {MAX_DIGITS} digits")
    number = int(text)
    if abs(number) <= MAX_INTEGER:
        raise ValueError(f"{number} must be a JSON integer, not a $int")
    return number


def bytes_to(data: bytes) -> str:
    """Encode the content of ``$bytes``."""
    return base64.b64encode(data).decode("ascii")


def bytes_from(text: JsonValue) -> bytes:
    """Decode the content of ``$bytes``: canonical base64."""
    if type(text) is not str or not text.isascii():
        raise ValueError("bytes are a base64 string")
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        data = None
    if data is None or bytes_to(data) != text:
        raise ValueError("bytes are base64 with padding, without line breaks, unused bits zero")
    return data


def tensor_to(tensor: TensorValue) -> JsonValue:
    """Encode the content of ``$tensor`` or ``$array``; raises ValueError where its parts do not fit."""
    tensor = TensorValue(tensor.dtype, tuple(tensor.shape), bytes(tensor.data))
    check_tensor(tensor)
    shape: list[JsonValue] = list(tensor.shape)
    return {"dtype": tensor.dtype, "shape": shape, "data": bytes_to(tensor.data)}


def tensor_from(body: JsonValue) -> TensorValue:
    """Decode the content of ``$tensor`` or ``$array``; ValueError where it is malformed."""
    if type(body) is not dict or body.keys() != _BODY_MEMBERS:
        raise ValueError("an array has exactly the members dtype, shape and data")
    name, shape = body["dtype"], body["shape"]
    if type(name) is not str:
        raise ValueError("the dtype of an array is a string")
    if name not in DTYPES:
        raise ValueError(f"{name[:64]!r} is not a data type of this format")
    if type(shape) is not list:
        raise ValueError("the shape of an array is an array of integers")
    extents = tuple(extent for extent in shape if type(extent) is int)
    if len(extents) < len(shape):
        raise ValueError("the extents of a shape are integers")
    tensor = TensorValue(name, extents, bytes_from(body["data"]))
    check_tensor(tensor)
    return tensor


def check_tensor(tensor: TensorValue) -> None:
    """Raise ValueError where the shape is impossible or the bytes do not fit it."""
    entry = dtype(tensor.dtype)
    if len(tensor.shape) > MAX_NDIM or not all(map(_is_extent, tensor.shape)):
        raise ValueError(f"a shape has at most {MAX_NDIM} extents from 0 to 2**53 - 1")
    if math.prod(max(extent, 1) for extent in tensor.shape) * entry.item_bytes > MAX_INTEGER:
        raise ValueError("the shape is over 2**53 - 1 bytes")
    size = math.prod(tensor.shape) * entry.item_bytes
    if len(tensor.data) != size:
        raise ValueError(
            f"{tensor.dtype} of shape {list(tensor.shape)} takes {size} bytes, not {len(tensor.data)}"
        )
    if not unused_bits_are_zero(np.frombuffer(tensor.data, np.uint8), entry):
        raise ValueError(f"bits that {tensor.dtype} does not use are not zero")


def _is_extent(extent: object) -> bool:
    return type(extent) is int and 0 <= extent <= MAX_INTEGER


def array_of(tensor: TensorValue) -> NDArray[Any]:
    """Return a writable array of a checked ``tensor``."""
    flat: NDArray[Any] = np.frombuffer(bytearray(tensor.data), dtype(tensor.dtype).numpy)
    return flat.reshape(tensor.shape)


def element_bytes(array: NDArray[Any], entry: DType) -> bytes:
    """Return the elements as stored: row-major, little-endian, unused bits zero."""
    raw = np.frombuffer(bytearray(array.astype(entry.numpy, copy=False).tobytes()), np.uint8)
    clear_unused_bits(raw, entry)
    return raw.tobytes()
