"""Data types (SPEC section 11.2): names, element bytes, and what each needs in Zarr metadata.

The names are Zarr v3 core names, and TensorStore's names for the extensions. The set is what TensorStore
0.1.86 creates and opens as ``zarr3``, less its ``int2``; ``uint4``, ``float8_e4m3`` and the 6-bit floats have
no Zarr name there and are refused. As measured on TensorStore 0.1.86, zarr 3.1.6 and ml_dtypes 0.6.0:

* Elements are little-endian and take ``item_bytes`` each. ``int4`` and ``float4_e2m1fn`` take one byte per
  element: the value is in bits 0 to 3 and bits 4 to 7 are zero on disk. Readers ignore them, but arithmetic
  in ml_dtypes leaves them set, so a writer must clear them (`clear_unused_bits`). ``bool`` is one byte, 0 or
  1.
* The ``bytes`` codec of a one-byte type has no configuration. Types of several bytes must say ``endian``:
  TensorStore refuses them otherwise, and zarr-python writes it only for data types that declare endianness.
* The fill value is the JSON integer 0 for every integer and float type (never ``0.0``, which some languages
  cannot write), ``false`` for ``bool``, ``[0, 0]`` for complex types. ``float8_e8m0fnu`` has no zero: its
  zero byte is 2**-127, which is written ``"0x00"``. In every type the fill value is all zero bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

import ml_dtypes
import numpy as np

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue

__all__ = [
    "DTYPES",
    "EXTENSION_DTYPES",
    "DType",
    "Kind",
    "bytes_codec",
    "clear_unused_bits",
    "dtype",
    "dtype_of",
    "unused_bits_are_zero",
]

Kind = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True, slots=True)
class DType:
    """One data type: ``item_bytes`` per element on disk and in memory, ``bits`` of which hold the value.

    ``numpy`` is the little-endian numpy type, from ml_dtypes for the extensions.
    """

    name: str
    item_bytes: int
    bits: int
    kind: Kind
    numpy: np.dtype[np.generic]

    @property
    def zarr_fill(self) -> JsonValue:
        """The ``fill_value`` member of zarr.json that is all zero bytes."""
        if self.kind == "bool":
            return False
        if self.kind == "complex":
            return [0, 0]
        return "0x00" if self.name == "float8_e8m0fnu" else 0

    @property
    def used_mask(self) -> int | None:
        """The bits of the one byte that may be set; None where every bit may."""
        return None if self.bits == 8 * self.item_bytes else (1 << self.bits) - 1


def _core(name: str, kind: Kind) -> DType:
    native = np.dtype(name).newbyteorder("<")
    bits = 1 if kind == "bool" else 8 * native.itemsize
    return DType(name, native.itemsize, bits, kind, native)


def _extension(name: str, bits: int, kind: Kind) -> DType:
    native = np.dtype(getattr(ml_dtypes, name)).newbyteorder("<")
    return DType(name, native.itemsize, bits, kind, native)


# Zarr v3 core data types and registered extensions, in the order of the table in SPEC section 11.2.
_CORE: Final = (
    _core("bool", "bool"),
    *(_core(f"int{bits}", "int") for bits in (8, 16, 32, 64)),
    *(_core(f"uint{bits}", "uint") for bits in (8, 16, 32, 64)),
    *(_core(f"float{bits}", "float") for bits in (16, 32, 64)),
    *(_core(f"complex{bits}", "complex") for bits in (64, 128)),
)
_EXTENSIONS: Final = (
    _extension("bfloat16", 16, "float"),
    _extension("float8_e3m4", 8, "float"),
    _extension("float8_e4m3fn", 8, "float"),
    _extension("float8_e4m3fnuz", 8, "float"),
    _extension("float8_e4m3b11fnuz", 8, "float"),
    _extension("float8_e5m2", 8, "float"),
    _extension("float8_e5m2fnuz", 8, "float"),
    _extension("float8_e8m0fnu", 8, "float"),
    _extension("float4_e2m1fn", 4, "float"),
    _extension("int4", 4, "int"),
)

DTYPES: Final[Mapping[str, DType]] = {entry.name: entry for entry in (*_CORE, *_EXTENSIONS)}
EXTENSION_DTYPES: Final[tuple[DType, ...]] = _EXTENSIONS
_BY_NUMPY: Final[Mapping[np.dtype[np.generic], DType]] = {entry.numpy: entry for entry in DTYPES.values()}


def dtype(name: str, *, at: str = "") -> DType:
    """Return the data type called ``name``.

    Raises UCP-E-DTYPE: no such type in this version of the format.
    """
    found = DTYPES.get(name)
    if found is None:
        near = get_close_matches(name[:64], DTYPES, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; known are {', '.join(DTYPES)}"
        raise error("UCP-E-DTYPE", f"{name[:64]!r} is not a data type of this format{hint}", at=at)
    return found


def dtype_of(native: np.dtype[np.generic], *, at: str = "") -> DType:
    """Return the data type of a numpy type, whatever its byte order.

    Raises UCP-E-DTYPE: numpy knows it but the format does not (objects, strings, structures, dates).
    """
    found = _BY_NUMPY.get(native) or _BY_NUMPY.get(native.newbyteorder("<"))
    if found is None:
        raise error("UCP-E-DTYPE", f"numpy's {native} has no data type in this format", at=at)
    return found


def bytes_codec(entry: DType) -> dict[str, JsonValue]:
    """Return the ``bytes`` codec of zarr.json that both zarr-python and TensorStore accept for this type."""
    if entry.item_bytes == 1:
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": "little"}}


def unused_bits_are_zero(data: NDArray[np.uint8], entry: DType) -> bool:
    """Return whether ``data``, the stored bytes of any number of elements, sets no bit outside the value."""
    mask = entry.used_mask
    return mask is None or data.size == 0 or int(data.max()) <= mask


def clear_unused_bits(data: NDArray[np.uint8], entry: DType) -> None:
    """Clear, in place, the bits of ``data`` that hold no value (int4, float4_e2m1fn).

    ``bool`` is left alone: numpy and torch hold only 0 and 1, and any other byte is damage, not padding.
    """
    mask = entry.used_mask
    if mask is not None and entry.kind != "bool":
        np.bitwise_and(data, np.uint8(mask), out=data)
