"""Objects that tagged values express, and JSON that is nearly a tagged value."""

from __future__ import annotations

import math
import pathlib
import struct
from collections import OrderedDict
from datetime import timedelta, timezone
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ucpformat.jsonio import JsonValue, equal
from ucpformat.model.dtype import DTYPES, DType
from ucpformat.model.values import NamedValue, TensorValue, encode
from ucpformat.model.values.content import element_bytes

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
BIG = (
    st.integers(-(2**200), 2**200)
    | st.sampled_from([2**53 - 1, 2**53, -(2**53)])
    | st.sampled_from([4095, 4096]).map(lambda digits: 1 - 10**digits)
)
ODD_FLOATS = st.sampled_from(
    [0.0, -0.0, 1.0, 1e15, 1e16, 123456789012345680.0, 5e-324, 1.7976931348623157e308, 1e-6, 1e-7]
)
ZONES = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TYPE_NAMES = st.sampled_from(["torch.Size", "x", "a.b_1.C", "_"])
PATHS = TEXT.filter(lambda text: "\0" not in text).flatmap(
    lambda text: st.sampled_from(
        [pathlib.PurePosixPath(text), pathlib.PureWindowsPath(text), pathlib.Path(text)]
    )
)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    entry: DType = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
    size = math.prod(shape) * entry.item_bytes
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if entry.used_mask is not None:
        raw = bytearray(byte & entry.used_mask for byte in raw)
    return np.frombuffer(raw, entry.numpy).reshape(shape)


NUMPY_SCALARS = arrays().filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0])
TENSORS = arrays().map(
    lambda array: TensorValue(array.dtype.name, array.shape, element_bytes(array, DTYPES[array.dtype.name]))
)
TIMES = (
    (st.datetimes(timezones=ZONES) | st.times(timezones=ZONES)).map(lambda time: time.replace(fold=0))
    | st.dates()
    | st.timedeltas()
)

_PLAIN = st.none() | st.booleans() | BIG | TEXT | st.binary(max_size=5)
# NaN is left out where keys must differ: two of them would have one text.
KEY_LEAVES = (
    _PLAIN | st.floats(allow_nan=False) | ODD_FLOATS | st.complex_numbers(allow_nan=False) | TIMES | PATHS
)
KEYS = st.recursive(
    KEY_LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(NamedValue, TYPE_NAMES, inner)
    ),
    max_leaves=5,
)
LEAVES = (
    _PLAIN
    | st.floats()
    | ODD_FLOATS
    | st.complex_numbers()
    | TIMES
    | PATHS
    | arrays()
    | NUMPY_SCALARS
    | TENSORS
)
OBJECTS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT | st.just("$x"), inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
        | st.sets(KEYS, max_size=3)
        | st.frozensets(KEYS, max_size=3)
        | st.builds(NamedValue, TYPE_NAMES, inner)
    ),
    max_leaves=8,
)


def same(a: object, b: object) -> bool:
    """Equality with types, bit for bit but for the payload of a NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic) and isinstance(b, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex) and isinstance(b, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, NamedValue) and isinstance(b, NamedValue):
        return a.type == b.type and same(a.value, b.value)
    if isinstance(a, set | frozenset):
        return a == b and equal(encode(a, at="a"), encode(b, at="b"))
    return a == b


TAGS = [
    *("$float", "$int", "$bytes", "$complex", "$tuple", "$set"),
    *("$frozenset", "$dict", "$array", "$tensor", "$object", "$other", "$"),
]
NEAR_TEXTS = st.sampled_from(
    [
        *(
            "1.0",
            "0.0",
            "-0.0",
            "1",
            "1.",
            "01.0",
            "1.5",
            "1e16",
            "1e+16",
            "1E+16",
            "1.50e+16",
            "1.5e+16",
            "1e+309",
        ),
        *(
            "1e+15",
            "nan",
            "-nan",
            "inf",
            "-inf",
            "+inf",
            "Infinity",
            "9007199254740993.0",
            "10000000000000000.0",
        ),
        *("0", "9007199254740991", "9007199254740992", "-9007199254740992", "09007199254740992"),
        *(
            "1.0\n",
            "9007199254740992\n",
            "",
            "AA==",
            "AB==",
            "AAA=",
        ),
        *(
            "AAAA",
            "AAAA\n",
            "A",
            "====",
            "AAB=",
            "AA",
            "A-==",
            "AAAA AAAA",
            "float32",
            "x",
            "a.b",
            "a.",
            ".a",
            "a b",
        ),
        *(
            "x\n",
            "1a",
            "pathlib.PurePosixPath",
            "datetime.date",
            "numpy.scalar",
            "٣.0",
            "1_0.0",
        ),
    ]
)
# Built and not listed, to keep hypothesis' reports short.
LONG_TEXTS = st.builds(
    lambda sign, unit, count: sign + unit * count,
    st.sampled_from(["", "-"]),
    st.sampled_from(["1", "a"]),
    st.sampled_from([200, 201, 4096, 4097]),
)
NEAR_LEAVES: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**53 - 1, 2**53, -(2**53), 0.5, -1e-7, 1.0, -0.0, 1e16, 1e300])
    | NEAR_TEXTS
    | LONG_TEXTS
    | TEXT
)


def _near(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    pairs = st.lists(st.lists(inner, min_size=1, max_size=3), max_size=2)
    bodies = st.fixed_dictionaries(
        {"dtype": st.sampled_from(["uint8", "bool", "int4", "float", ""]) | inner},
        optional={
            "shape": st.lists(st.integers(-1, 3) | st.just(2**53 - 1), max_size=2) | lists,
            "data": NEAR_TEXTS | inner,
            "x": inner,
        },
    )
    named = st.fixed_dictionaries({"type": NEAR_TEXTS | TYPE_NAMES}, optional={"value": inner, "x": inner})
    tags = st.dictionaries(
        st.sampled_from(TAGS),
        inner | lists | pairs | bodies | named | NEAR_TEXTS | LONG_TEXTS,
        min_size=1,
        max_size=1,
    )
    return lists | st.dictionaries(TEXT | st.sampled_from(TAGS), inner, max_size=2) | tags


@st.composite
def _mutated(draw: st.DrawFn) -> JsonValue:
    """Replace one part of a good encoding."""
    whole: JsonValue = [encode(draw(OBJECTS), at="x")]
    part: Any = whole
    while True:
        places: list[Any] = list(part) if isinstance(part, dict) else list(range(len(part)))
        place = draw(st.sampled_from(places))
        below = part[place]
        if not isinstance(below, dict | list) or not below or draw(st.booleans()):
            break
        part = below
    change = draw(st.integers(0, 3))
    if change == 0 and isinstance(part, dict):
        part[draw(st.sampled_from(TAGS) | TEXT)] = draw(NEAR_LEAVES)
    elif change == 1 and part is not whole:
        del part[place]
    elif change == 2 and isinstance(part, list) and part is not whole:
        part.append(below)
    else:
        part[place] = draw(NEAR_VALUES)
    assert isinstance(whole, list)
    return whole[0]


NEAR_VALUES: st.SearchStrategy[Any] = st.recursive(NEAR_LEAVES, _near, max_leaves=6)
NEARLY = NEAR_VALUES | _mutated()
