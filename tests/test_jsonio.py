"""Strict JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.jsonio import MAX_DEPTH, MAX_INTEGER, JsonValue, dumps_canonical, equal, loads, pointer

INTEGERS = st.integers(-MAX_INTEGER, MAX_INTEGER)
FRACTIONS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
TEXT = st.text(st.characters(codec="utf-8"))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTEGERS | FRACTIONS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def _refusal(data: bytes, **options: Any) -> UcpError:
    with pytest.raises(UcpError) as caught:
        loads(data, at="ucp.json", **options)
    return caught.value


@given(VALUES)
def test_what_is_written_reads_back_with_types(value: JsonValue) -> None:
    data = dumps_canonical(value)
    assert equal(loads(data, at="x"), value)
    assert dumps_canonical(loads(data, at="x")) == data
    spread = json.dumps(value, ensure_ascii=True, indent=1).encode()
    assert equal(loads(spread, at="x"), value)


@given(st.binary(max_size=40) | st.text(alphabet='[]{}":,\\ue019-.aE \n', max_size=30).map(str.encode))
@example(b'{"a":1,"a":2}')
@example(b'["\\ud800"]')
@example(b"123456789012345678")
def test_it_accepts_a_subset_of_json_and_reads_it_alike(data: bytes) -> None:
    try:
        value = loads(data, at="x")
    except UcpError:
        return
    assert json.loads(data) == value
    data.decode()
    dumps_canonical(value)


@given(
    st.lists(
        st.text(alphabet="0123456789:, -]}ef", min_size=14, max_size=40)
        | st.integers(10**14, 10**17)
        | st.integers(-(10**17), -(10**14)),
        max_size=6,
    ),
    st.sampled_from([(",", ":"), (" , ", " : "), (",\n", ":\t")]),
)
@example(["crc32c-tree:0123456789012345e", 2**53], (",", ":"))
@example([":12345678901234567890,", 2**53 - 1], (",", ":"))
def test_long_digits_in_texts_hide_no_long_integer(
    values: list[str | int], separators: tuple[str, str]
) -> None:
    for document in (values, dict(enumerate(values)), *values):
        data = json.dumps(document, separators=separators).encode()
        inside = values if isinstance(document, list | dict) else [document]
        if any(isinstance(value, int) and abs(value) > MAX_INTEGER for value in inside):
            assert _refusal(data).code == "UCP-E-JSON"
        else:
            assert loads(data, at="x") == json.loads(data)


@given(VALUES, st.text(alphabet='[]{}"\\', max_size=8), st.integers(0, MAX_DEPTH + 4), st.booleans())
def test_depth_is_counted_exactly(value: JsonValue, noise: str, levels: int, arrays: bool) -> None:
    def depth(item: JsonValue) -> int:
        if isinstance(item, list):
            return 1 + max(map(depth, item), default=0)
        if isinstance(item, dict):
            return 1 + max(map(depth, item.values()), default=0)
        return 0

    nested: JsonValue = [noise, value, {noise: noise}]
    for _ in range(levels):
        nested = [noise, nested] if arrays else {noise: nested, noise + "!": noise}
    data = dumps_canonical(nested)
    if depth(nested) <= MAX_DEPTH:
        assert equal(loads(data, at="x"), nested)
    else:
        assert _refusal(data).code == "UCP-E-LIMIT"


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b"[" * 1_000_000 + b"]" * 1_000_000,
        b'{"a":' * 300_000,
        b'[{"a":' * 300_000 + b"1" + b"}]" * 300_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    ],
)
def test_deep_nesting_is_refused_without_recursion(data: bytes) -> None:
    assert _refusal(data).code == "UCP-E-LIMIT"


def test_unbalanced_brackets_never_exhaust_the_stack() -> None:
    limit = sys.getrecursionlimit()
    for data in (
        b'"' + b"[" * limit * 4,
        b"]" * limit + b"[" * limit * 4,
        b'"\\' + b"[" * limit * 4,
        b'["["[' * limit,
    ):
        assert _refusal(data).code in {"UCP-E-LIMIT", "UCP-E-JSON"}


def test_size_limit_comes_first() -> None:
    assert loads(b"[1]", at="x", limit=3) == [1]
    assert _refusal(b"\xff\xff\xff\xff", limit=3).code == "UCP-E-LIMIT"


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (b'{"a":1,"a":1}', "ucp.json#/a"),
        (b'{"x":[0,{"a/b":{"~":1,"~":2}}],"x2":1}', "ucp.json#/x/1/a~1b/~0"),
        (b'{"b":{"c":1,"\\u0063":2}}', "ucp.json#/b/c"),
        (b'["a","\\udc00"]', "ucp.json#/1"),
        (b'{"k":{"\\ud800x":1}}', "ucp.json#/k"),
    ],
)
def test_refusals_with_a_pointer(data: bytes, at: str) -> None:
    problem = _refusal(data)
    assert (problem.code, problem.at) == ("UCP-E-JSON", at)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a":"\xff"}', "byte 6"),
        (b'"\xed\xa0\x80"', "byte 1"),
        (b"\xff\xfe{\x00}\x00", "byte 0"),
        (b'{\n"\xc3\xa9":}', "line 2, byte 7"),
        (b"[1] x", "byte 4"),
        (b"{} {}", "byte 3"),
        (b"[1,]", "line 1"),
        (b"{'a':1}", "line 1"),
        (b'"\n"', "line 1"),
        (b"", "line 1"),
        (b"[01]", "line 1"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e999]", "overflows"),
        (b"[-1e400]", "overflows"),
        (b"[9007199254740992]", "9007199254740992"),
        (b"[ -9007199254740992]", "-9007199254740992"),
        (b"12345678901234567890", "beyond"),
        (b"-12345678901234567890", "beyond"),
        (b"[" + b"9" * 5000 + b"]", "5000 characters"),
        (b'{"a":' + b"9" * 5000 + b"}", "5000 characters"),
        (b'{"a":' + b"9" * 5000 + b"x}", "5000 characters"),  # which is no number to the end
        (b"[-" + b"9" * 5000 + b'"', "5001 characters"),
    ],
)
def test_refusals_with_a_reason(data: bytes, says: str) -> None:
    problem = _refusal(data)
    assert (problem.code, problem.at) == ("UCP-E-JSON", "ucp.json")
    assert says in problem.message


def test_numbers_are_values_not_spellings() -> None:
    value = loads(b"[1.0,-0,-0.0,1e3,9007199254740991,-9007199254740991.0,1.5,0.00000001,1e-400]", at="x")
    assert equal(value, [1, 0, 0, 1000, MAX_INTEGER, -MAX_INTEGER, 1.5, 1e-8, 0])
    assert equal(loads(b"[1e16,9007199254740992.0]", at="x"), [1e16, 9007199254740992.0])


def test_a_long_digit_string_is_text() -> None:
    assert loads(b'["12345678901234567890",":12345678901234567890"]', at="x") == [
        "12345678901234567890",
        ":12345678901234567890",
    ]


def test_surrogate_pairs_are_text() -> None:
    assert loads(b'"\\ud83d\\ude00"', at="x") == "😀"


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], "\ud800", {"\udfff": 1}])
def test_what_cannot_be_written(value: JsonValue) -> None:
    with pytest.raises(UcpError, match="UCP-E-JSON"):
        dumps_canonical(value)


def test_compact_utf8_in_the_order_given() -> None:
    assert (
        dumps_canonical({"é": [1, True, None], "a": "\x00\n\x7f"})
        == '{"é":[1,true,null],"a":"\\u0000\\n\x7f"}'.encode()
    )


@given(st.lists(st.text() | st.integers(0, 99), min_size=1, max_size=4))
def test_pointers_grow_by_parts(parts: list[str | int]) -> None:
    whole = pointer("ucp.json", *parts)
    stepwise = "ucp.json"
    for part in parts:
        stepwise = pointer(stepwise, part)
    assert whole == stepwise
    unescaped = [part.replace("~1", "/").replace("~0", "~") for part in whole.split("#", 1)[1].split("/")[1:]]
    assert unescaped == [str(part) for part in parts]


def test_pointer_to_the_document() -> None:
    assert pointer("ucp.json") == "ucp.json"
    assert pointer("ucp.json", "atoms", 3, "a/~b") == "ucp.json#/atoms/3/a~1~0b"


def test_equality_keeps_types_apart() -> None:
    assert equal({"a": 1, "b": [None]}, {"b": [None], "a": 1})
    pairs: list[tuple[JsonValue, JsonValue]] = [
        (1, True),
        (1, 1.0),
        (0, False),
        ([1], [1, 1]),
        ({"a": 1}, {"b": 1}),
    ]
    assert not any(equal(a, b) for a, b in pairs)
