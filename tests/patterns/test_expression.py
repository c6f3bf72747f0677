"""Expressions (SPEC-PATTERNS): against Python's own, and refused where they are none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.jsonio import MAX_INTEGER
from ucpformat.patterns.expression import Scope, parse_expression

SCOPE: Scope = {"tp": "integer", "h_2": "integer", "shape": "integers"}
VALUES: dict[str, Any] = {"tp": 4, "h_2": 12, "shape": (7, 0, 3)}
LEAVES = st.one_of(st.integers(0, 20).map(str), st.sampled_from(["tp", "h_2", "shape[0]", "shape[ 2 ]"]))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", " - ", "*", "//", "%"]), inner).map("".join),
        inner.map("({})".format),
        st.tuples(st.sampled_from(["min", "max "]), inner, inner).map(lambda f: f"{f[0]}({f[1]}, {f[2]})"),
        inner.map("shape[{}]".format),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_the_value_is_that_of_the_same_expression_in_python(text: str) -> None:
    """UCP-D-121, UCP-D-126."""
    names = {**VALUES, "min": min, "max": max, "__builtins__": {}, "shape": Items(VALUES["shape"])}
    try:
        expected = eval(text, names)
    except (ZeroDivisionError, IndexError):
        expected = None
    expression = parse_expression(text, SCOPE)
    assert set(expression.names) <= SCOPE.keys()
    try:
        assert expression.value(VALUES) == expected
    except UcpError as refusal:
        # Python divides by less than 0, too.
        if refusal.code != "UCP-E-PATTERN" or (expected is not None and "less than 1" not in refusal.message):
            raise


class Items(tuple[int, ...]):
    """An array that has no items before its first."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        if index < 0:
            raise IndexError
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("10 - 3 - 2", 5),
        ("100 // 7 // 2", 7),
        ("h_2 / tp", 3),
        ("1 - 2", -1),
        ("(1 - 8) // 4", -2),
        ("(1 - 8) % 4", 1),
        ("shape", (7, 0, 3)),
        ("9007199254740991", MAX_INTEGER),
        ("max(shape[1], min(2, tp))", 2),
    ],
)
def test_examples(text: str, value: int | tuple[int, ...]) -> None:
    assert parse_expression(text, SCOPE).value(VALUES) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "+", "1 +", "1 2", "-1", "1 ++ 2", "(1", "1)", "tp[0]", "shape + 1", "shape[0", "shape[]", "x", "min",
     "min(1)", "max(1,2,3)", "min 1, 2", "1.5", "1e3", "2x", "tp.x", "a\tb", "shape(0)", "9007199254740992", "²",
     "tp,tp", "/ 2", "[0]", "1" * 100],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    """UCP-D-121."""
    with pytest.raises(UcpError) as caught:
        parse_expression(text, SCOPE)
    assert caught.value.code == "UCP-E-PATTERN"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tp / 3", "does not divide"),
        ("tp // 0", "less than 1"),
        ("tp % (0 - 1)", "less than 1"),
        ("tp / 0", "less than 1"),
        ("shape[3]", "3 items"),
        ("shape[0 - 1]", "none at -1"),
        ("9007199254740991 + 1", "beyond"),
        ("0 - 9007199254740991 - 1", "beyond"),
        ("9007199254740991 * 9007199254740991", "beyond"),
    ],
)
def test_an_expression_without_a_value_is_refused(text: str, why: str) -> None:
    """UCP-D-126."""
    with pytest.raises(UcpError, match=why) as caught:
        parse_expression(text, SCOPE).value(VALUES)
    assert caught.value.code == "UCP-E-PATTERN"


def test_expressions_are_short_and_flat() -> None:
    """UCP-D-122."""
    assert parse_expression("(" * 32 + "1" + ")" * 32, SCOPE).value({}) == 1
    assert parse_expression("+".join(["1"] * 256), SCOPE).value({}) == 256
    for text in ("(" * 33 + "1" + ")" * 33, "shape[" * 33 + "0" + "]" * 33, "1+" * 256 + "1"):
        with pytest.raises(UcpError) as caught:
            parse_expression(text, SCOPE)
        assert caught.value.code == "UCP-E-LIMIT"


def test_parentheses_one_after_another_are_no_nesting() -> None:
    assert parse_expression("+".join(["(1)"] * 60), SCOPE).value({}) == math.comb(60, 1)
