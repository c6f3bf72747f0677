"""The data type table against numpy, ml_dtypes and TensorStore."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ucpformat.errors import UcpError, UnsupportedError
from ucpformat.model.dtype import (
    DTYPES,
    EXTENSION_DTYPES,
    DType,
    bytes_codec,
    clear_unused_bits,
    dtype,
    dtype_of,
    unused_bits_are_zero,
)

ALL = pytest.mark.parametrize("entry", DTYPES.values(), ids=list(DTYPES))

# The bits of 1.0; the imaginary half of a complex number is the upper one, and zero.
ONES = {
    "bfloat16": 0x3F80,
    "float16": 0x3C00,
    "float32": 0x3F80_0000,
    "float64": 0x3FF0_0000_0000_0000,
    "complex64": 0x3F80_0000,
    "complex128": 0x3FF0_0000_0000_0000,
    "float4_e2m1fn": 0x02,
    "float8_e4m3fn": 0x38,
    "float8_e5m2": 0x3C,
    "float8_e8m0fnu": 0x7F,
}


@ALL
def test_entry_is_consistent_with_numpy(entry: DType) -> None:
    assert dtype(entry.name) is entry
    assert entry.numpy.itemsize == entry.item_bytes
    assert dtype_of(entry.numpy) is entry
    assert dtype_of(entry.numpy.newbyteorder(">")) is entry
    assert (bytes_codec(entry).get("configuration") is None) == (entry.item_bytes == 1)
    assert entry.bits <= 8 * entry.item_bytes


@ALL
def test_one_is_little_endian(entry: DType) -> None:
    one = np.ones((), entry.numpy)
    raw = np.frombuffer(one.tobytes(), np.uint8)
    if entry.kind in {"int", "uint"}:
        assert int.from_bytes(raw, "little") == 1
    if entry.name in ONES:
        assert int.from_bytes(raw, "little") == ONES[entry.name]
    assert unused_bits_are_zero(raw, entry)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("bf16", "bfloat16"),
        ("float", "float"),
        ("float8_e4m3", "float8_e4m3fn"),
        ("uint4", "int4"),
        ("xyz", "known are"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dtype(name, at="index/0.json#/atoms/0")
    assert (caught.value.code, caught.value.at) == ("UCP-E-DTYPE", "index/0.json#/atoms/0")
    assert near in caught.value.message


@pytest.mark.parametrize("native", ["O", "U3", "S2", "M8[s]", "g", "i4,f4", "V2"])
def test_other_numpy_types_are_refused(native: str) -> None:
    with pytest.raises(UcpError, match="UCP-E-DTYPE"):
        dtype_of(np.dtype(native))


def test_arithmetic_leaves_unused_bits_that_the_writer_clears() -> None:
    values = -np.arange(1, 8, dtype=ml_dtypes.int4)
    raw = values.view(np.uint8).copy()
    assert not unused_bits_are_zero(raw, DTYPES["int4"])
    clear_unused_bits(raw, DTYPES["int4"])
    assert unused_bits_are_zero(raw, DTYPES["int4"])
    assert raw.view(ml_dtypes.int4).astype(np.int8).tolist() == [-1, -2, -3, -4, -5, -6, -7]


def test_only_types_with_unused_bits_are_touched() -> None:
    for entry in DTYPES.values():
        raw = np.full(16, 0xFF, np.uint8)
        clear_unused_bits(raw, entry)
        assert raw.max() == (0x0F if entry.bits == 4 else 0xFF)
        assert unused_bits_are_zero(raw, entry) == (entry.name != "bool")
        assert unused_bits_are_zero(raw[:0], entry)


def test_extensions_are_those_that_numpy_does_not_have() -> None:
    assert {entry.name for entry in EXTENSION_DTYPES} == {
        name for name, entry in DTYPES.items() if entry.numpy.type.__module__ != "numpy"
    }
