"""Reductions and factors, element by element in Python's numbers (SPEC 12.2 and 12.3)."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from ucp_conformance.oracle.bytes_of import ITEM_BYTES
from ucp_conformance.oracle.problem import RefusalError

__all__ = ["reduced", "scaled", "spread_dtype"]

_FORMATS: Final = {"float16": "<e", "float32": "<f", "float64": "<d"}
_NAN: Final = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8 << 48}
_PARTS: Final = {"complex64": "float32", "complex128": "float64"}
_INTEGERS: Final = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def spread_dtype(dtype: str, kind: str, reduce: str = "") -> None:
    """Check UCP-D-078 and UCP-D-082."""
    known = _NAN.keys() | _PARTS.keys() | (_INTEGERS if kind == "partial" else set())
    if dtype not in known or (reduce == "max" and dtype in _PARTS):
        raise RefusalError("UCP-E-LAYOUT", "", f"no {kind} of {dtype}")


def _float(raw: bytes, dtype: str) -> float:
    if dtype == "bfloat16":
        return float(struct.unpack("<f", b"\0\0" + raw)[0])
    return float(struct.unpack(_FORMATS[dtype], raw)[0])


def _narrow(value: float, dtype: str) -> float:
    """Round to the nearest number of a type, ties to even."""
    if dtype == "bfloat16":
        bits = struct.unpack("<I", struct.pack("<f", _narrow(value, "float32")))[0]
        if math.isnan(value) or math.isinf(value):
            return value
        kept, rest = bits >> 16, bits & 0xFFFF
        kept += rest > 0x8000 or (rest == 0x8000 and kept % 2 == 1)
        return float(struct.unpack("<f", struct.pack("<I", kept << 16))[0])
    try:
        return float(struct.unpack(_FORMATS[dtype], struct.pack(_FORMATS[dtype], value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _bytes(value: float, dtype: str) -> bytes:
    if math.isnan(value):
        return int(_NAN[dtype]).to_bytes(ITEM_BYTES[dtype], "little")
    if dtype == "bfloat16":
        return struct.pack("<f", value)[2:]
    return struct.pack(_FORMATS[dtype], value)


def _sum(values: Sequence[float], wide: str) -> float:
    # Two numbers of the narrower type, added in binary64 and rounded once more, are their rounded sum.
    total = values[0]
    for value in values[1:]:
        total = _narrow(total + value, wide)
    return total


def _one(parts: Sequence[bytes], dtype: str, reduce: str) -> bytes:
    if dtype in _INTEGERS:
        signed = dtype.startswith("int")
        numbers = [int.from_bytes(part, "little", signed=signed) for part in parts]
        total = max(numbers) if reduce == "max" else sum(numbers)
        if reduce == "mean":
            total = round(Fraction(total, len(parts)))
        try:
            return total.to_bytes(ITEM_BYTES[dtype], "little", signed=signed)
        except OverflowError:
            raise RefusalError("UCP-E-INEXACT", "", "a sum that does not fit") from None
    values = [_float(part, dtype) for part in parts]
    if reduce == "max":
        best = 0
        for number, value in enumerate(values):
            if value > values[best] or (math.isnan(value) and not math.isnan(values[best])):
                best = number
        return parts[best]
    wide = "float64" if ITEM_BYTES[dtype] >= 4 else "float32"
    total_float = _sum(values, wide)
    if reduce == "mean":
        total_float = _narrow(total_float / len(values), wide)
    return _bytes(_narrow(total_float, dtype), dtype)


def reduced(contributions: Sequence[bytes], dtype: str, reduce: str) -> bytes:
    """Return the reduction of contributions, in their order."""
    spread_dtype(dtype, "partial", reduce)
    part = _PARTS.get(dtype, dtype)
    item = ITEM_BYTES[part]
    return b"".join(
        _one([data[at : at + item] for data in contributions], part, reduce)
        for at in range(0, len(contributions[0]), item)
    )


def scaled(data: bytes, dtype: str, exponent: int) -> bytes:
    """Return every element times a power of two; UCP-E-INEXACT where one would be rounded."""
    spread_dtype(dtype, "scale")
    part = _PARTS.get(dtype, dtype)
    item = ITEM_BYTES[part]
    found = []
    for at in range(0, len(data), item):
        raw = data[at : at + item]
        value = _float(raw, part)
        if not math.isfinite(value) or value == 0:
            found.append(raw)
            continue
        wanted = Fraction(value) * Fraction(2) ** exponent
        try:
            product = _narrow(float(wanted), part)
        except OverflowError:
            product = math.inf
        if math.isinf(product) or Fraction(product) != wanted:
            raise RefusalError("UCP-E-INEXACT", "", f"{value} * 2^{exponent}")
        found.append(_bytes(product, part))
    return b"".join(found)
