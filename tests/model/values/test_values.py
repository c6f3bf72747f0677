"""Tagged values: round trips, refusals, agreement with the JSON Schema (SPEC 15.1; UCP-D-088, UCP-R-023)."""

from __future__ import annotations

import datetime
import enum
import json
import math
import pathlib
import random
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from jsonschema import Draft202012Validator

from tests.model.values.strategies import KEYS, NEARLY, OBJECTS, same
from ucpformat.errors import UcpError
from ucpformat.jsonio import JsonValue, dumps_canonical, equal, loads
from ucpformat.model.values import MAX_DEPTH, NamedValue, TensorValue, decode, encode
from ucpformat.model.values.keys import canonical_text

SCHEMA = json.loads(
    (pathlib.Path(__file__).parents[3] / "schema" / "draft" / "value.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = Draft202012Validator(SCHEMA)

# What the schema says that it does not say, as the decoder words it.
BEYOND_SCHEMA = (
    "nests more than",
    "is not the text of a $float",
    "ascending order",
    "elements are equal",
    "keys are equal",
    "is not a data type",
    "takes ",
    "over 2**53 - 1 bytes",
    "does not use are not zero",
    # Content of defined types.
    "OrderedDict",
    "ISO 8601",
    "isoformat",
    "must be in",
    "month",
    "timedelta",
    "numpy.scalar",
    "pathlib",
)


def _refusal(value: Any, **options: Any) -> UcpError:
    with pytest.raises(UcpError) as caught:
        decode(value, at="s.json#/values/x", **options)
    return caught.value


def _cannot_encode(obj: object, **options: Any) -> UcpError:
    with pytest.raises(UcpError) as caught:
        encode(obj, at="state#/x", **options)
    assert caught.value.code == "UCP-E-OBJECT"
    return caught.value


@given(OBJECTS)
@example(random.Random(1).getstate())
@example(np.random.Generator(np.random.PCG64(1)).bit_generator.state)
@example(np.random.RandomState(1).get_state())
def test_objects_come_back_with_types_and_bits(obj: object) -> None:
    encoded = encode(obj, at="x")
    read = loads(dumps_canonical(encoded), at="x")
    assert equal(read, encoded)
    assert VALIDATOR.is_valid(read)
    decoded = decode(read, at="x")
    assert same(decoded, obj)
    assert dumps_canonical(encode(decoded, at="x")) == dumps_canonical(encoded)


def _as_read(value: JsonValue) -> JsonValue:
    """Make integers of integral floats, as the JSON reader does; leave what it refuses to the two under test."""
    if isinstance(value, list):
        return [_as_read(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_read(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@given(NEARLY)
@example({"$set": [1, {"$float": "1.0"}]})
@example({"$float": "1.0\n"})
def test_decoder_and_schema_accept_the_same(value: JsonValue) -> None:
    value = _as_read(value)
    try:
        decoded = decode(value, at="x")
    except UcpError as problem:
        listed = any(words in problem.message for words in BEYOND_SCHEMA)
        valid = VALIDATOR.is_valid(value)
        if valid and not listed:
            raise
        return
    assert VALIDATOR.is_valid(value)
    assert equal(encode(decoded, at="x"), value)


@given(KEYS)
def test_key_text_is_rfc_8785(key: object) -> None:
    value = encode(key, at="x")
    text = canonical_text(value).decode()
    assert equal(json.loads(text), value)
    assert " " not in text or " " in json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e-5, "0.00001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (-2.5e-10, "-2.5e-10"),
        (5e-324, "5e-324"),
        (0.1, "0.1"),
    ],
)
def test_number_text_is_that_of_ecmascript(number: float, text: str) -> None:
    assert canonical_text(number) == text.encode()


@pytest.mark.parametrize(
    ("obj", "encoded"),
    [
        (1.0, {"$float": "1.0"}),
        (-0.0, {"$float": "-0.0"}),
        (1e16, {"$float": "1e+16"}),
        (9007199254740992.0, {"$float": "9007199254740992.0"}),
        (math.inf, {"$float": "inf"}),
        (-math.nan, {"$float": "nan"}),
        (2**53, {"$int": "9007199254740992"}),
        (-(2**53) + 1, -9007199254740991),
        (b"\x00\xff", {"$bytes": "AP8="}),
        (complex(0.5, -1.0), {"$complex": [0.5, {"$float": "-1.0"}]}),
        ((1, [2]), {"$tuple": [1, [2]]}),
        ({10, 9, "a", True}, {"$set": ["a", 10, 9, True]}),
        (frozenset({(1,), None}), {"$frozenset": [None, {"$tuple": [1]}]}),
        ({1: 2, "a": 3}, {"$dict": [[1, 2], ["a", 3]]}),
        ({"$a": 1}, {"$dict": [["$a", 1]]}),
        (np.arange(2, dtype=">u2"), {"$array": {"dtype": "uint16", "shape": [2], "data": "AAABAA=="}}),
        (TensorValue("bool", (1,), b"\1"), {"$tensor": {"dtype": "bool", "shape": [1], "data": "AQ=="}}),
        (
            np.float64(1.5),
            {
                "$object": {
                    "type": "numpy.scalar",
                    "value": {"$tuple": ["float64", {"$bytes": "AAAAAAAA+D8="}]},
                }
            },
        ),
        (
            OrderedDict(b=1, a=2),
            {"$object": {"type": "collections.OrderedDict", "value": [["b", 1], ["a", 2]]}},
        ),
        (
            datetime.datetime(2025, 1, 2, 3, 4, 5, 6, datetime.UTC),
            {"$object": {"type": "datetime.datetime", "value": "2025-01-02T03:04:05.000006+00:00"}},
        ),
        (
            datetime.timedelta(-1),
            {"$object": {"type": "datetime.timedelta", "value": {"$tuple": [-1, 0, 0]}}},
        ),
        (pathlib.PureWindowsPath("a\\b"), {"$object": {"type": "pathlib.PureWindowsPath", "value": "a\\b"}}),
    ],
)
def test_encodings(obj: object, encoded: JsonValue) -> None:
    assert equal(encode(obj, at="x"), encoded)
    assert VALIDATOR.is_valid(encoded)


@pytest.mark.parametrize("text", ["a//b", "a/.", "", "a/b\\c"])
def test_a_path_that_pathlib_would_write_otherwise_stays_as_it_is(text: str) -> None:
    name = "pathlib.PureWindowsPath" if "\\" in text else "pathlib.PurePosixPath"
    encoded: JsonValue = {"$object": {"type": name, "value": text}}
    assert decode(encoded, at="x") == NamedValue(name, text)
    assert encode(NamedValue(name, text), at="x") == encoded


class _Colour(enum.IntEnum):
    RED = 1


class _Mapping(dict[str, int]):
    pass


_Point = namedtuple("_Point", "x y")  # noqa: PYI024


@pytest.mark.parametrize(
    ("obj", "says"),
    [
        (object(), "object"),
        (_Colour.RED, "_Colour"),
        (_Mapping(a=1), "_Mapping"),
        (_Point(1, 2), "_Point"),
        (defaultdict(list), "defaultdict"),
        (Counter("a"), "Counter"),
        (bytearray(b"a"), "bytearray"),
        (len, "builtin_function"),
        (int, "type"),
        (..., "ellipsis"),
        (range(3), "range"),
        (np.array(["a"]), "numpy"),
        (np.array([object()]), "numpy"),
        (np.datetime64(1, "s"), "numpy"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (10**4096, "4096 digits"),
        pytest.param(1 << 1_000_000, "4096 digits", id="huge"),
        pytest.param({10**5000: 1}, "4096 digits", id="huge key"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        (datetime.datetime(2025, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), "time zone"),
        (datetime.datetime(2025, 1, 1, fold=1), "time zone"),  # noqa: DTZ001
        (datetime.time(1, tzinfo=datetime.timezone(datetime.timedelta(0), "X")), "time zone"),
        (datetime.time(1, tzinfo=datetime.timezone(datetime.timedelta(seconds=61))), "time zone"),
        ({float("nan"), float("nan") * 2}, "same encoding"),
        ({float("nan"): 1, float("nan") * 2: 2}, "same encoding"),
        (OrderedDict([(float("nan"), 1), (float("nan") * 2, 2)]), "same encoding"),
        ({TensorValue("bool", (), b"\1")}, "cannot be a key"),
        ({NamedValue("x", TensorValue("bool", (), b"\1")): 1}, "cannot be a key"),
        (NamedValue("datetime.date", "2025-01-01"), "defined type"),
        (NamedValue("not a name", 1), "not the name of a type"),
        (TensorValue("float32", (2,), b""), "takes 8 bytes"),
        (TensorValue("float33", (2,), b""), "float33"),
        (TensorValue("bool", (1,), b"\2"), "not zero"),
        (TensorValue("uint8", (-1,), b""), "extents"),
        (TensorValue("uint8", (0, 2**53), b""), "extents"),
        (TensorValue("uint8", (0, 2**40, 2**40), b""), "2**53"),
        (TensorValue("uint8", (1,) * 33, b"\0"), "32 extents"),
    ],
)
def test_what_cannot_be_encoded(obj: object, says: str) -> None:
    problem = _cannot_encode({"a/b": [0, obj]})
    assert problem.at == "state#/x/a~1b/1" or problem.at.startswith("state#/x/a~1b/1/")
    assert says in problem.message


def test_cycles_are_refused_where_they_close() -> None:
    cycle: list[object] = [1]
    cycle.append({"k": (cycle,)})
    problem = _cannot_encode(cycle)
    assert "contains itself" in problem.message
    assert problem.at == "state#/x/1/k/0"
    shared = [1]
    assert equal(encode([shared, shared], at="x"), [[1], [1]])


@pytest.mark.parametrize(
    ("wrap", "levels"),
    [
        (lambda inner: [inner], 1),
        (lambda inner: {"a": inner}, 1),
        (lambda inner: (inner,), 2),
        (lambda inner: frozenset({inner}), 2),
        (lambda inner: {1: inner}, 3),
        (lambda inner: NamedValue("x", inner), 2),
    ],
)
@pytest.mark.parametrize(("leaf", "own"), [(1, 0), (1.0, 1), (b"", 1), (1.5j, 3), (np.int8(1), 5)])
def test_depth_is_the_same_both_ways(wrap: Any, levels: int, leaf: object, own: int) -> None:
    fits = (MAX_DEPTH - own) // levels
    obj = leaf
    for _ in range(fits):
        obj = wrap(obj)
    encoded = encode(obj, at="x")
    assert same(decode(encoded, at="x"), obj)
    assert "deep" in _cannot_encode(wrap(obj)).message
    while _json_depth(encoded) <= MAX_DEPTH:
        encoded = [encoded]
    assert _refusal(encoded).code == "UCP-E-LIMIT"


def _json_depth(value: JsonValue) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_json_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_json_depth, value), default=0)
    return 0


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (1.0, ""),
        (math.nan, ""),
        (2**53, ""),
        ("\ud800", ""),
        ([{"a": 1e16}], "/0/a"),
        ({"$x": 1}, ""),
        ({"$tuple": [], "a": 1}, ""),
        ({"a": 1, "$b": 2}, ""),
        ({"$float": "1"}, "/$float"),
        ({"$float": "1.5"}, "/$float"),
        ({"$float": "1e16"}, "/$float"),
        ({"$float": "9007199254740993.0"}, "/$float"),
        ({"$float": "1e+400"}, "/$float"),
        ({"$float": " 1.0"}, "/$float"),
        ({"$float": 1}, "/$float"),
        ({"$int": "7"}, "/$int"),
        ({"$int": "9007199254740991"}, "/$int"),
        ({"$int": "+9007199254740992"}, "/$int"),
        ({"$int": "٩007199254740992"}, "/$int"),
        ({"$int": "1" * 4097}, "/$int"),
        ({"$bytes": "AB=="}, "/$bytes"),
        ({"$bytes": "AAAA\n"}, "/$bytes"),
        ({"$bytes": None}, "/$bytes"),
        ({"$complex": [1, 0.5]}, "/$complex"),
        ({"$complex": [0.5]}, "/$complex"),
        ({"$tuple": {}}, "/$tuple"),
        ({"$tuple": [1, [{"$tuple": 1}]]}, "/$tuple/1/0/$tuple"),
        ({"$set": [2, 1]}, "/$set"),
        ({"$set": [10, 9, 9]}, "/$set"),
        ({"$set": [1, True]}, "/$set"),
        ({"$set": [1, [2]]}, "/$set/1"),
        ({"$set": [{"a": 1}]}, "/$set/0"),
        ({"$frozenset": [{"$set": []}]}, "/$frozenset/0"),
        ({"$frozenset": [{"$tuple": [1]}, {"$tuple": [True]}]}, "/$frozenset"),
        ({"$dict": []}, "/$dict"),
        ({"$dict": [["a", 1]]}, "/$dict"),
        ({"$dict": [[1, 2], [True, 3]]}, "/$dict"),
        ({"$dict": [[{"$float": "nan"}, 2], [{"$float": "nan"}, 3]]}, "/$dict"),
        ({"$dict": [[1, 2], [3]]}, "/$dict/1"),
        ({"$dict": [[1, {"$tuple": 1}]]}, "/$dict/0/1/$tuple"),
        ({"$dict": [[[], 2]]}, "/$dict/0/0"),
        ({"$array": {"dtype": "uint8", "shape": [2], "data": "AA=="}}, "/$array"),
        ({"$array": {"dtype": "uint8", "shape": [True], "data": "AA=="}}, "/$array"),
        ({"$array": {"dtype": "uint8", "shape": [1]}}, "/$array"),
        ({"$array": {"dtype": "int4", "shape": [1], "data": "/w=="}}, "/$array"),
        ({"$tensor": {"dtype": "uint8", "shape": [-1], "data": ""}}, "/$tensor"),
        ({"$tensor": {"dtype": "uint8", "shape": [0, 2**52, 2**52], "data": ""}}, "/$tensor"),
        ({"$object": {"type": "os.system"}}, "/$object"),
        ({"$object": {"type": "a b", "value": 1}}, "/$object"),
        ({"$object": {"type": "a\n", "value": 1}}, "/$object"),
        ({"$object": {"type": "x", "value": [1.0]}}, "/$object/value/0"),
        ({"$object": {"type": "datetime.date", "value": "20250101"}}, "/$object"),
        ({"$object": {"type": "datetime.datetime", "value": "2025-01-01T00:00:00Z"}}, "/$object"),
        ({"$object": {"type": "datetime.time", "value": "01:00:00+00:00:01"}}, "/$object"),
        ({"$object": {"type": "datetime.timedelta", "value": {"$tuple": [0, 86400, 0]}}}, "/$object"),
        ({"$object": {"type": "datetime.timedelta", "value": {"$tuple": [10**12, 0, 0]}}}, "/$object"),
        ({"$object": {"type": "pathlib.PurePosixPath", "value": 1}}, "/$object"),
        ({"$object": {"type": "collections.OrderedDict", "value": [["a", 1], ["a", 2]]}}, "/$object"),
        ({"$object": {"type": "collections.OrderedDict", "value": [[[], 1]]}}, "/$object"),
        ({"$object": {"type": "collections.OrderedDict", "value": {"a": 1}}}, "/$object"),
        (
            {
                "$object": {
                    "type": "collections.OrderedDict",
                    "value": [[{"$float": "nan"}, 1], [{"$float": "nan"}, 2]],
                }
            },
            "/$object",
        ),
        (
            {
                "$object": {
                    "type": "collections.OrderedDict",
                    "value": [[{"$tensor": {"dtype": "uint8", "shape": [], "data": "AA=="}}, 1]],
                }
            },
            "/$object",
        ),
        ({"$object": {"type": "numpy.scalar", "value": {"$tuple": ["int9", {"$bytes": ""}]}}}, "/$object"),
        ({"$object": {"type": "numpy.scalar", "value": 1.5}}, "/$object"),
    ],
)
def test_what_is_no_value(value: Any, at: str) -> None:
    problem = _refusal(value)
    assert (problem.code, problem.at) == ("UCP-E-VALUE", f"s.json#/values/x{at}")


def test_unknown_data_types_have_their_own_code() -> None:
    problem = _refusal([{"$array": {"dtype": "float12", "shape": [], "data": ""}}])
    assert (problem.code, problem.at) == ("UCP-E-VALUE", "s.json#/values/x/0/$array")


def test_unknown_types_are_kept_and_never_imported() -> None:
    value: JsonValue = {"$object": {"type": "antigravity.fly", "value": {"$tuple": [1, {"$float": "2.0"}]}}}
    decoded = decode(value, at="x")
    assert decoded == NamedValue("antigravity.fly", (1, 2.0))
    assert equal(encode(decoded, at="x"), value)


def test_hooks_extend_and_restore() -> None:
    def extend(obj: object) -> NamedValue | TensorValue | None:
        if isinstance(obj, _Point):
            return NamedValue("test.Point", tuple(obj))
        if isinstance(obj, memoryview):
            return TensorValue("uint8", obj.shape or (), obj.tobytes())
        return None

    obj = {"p": _Point(1, [2.0]), "m": memoryview(b"ab")}
    encoded = encode(obj, at="x", extend=extend)
    assert decode(encoded, at="x") == {
        "p": NamedValue("test.Point", (1, [2.0])),
        "m": TensorValue("uint8", (2,), b"ab"),
    }
    restore = {
        "test.Point": lambda content: _Point(*content),
        "$tensor": lambda tensor: memoryview(tensor.data),
    }
    assert same(decode(encoded, at="x", restore=restore), obj)
    assert "not one that" in _cannot_encode([object()], extend=extend).message
    problem = _refusal({"$object": {"type": "test.Point", "value": {"$tuple": [1]}}}, restore=restore)
    assert problem.code == "UCP-E-VALUE"


def test_arrays_come_back_writable() -> None:
    array = decode(encode(np.zeros((2, 0, 3)), at="x"), at="x")
    assert isinstance(array, np.ndarray)
    assert array.shape == (2, 0, 3)
    assert array.flags.writeable


def test_python_subclasses_of_restored_keys_must_hash() -> None:
    value: JsonValue = {"$set": [{"$object": {"type": "x", "value": 1}}]}
    assert decode(value, at="x") == {NamedValue("x", 1)}
    assert _refusal(value, restore={"x": lambda content: [content]}).code == "UCP-E-VALUE"


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == "https://ucpformat.org/schema/draft/value.schema.json"
