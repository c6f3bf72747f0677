"""The JSON Schemas of the documents (SPEC 18, level *structure*), packaged; nothing is ever fetched."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from ucpformat.errors import Problem
from ucpformat.jsonio import pointer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from jsonschema.protocols import Validator
    from referencing.jsonschema import Schema, SchemaRegistry

    from ucpformat.jsonio import JsonValue

__all__ = ["BASE", "problems", "registry", "schema_names", "validator"]

BASE: Final = "https://ucpformat.org/schema/draft/"
_SUFFIX: Final = ".schema.json"
_LONGEST_MESSAGE: Final = 240
_MOST_PROBLEMS: Final = 1000
"""Problems reported of one document: each takes a thousand times the memory of a wrong byte."""
_JSON_TYPES: Final = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


_DEFINITION: Final = "#/$defs/"
_Demands: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
_NO_DEMANDS: Final[_Demands] = ((), ())


def _any_of(
    validator: Validator, alternatives: list[Schema], instance: Any, schema: Schema
) -> Iterator[ValidationError]:
    """Say that no alternative fits, and nothing of each: jsonschema keeps every error of every alternative below.

    Alternatives whose type or required members rule them out are not tried; without that, each number of a document
    is offered to eighteen schemas.
    """
    for alternative in alternatives:
        type_names, required = _demands().get(id(alternative), _NO_DEMANDS)
        if type_names and not any(validator.is_type(instance, name) for name in type_names):
            continue
        if required and isinstance(instance, dict) and not all(name in instance for name in required):
            continue
        if validator.evolve(schema=alternative).is_valid(instance):
            return
    yield ValidationError("none of the alternatives fits")


_Validator: Final[type[Validator]] = extend(Draft202012Validator, {"anyOf": _any_of})  # type: ignore[no-untyped-call]


def _folder() -> Traversable:
    """Return the schemas inside an installed package, or beside it in a checkout."""
    packaged = files("ucpformat") / "_schema" / "draft"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "schema" / "draft"


@cache
def _schemas() -> dict[str, Schema]:
    """Return all schemas by name, without ``$schema``, where jsonschema would go on without `_any_of` below it."""
    found: dict[str, Schema] = {}
    for entry in sorted(_folder().iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(_SUFFIX):
            schema = json.loads(entry.read_text(encoding="utf-8"))
            del schema["$schema"]
            found[entry.name.removesuffix(_SUFFIX)] = schema
    return found


@cache
def _demands() -> dict[int, _Demands]:
    """Return types and required members of each alternative of each ``anyOf``, by the alternative's identity."""
    found: dict[int, _Demands] = {}

    def visit(document: Schema, schema: Any) -> None:
        if isinstance(schema, list):
            for element in schema:
                visit(document, element)
        elif isinstance(schema, dict):
            for alternative in schema.get("anyOf", ()):
                found[id(alternative)] = _demands_of(document, alternative)
            for member in schema.values():
                visit(document, member)

    for document in _schemas().values():
        visit(document, document)
    return found


def _demands_of(document: Any, alternative: Any) -> _Demands:
    reference = alternative.get("$ref", "")
    if reference.startswith(_DEFINITION):
        alternative = document["$defs"][reference.removeprefix(_DEFINITION)]
    type_names = alternative.get("type", ())
    return (
        (type_names,) if isinstance(type_names, str) else tuple(type_names),
        tuple(alternative.get("required", ())),
    )


@cache
def registry() -> SchemaRegistry:
    """Return all schemas by their ``$id``; a reference to anything else fails."""
    empty: SchemaRegistry = Registry()
    return empty.with_resources(
        (f"{BASE}{name}{_SUFFIX}", DRAFT202012.create_resource(schema)) for name, schema in _schemas().items()
    )


def schema_names() -> tuple[str, ...]:
    """Return names of the schemas, sorted: ``atom``, ``defs``, ``envelope``, ..."""
    return tuple(_schemas())


@cache
def validator(name: str, definition: str = "") -> Validator:
    """Return the validator of the schema ``name``, or of its ``$defs`` entry ``definition``; KeyError if unknown."""
    schema = _schemas()[name]
    if definition:
        schema = {"$ref": f"{BASE}{name}{_SUFFIX}#/$defs/{definition}"}
    return _Validator(schema, registry=registry())


def problems(name: str, value: JsonValue, at: str) -> Iterator[Problem]:
    """Yield what the schema ``name`` has against ``value``, in order of place; ``at`` is the document's place.

    The first thousand problems are enough: a document of zeros where objects belong has one for every second byte.

    The code is ``UCP-E-FORMAT`` for the envelope, ``UCP-E-VALUE`` for tagged values wherever they stand, and
    ``UCP-E-SCHEMA`` otherwise.
    """
    found = sorted(islice(validator(name).iter_errors(value), _MOST_PROBLEMS), key=_order)
    for fault in found:
        code = _code(name, tuple(fault.absolute_path))
        here = pointer(at, *fault.absolute_path)
        if fault.validator == "additionalProperties" and fault.validator_value is False:
            for member in _superfluous(fault):
                yield Problem(code, pointer(here, member), f"this object has no member {member!r}")
        else:
            yield Problem(code, here, _message(fault))


def _order(fault: ValidationError) -> tuple[tuple[bool, int | str], ...]:
    return tuple((type(step) is str, step) for step in fault.absolute_path)


def _code(name: str, path: tuple[int | str, ...]) -> str:
    if name == "envelope":
        return "UCP-E-FORMAT"
    in_values = path[:1] == ("values",) and len(path) > 1
    in_options = path[:1] == ("optimizers",) and len(path) > 5 and path[4] == "options"
    if name == "update-log-batch":
        behind = path[2:] if path[:1] == ("steps",) else path
        in_values = in_values or (behind[:1] == ("options",) and len(behind) > 2)
    if (
        name == "value"
        or (name in ("state", "update-log-batch") and in_values)
        or (name == "state" and in_options)
    ):
        return "UCP-E-VALUE"
    return "UCP-E-SCHEMA"


def _superfluous(fault: ValidationError) -> list[str]:
    found: Any = fault.instance
    known = fault.schema.get("properties", {}) if isinstance(fault.schema, dict) else {}
    return [member for member in found if member not in known]


def _message(fault: ValidationError) -> str:
    """Return the validator's words, except where they would repeat a whole document."""
    keyword: Any = fault.validator
    wanted: Any = fault.validator_value
    found: Any = fault.instance
    match keyword:
        case "type":
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return f"expected {kinds}, not {_JSON_TYPES[type(found)]}"
        case "required":
            missing = next(member for member in wanted if fault.message.startswith(repr(member)))
            return f"the member {missing!r} is missing"
        case "enum" | "const":
            choices = ", ".join(json.dumps(choice) for choice in (wanted if keyword == "enum" else [wanted]))
            return f"must be one of {choices}, not {_short(json.dumps(found, ensure_ascii=False))}"
        case "minItems" | "minProperties":
            return f"at least {wanted} needed, not {len(found)}"
        case "anyOf":
            return f"no kind of value looks like this: {_short(json.dumps(found, ensure_ascii=False))}"
        case "not":
            return "must not be here, because of a member beside it"
        case _:
            return _short(fault.message)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}..."
