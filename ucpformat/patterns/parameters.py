"""Parameters of patterns and atom maps (SPEC-PATTERNS): named integers that the user of the document gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from ucpformat.errors import Problem, error
from ucpformat.jsonio import MAX_INTEGER, pointer
from ucpformat.model.fields import array, choice, members, string
from ucpformat.patterns.expression import Environment, Scope, Value
from ucpformat.patterns.glob import is_identifier
from ucpformat.patterns.template import RESERVED_NAMES, Template, parse_template

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["Parameter", "Parameters", "Settings"]

Settings = Mapping[str, "int | Sequence[int]"]
"""Values of parameters by name."""

_TYPES: Final = ("integer", "integers")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name, whether it is an array, what it is unless given, and what it means."""

    name: str
    type: Literal["integer", "integers"]
    default: Template | None
    description: str
    at: str


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a document, in order; a default may use those before it."""

    entries: tuple[Parameter, ...]

    @classmethod
    def from_json(cls, value: JsonValue, faults: list[Problem], *, at: str) -> Parameters:
        """Read the array ``parameters``; raises UCP-E-SCHEMA. Names and expressions go to ``faults``."""
        entries: list[Parameter] = []
        scope: dict[str, Literal["integer", "integers"]] = {}
        for place, item in enumerate(array(value, at)):
            here = pointer(at, place)
            found = members(item, frozenset({"name"}), frozenset({"type", "default", "description"}), here)
            name = string(found["name"], pointer(here, "name"))
            if not is_identifier(name) or name in RESERVED_NAMES or name in scope:
                message = (
                    f"{name!r} cannot name a parameter: letters, digits and _ do, each name once, and not "
                )
                message += ", ".join(sorted(RESERVED_NAMES))
                faults.append(Problem("UCP-E-PATTERN", pointer(here, "name"), message))
            kind = cast(
                "Literal['integer', 'integers']",
                choice(found.get("type", "integer"), _TYPES, pointer(here, "type")),
            )
            default = (
                parse_template(found["default"], scope, faults, at=pointer(here, "default"))
                if "default" in found
                else None
            )
            description = string(found.get("description", ""), pointer(here, "description"))
            entries.append(Parameter(name, kind, default, description, here))
            scope[name] = kind
        return cls(tuple(entries))

    @property
    def scope(self) -> Scope:
        """What each name stands for."""
        return {entry.name: entry.type for entry in self.entries}

    def assumed(self, names: Iterable[str], settings: Settings) -> list[Parameter]:
        """Return the parameters behind ``names`` that are at their defaults because ``settings`` does not give them."""
        entries = {entry.name: entry for entry in self.entries}
        found: dict[str, Parameter] = {}
        pending = list(names)
        while pending:
            entry = entries.get(pending.pop())
            if entry is None or entry.name in settings or entry.name in found or entry.default is None:
                continue
            found[entry.name] = entry
            pending += entry.default.names
        return sorted(found.values(), key=lambda entry: entry.name)

    def environment(self, settings: Settings) -> Environment:
        """Return the values of all parameters: those of ``settings``, and defaults for the others.

        Raises UCP-E-PATTERN where a value is missing, superfluous or of the wrong type.
        """
        superfluous = sorted(settings.keys() - self.scope.keys())
        if superfluous:
            known = ", ".join(entry.name for entry in self.entries) or "none"
            raise error("UCP-E-PATTERN", f"there is no parameter {superfluous[0]!r}; there are: {known}")
        found: dict[str, Value] = {}
        for entry in self.entries:
            if entry.name in settings:
                value: object = settings[entry.name]
            elif entry.default is not None:
                value = entry.default.fill(found)
            else:
                about = f" ({entry.description})" if entry.description else ""
                raise error(
                    "UCP-E-PATTERN", f"the parameter {entry.name!r}{about} needs a value", at=entry.at
                )
            found[entry.name] = _checked(entry, value)
        return found


def _checked(entry: Parameter, value: object) -> Value:
    if entry.type == "integer" and _is_integer(value):
        return cast("int", value)
    if entry.type == "integers" and isinstance(value, Sequence) and _are_integers(value):
        return tuple(value)
    wanted = "an integer" if entry.type == "integer" else "an array of integers"
    raise error(
        "UCP-E-PATTERN",
        f"the parameter {entry.name!r} is {wanted} from 0 to 2^53-1, not {value!r}",
        at=entry.at,
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INTEGER


def _are_integers(values: Iterable[object]) -> bool:
    return all(map(_is_integer, values))
