"""The extension data types for zarr-python (SPEC section 11.2), through ml_dtypes.

zarr-python knows the core types alone. Importing this module registers the others with its data type registry, for the
whole process; zarr then opens and creates arrays of them. Each class is an entry point of the group ``zarr.data_type``
too: zarr-python collects that group, and loads it when a type is first asked for since version 3.4.1; before it never
did, so that the import is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeGuard, overload

import numpy as np
from zarr.core.dtype import ZDType, data_type_registry
from zarr.core.dtype.common import HasEndianness, HasItemSize

from ucpformat.model.dtype import DTYPES

try:
    from zarr.errors import DataTypeValidationError  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # up to zarr 3.2
    from zarr.core.dtype import DataTypeValidationError

if TYPE_CHECKING:
    from zarr.core.common import JSON, ZarrFormat

    from ucpformat.model.dtype import DType

__all__ = [
    "BFloat16",
    "Float4E2M1FN",
    "Float8E3M4",
    "Float8E4M3B11FNUZ",
    "Float8E4M3FN",
    "Float8E4M3FNUZ",
    "Float8E5M2",
    "Float8E5M2FNUZ",
    "Float8E8M0FNU",
    "Int4",
    "register",
]

_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_NativeDType = np.dtype[np.generic]


@dataclass(frozen=True, kw_only=True)
class _MlDType(ZDType[_NativeDType, np.generic], HasItemSize):
    """What the extension types have in common; Zarr v3 only."""

    def __init_subclass__(cls, *, name: str = "", **others: Any) -> None:
        """Take the type's name in `DTYPES`, which is that in Zarr; those between have none."""
        super().__init_subclass__(**others)
        if name:
            cls._zarr_v3_name = name
            cls.dtype_cls = type(DTYPES[name].numpy)

    @classmethod
    def _entry(cls) -> DType:
        return DTYPES[cls._zarr_v3_name]

    @property
    def item_size(self) -> int:
        """Bytes of an element."""
        return self._entry().item_bytes

    @classmethod
    def from_native_dtype(cls, dtype: _NativeDType) -> Self:
        """Wrap ``dtype``; raises DataTypeValidationError where it is another."""
        if dtype != cls._entry().numpy:
            raise DataTypeValidationError(f"{dtype} is not {cls._zarr_v3_name}")
        return cls()

    def to_native_dtype(self) -> _NativeDType:
        """Return the ml_dtypes type."""
        return self._entry().numpy

    @classmethod
    def _from_json_v2(cls, data: object) -> Self:
        raise DataTypeValidationError(f"{cls._zarr_v3_name} has no Zarr v2 form")

    @classmethod
    def _from_json_v3(cls, data: object) -> Self:
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name!r}")
        return cls()

    @overload
    def to_json(self, zarr_format: Literal[2]) -> Any: ...

    @overload
    def to_json(self, zarr_format: Literal[3]) -> str: ...

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        """Return the ``data_type`` member of zarr.json."""
        if zarr_format == 2:
            raise ValueError(f"{self._zarr_v3_name} has no Zarr v2 form")
        return self._zarr_v3_name

    def default_scalar(self) -> np.generic:
        """Return the element whose bytes are zero."""
        return self._from_bits(0)

    def cast_scalar(self, data: object) -> np.generic:
        """Convert a number to the nearest element."""
        if not self._check_scalar(data):
            raise TypeError(f"{data!r} is not a number that {self._zarr_v3_name} can hold")
        return self.to_native_dtype().type(data)

    def _check_scalar(self, data: object) -> TypeGuard[Any]:
        return isinstance(data, int | float | np.number) or type(data) is self.to_native_dtype().type

    def _from_bits(self, bits: int) -> np.generic:
        raw = bits.to_bytes(self.item_size, "little")
        scalar: np.generic = np.frombuffer(raw, self.to_native_dtype())[0]
        return scalar

    def _bits(self, scalar: np.generic) -> int:
        return int.from_bytes(np.asarray(scalar, self.to_native_dtype()).tobytes(), "little")


@dataclass(frozen=True, kw_only=True)
class _MlFloat(_MlDType):
    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> np.generic:
        """Read a fill value: a number, ``NaN``, an infinity, or the bits as ``0x`` and hexadecimal digits."""
        if data == 0 and not isinstance(data, bool | str):
            # As TensorStore reads it, also for float8_e8m0fnu, which has no zero.
            return self._from_bits(0)
        if isinstance(data, str):
            if data in _SPECIAL:
                return self.cast_scalar(_SPECIAL[data])
            if data.startswith("0x") and len(data) == 2 + 2 * self.item_size:
                return self._from_bits(int(data, 16))
        elif isinstance(data, int | float) and not isinstance(data, bool):
            return self.cast_scalar(data)
        raise TypeError(f"{data!r} is not a fill value of {self._zarr_v3_name}")

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> float | str:
        """Write a fill value: the number where that reads back as the same bits, else the bits."""
        scalar = self.cast_scalar(data)
        number = float(np.asarray(scalar).astype(np.float64))
        bits = self._bits(scalar)
        if math.isfinite(number) and number and self._bits(self.cast_scalar(number)) == bits:
            return number
        if bits == 0 and self._zarr_v3_name != "float8_e8m0fnu":
            return 0.0
        return f"0x{bits:0{2 * self.item_size}x}"


@dataclass(frozen=True, kw_only=True)
class BFloat16(_MlFloat, HasEndianness, name="bfloat16"):
    """``bfloat16``: the upper half of a binary32.

    Declares endianness, so that zarr writes it into the ``bytes`` codec; TensorStore insists on it.
    """

    def to_native_dtype(self) -> _NativeDType:
        """Return the ml_dtypes type in the byte order of this instance."""
        return self._entry().numpy.newbyteorder(">" if self.endianness == "big" else "<")


class Float8E3M4(_MlFloat, name="float8_e3m4"):
    """``float8_e3m4``: IEEE-like, bias 3."""


class Float8E4M3FN(_MlFloat, name="float8_e4m3fn"):
    """``float8_e4m3fn``: no infinity, one NaN of each sign (OCP E4M3)."""


class Float8E4M3FNUZ(_MlFloat, name="float8_e4m3fnuz"):
    """``float8_e4m3fnuz``: no infinity, no negative zero, bias 8."""


class Float8E4M3B11FNUZ(_MlFloat, name="float8_e4m3b11fnuz"):
    """``float8_e4m3b11fnuz``: no infinity, no negative zero, bias 11."""


class Float8E5M2(_MlFloat, name="float8_e5m2"):
    """``float8_e5m2``: the upper half of a binary16 (OCP E5M2)."""


class Float8E5M2FNUZ(_MlFloat, name="float8_e5m2fnuz"):
    """``float8_e5m2fnuz``: no infinity, no negative zero, bias 16."""


class Float8E8M0FNU(_MlFloat, name="float8_e8m0fnu"):
    """``float8_e8m0fnu``: a power of two from 2**-127 to 2**127, or NaN (OCP MX scale)."""


class Float4E2M1FN(_MlFloat, name="float4_e2m1fn"):
    """``float4_e2m1fn``: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and negatives, in bits 0 to 3 of a byte (OCP MX)."""


class Int4(_MlDType, name="int4"):
    """``int4``: -8 to 7, two's complement in bits 0 to 3 of a byte."""

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> np.generic:
        """Read a fill value: an integer from -8 to 7."""
        if isinstance(data, int) and not isinstance(data, bool) and -8 <= data <= 7:
            return self.cast_scalar(data)
        raise TypeError(f"{data!r} is not a fill value of int4")

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> int:
        """Write a fill value."""
        return int(np.asarray(self.cast_scalar(data)).astype(np.int8))


_CLASSES: Final = (
    BFloat16,
    Float8E3M4,
    Float8E4M3FN,
    Float8E4M3FNUZ,
    Float8E4M3B11FNUZ,
    Float8E5M2,
    Float8E5M2FNUZ,
    Float8E8M0FNU,
    Float4E2M1FN,
    Int4,
)


def register() -> None:
    """Register the extension types with zarr-python; done on import, harmless when repeated."""
    for cls in _CLASSES:
        data_type_registry.register(cls._zarr_v3_name, cls)


register()
