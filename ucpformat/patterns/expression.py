"""Integer expressions over named values (SPEC-PATTERNS): the only arithmetic of patterns and atom maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ucpformat.errors import UcpError, error
from ucpformat.jsonio import MAX_INTEGER

__all__ = ["Environment", "Expression", "Scope", "Value", "parse_expression"]

Value = int | tuple[int, ...]
Environment = Mapping[str, Value]
Scope = Mapping[str, Literal["integer", "integers"]]
"""What each name stands for that an expression may use."""

MAX_EXPRESSION: Final = 512
MAX_PARENTHESES: Final = 32
_FUNCTIONS: Final[Mapping[str, Callable[[int, int], int]]] = {"min": min, "max": max}
_BLANK: Final = " "
_DIGITS: Final = frozenset("0123456789")
_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")


@dataclass(frozen=True, slots=True)
class _Name:
    name: str


@dataclass(frozen=True, slots=True)
class _Item:
    name: str
    index: _Node


@dataclass(frozen=True, slots=True)
class _Operation:
    operator: str
    left: _Node
    right: _Node


_Node = int | _Name | _Item | _Operation


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; ``names`` are those that it uses, sorted. Made by `parse_expression`."""

    text: str
    node: _Node
    names: tuple[str, ...]

    def value(self, environment: Environment) -> Value:
        """Return its value, an integer unless it is the name of an array alone.

        Raises UCP-E-PATTERN: a division by less than 1 or with a remainder, an index outside its array, a
        result beyond 2^53-1.
        """
        if isinstance(self.node, _Name):
            return environment[self.node.name]
        return self._value(self.node, environment)

    def _value(self, node: _Node, environment: Environment) -> int:
        match node:
            case int():
                return node
            case _Name(name):
                found = environment[name]
                assert isinstance(found, int)  # noqa: S101  # the parser has seen to it
                return found
            case _Item(name, index):
                return self._item(name, self._value(index, environment), environment)
            case _Operation(operator, left, right):
                return self._result(operator, self._value(left, environment), self._value(right, environment))

    def _item(self, name: str, index: int, environment: Environment) -> int:
        items = environment[name]
        assert isinstance(items, tuple)  # noqa: S101  # the parser has seen to it
        if not 0 <= index < len(items):
            raise self._refusal(f"{name} has {len(items)} items, and none at {index}")
        return items[index]

    def _result(self, operator: str, left: int, right: int) -> int:
        if operator in ("/", "//", "%") and right < 1:
            raise self._refusal(f"the divisor {right} is less than 1")
        match operator:
            case "+":
                found = left + right
            case "-":
                found = left - right
            case "*":
                found = left * right
            case "/":
                found, rest = divmod(left, right)
                if rest:
                    raise self._refusal(f"{right} does not divide {left}")
            case "//":
                found = left // right
            case "%":
                found = left % right
            case _:
                found = _FUNCTIONS[operator](left, right)
        if abs(found) > MAX_INTEGER:
            raise self._refusal("a result is beyond 2^53-1")
        return found

    def _refusal(self, why: str) -> UcpError:
        return error("UCP-E-PATTERN", f"{self.text!r} has no value: {why}")


def parse_expression(text: str, scope: Scope) -> Expression:
    """Parse an expression whose names are those of ``scope``.

    Raises UCP-E-PATTERN where it is none or a name is unknown or used as what it is not; UCP-E-LIMIT over 512
    characters or 32 levels of parentheses and brackets.
    """
    if len(text) > MAX_EXPRESSION:
        raise error("UCP-E-LIMIT", f"an expression has at most {MAX_EXPRESSION} characters, not {len(text)}")
    parser = _Parser(text, scope)
    node = parser.whole()
    return Expression(text, node, tuple(sorted(parser.names)))


class _Parser:
    """Recursive descent; one token of look-ahead."""

    def __init__(self, text: str, scope: Scope) -> None:
        self.text = text
        self.scope = scope
        self.names: set[str] = set()
        self.tokens = self._tokens()
        self.position = 0
        self.depth = 0

    def whole(self) -> _Node:
        first = self._peek()
        if len(self.tokens) == 1 and self.scope.get(first) == "integers":
            self.names.add(first)
            return _Name(first)
        node = self._sum()
        if self._peek():
            raise self._refusal(f"{self._peek()!r} is not expected")
        return node

    def _tokens(self) -> list[str]:
        found: list[str] = []
        position = 0
        while position < len(self.text):
            start = position
            sign = self.text[position]
            position += 1
            if sign == _BLANK:
                continue
            if sign in _WORD:
                while position < len(self.text) and self.text[position] in _WORD:
                    position += 1
            elif sign == "/" and self.text.startswith("/", position):
                position += 1
            elif sign not in "+-*/%()[],":
                raise self._refusal(f"{sign!r} is no part of expressions")
            found.append(self.text[start:position])
        return found

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if not token or (wanted and token != wanted):
            raise self._refusal(f"{wanted or 'a value'} is missing" + (f" before {token!r}" if token else ""))
        self.position += 1
        return token

    def _sum(self) -> _Node:
        node = self._product()
        while self._peek() in ("+", "-"):
            operator = self._take()
            node = _Operation(operator, node, self._product())
        return node

    def _product(self) -> _Node:
        node = self._factor()
        while self._peek() in ("*", "/", "//", "%"):
            operator = self._take()
            node = _Operation(operator, node, self._factor())
        return node

    def _factor(self) -> _Node:
        word = self._take()
        if word == "(":
            return self._nested(")")
        if word[0] in _DIGITS:
            return self._number(word)
        if word[0] not in _WORD:
            raise self._refusal(f"a value is missing before {word!r}")
        if word in _FUNCTIONS:
            self._take("(")
            left = self._nested(",")
            return _Operation(word, left, self._nested(")"))
        return self._named(word)

    def _number(self, digits: str) -> int:
        if not set(digits) <= _DIGITS or len(digits) > len(str(MAX_INTEGER)) or int(digits) > MAX_INTEGER:
            raise self._refusal(f"{digits!r} is no integer up to 2^53-1")
        return int(digits)

    def _named(self, name: str) -> _Node:
        kind = self.scope.get(name)
        if kind is None:
            known = ", ".join(sorted(self.scope))
            raise self._refusal(f"nothing here is called {name!r}; known are {known}")
        self.names.add(name)
        if kind == "integer":
            return _Name(name)
        if self._peek() != "[":
            raise self._refusal(f"{name} is an array: take an item of it, {name}[0]")
        self._take("[")
        return _Item(name, self._nested("]"))

    def _nested(self, closing: str) -> _Node:
        self.depth += 1
        if self.depth > MAX_PARENTHESES:
            raise error("UCP-E-LIMIT", f"an expression nests at most {MAX_PARENTHESES} deep")
        node = self._sum()
        self._take(closing)
        self.depth -= 1
        return node

    def _refusal(self, why: str) -> UcpError:
        return error("UCP-E-PATTERN", f"{self.text[:80]!r} is no expression: {why}")
