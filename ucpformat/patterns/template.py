"""Templates (SPEC-PATTERNS): JSON in which a string that begins with ``=`` is an expression.

An object with the member ``each`` is an array made item by item. Everything else stands for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem, UcpError, error
from ucpformat.jsonio import pointer
from ucpformat.model.fields import members, relocated, string, wrong_type
from ucpformat.patterns.expression import Environment, Expression, Scope, parse_expression
from ucpformat.patterns.glob import is_identifier

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["MAX_ITEMS", "RESERVED_NAMES", "Template", "parse_template"]

MAX_ITEMS: Final = 1 << 20
"""How many items the ``each`` of one template may make."""
RESERVED_NAMES: Final = frozenset({"min", "max", "shape"})
_MARK: Final = "="
_EACH: Final = frozenset({"each", "below", "item"})
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class _Each:
    """``item`` for every value of ``index`` from 0 to below ``below``."""

    index: str
    below: _Node
    item: _Node
    at: str


@dataclass(frozen=True, slots=True)
class _Literal:
    value: JsonValue


@dataclass(frozen=True, slots=True)
class _Computed:
    expression: Expression
    at: str


_Node = _Literal | _Computed | _Each | tuple["_Node", ...] | Mapping[str, "_Node"]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template; ``names`` are those of its scope that it uses, sorted. Made by `parse_template`."""

    node: _Node
    names: tuple[str, ...]

    def fill(self, environment: Environment) -> JsonValue:
        """Return the JSON value with every expression and ``each`` replaced.

        Raises UCP-E-PATTERN where an expression has no value;
        UCP-E-LIMIT where more than `MAX_ITEMS` items would be made.
        """
        return _Filling().fill(self.node, environment)


class _Filling:
    def __init__(self) -> None:
        self.items = 0

    def fill(self, node: _Node, environment: Environment) -> JsonValue:
        match node:
            case _Literal(value):
                return value
            case _Computed(expression, at):
                try:
                    found = expression.value(environment)
                except UcpError as refusal:
                    raise relocated(refusal, at) from None
                return list(found) if isinstance(found, tuple) else found
            case _Each(index, below, item, at):
                count = self.fill(below, environment)
                if type(count) is not int or count < 0:
                    raise error(
                        "UCP-E-PATTERN", f"'below' has to be an integer from 0 on, not {count!r}", at=at
                    )
                self.items += count
                if self.items > MAX_ITEMS:
                    raise error("UCP-E-LIMIT", f"a template makes at most {MAX_ITEMS} items", at=at)
                return [self.fill(item, {**environment, index: place}) for place in range(count)]
            case tuple():
                return [self.fill(item, environment) for item in node]
            case _:
                return {name: self.fill(item, environment) for name, item in node.items()}


def parse_template(value: JsonValue, scope: Scope, faults: list[Problem], *, at: str) -> Template:
    """Parse a template at the place ``at`` whose expressions use the names of ``scope``.

    Expressions that are none go to ``faults``. Raises UCP-E-SCHEMA for members that are no template.
    """
    names: set[str] = set()
    node = _Parser(names, faults).node(value, scope, at)
    return Template(node, tuple(sorted(names & scope.keys())))


@dataclass(frozen=True, slots=True)
class _Parser:
    names: set[str]
    faults: list[Problem]

    def node(self, value: JsonValue, scope: Scope, at: str) -> _Node:
        match value:
            case str():
                return self._text(value, scope, at)
            case list():
                nodes = tuple(self.node(item, scope, pointer(at, place)) for place, item in enumerate(value))
                return _Literal(value) if all(isinstance(node, _Literal) for node in nodes) else nodes
            case dict() if "each" in value:
                return self._each(value, scope, at)
            case dict():
                fields = {name: self.node(item, scope, pointer(at, name)) for name, item in value.items()}
                return (
                    _Literal(value) if all(isinstance(node, _Literal) for node in fields.values()) else fields
                )
            case float() | bool():
                raise wrong_type(value, "an integer, a string, an array, an object or null", at)
            case _:
                return _Literal(value)

    def _text(self, text: str, scope: Scope, at: str) -> _Node:
        if not text.startswith(_MARK):
            return _Literal(text)
        try:
            expression = parse_expression(text.removeprefix(_MARK), scope)
        except UcpError as refusal:
            self.faults.append(relocated(refusal, at).problem())
            return _Literal(0)
        self.names.update(expression.names)
        return _Computed(expression, at)

    def _each(self, value: JsonValue, scope: Scope, at: str) -> _Each:
        found = members(value, _EACH, _NONE, at)
        index = string(found["each"], pointer(at, "each"))
        if not is_identifier(index) or index in scope or index in RESERVED_NAMES:
            message = f"{index!r} cannot name an index: take letters, digits and _, and a name not used yet"
            self.faults.append(Problem("UCP-E-PATTERN", pointer(at, "each"), message))
        below = self.node(found["below"], scope, pointer(at, "below"))
        inner: Scope = {**scope, index: "integer"}
        return _Each(index, below, self.node(found["item"], inner, pointer(at, "item")), at)
