"""Pattern documents (SPEC-PATTERNS): ordered rules from names of atoms and slots to layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ucpformat.errors import Problem, UcpError, error
from ucpformat.jsonio import pointer
from ucpformat.model.fields import array, integer, members, raise_first, relocated, string, wrong_type
from ucpformat.model.standalone import parse_standalone, standalone_members
from ucpformat.patterns.expression import Scope
from ucpformat.patterns.glob import Captures, Glob, parse_glob
from ucpformat.patterns.parameters import Parameters
from ucpformat.patterns.template import RESERVED_NAMES, Template, parse_template

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["KIND", "LayoutTemplate", "PatternRule", "Patterns", "parse_patterns", "read_globs"]

KIND: Final = "patterns"
_REQUIRED: Final = frozenset({"meshes", "rules"})
_OPTIONAL: Final = frozenset({"parameters", "description"})
_RULE_OPTIONAL: Final = frozenset({"slots", "description"})
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class LayoutTemplate:
    """A layout in whose steps expressions may stand for integers; ``mesh`` is an index of the document's."""

    mesh: int
    steps: Template
    at: str


@dataclass(frozen=True, slots=True)
class PatternRule:
    """A rule: atoms that match one of ``match`` and slots that match one of ``slots`` have this layout.

    No ``slots`` means any slot; no layout, that matching slots have none and are left alone.
    """

    match: tuple[Glob, ...]
    slots: tuple[Glob, ...] | None
    layout: LayoutTemplate | None
    at: str

    def captures(self, name: str) -> Captures | None:
        """Return the captures of the first glob that ``name`` matches, or None."""
        components = name.split(".")
        for glob in self.match:
            found = glob.match_components(components)
            if found is not None:
                return found
        return None

    def takes_slot(self, slot: str) -> bool:
        """Return whether the rule is about slots of this name."""
        return self.slots is None or any(glob.match(slot) is not None for glob in self.slots)


@dataclass(frozen=True, slots=True)
class Patterns:
    """A pattern document. ``document`` is the JSON that it was read from, `meshes` templates of mesh objects."""

    parameters: Parameters
    meshes: tuple[Template, ...]
    rules: tuple[PatternRule, ...]
    document: dict[str, Any]
    at: str

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Patterns:
        """Read a pattern document that lies at the place ``at``.

        Raises UCP-E-FORMAT, UCP-E-VERSION, UCP-E-SCHEMA, then the first by precedence of UCP-E-LIMIT,
        UCP-E-REFERENCE, UCP-E-FEATURE-SET, UCP-E-PATTERN.
        """
        faults: list[Problem] = []
        found = standalone_members(value, KIND, _REQUIRED, _OPTIONAL, faults, at=at)
        string(found.get("description", ""), pointer(at, "description"))
        parameters = Parameters.from_json(found.get("parameters", []), faults, at=pointer(at, "parameters"))
        here = pointer(at, "meshes")
        meshes = tuple(
            _mesh(mesh, parameters.scope, faults, pointer(here, place))
            for place, mesh in enumerate(array(found["meshes"], here))
        )
        here = pointer(at, "rules")
        rules = tuple(
            _rule(rule, parameters.scope, len(meshes), faults, pointer(here, place))
            for place, rule in enumerate(array(found["rules"], here))
        )
        raise_first(faults)
        return cls(parameters, meshes, rules, found, at)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return self.document


def parse_patterns(data: bytes, *, at: str = "patterns.json") -> Patterns:
    """Parse the bytes of a pattern document; raises as `parse_standalone` and `Patterns.from_json`."""
    return Patterns.from_json(parse_standalone(data, at=at), at=at)


def _mesh(value: JsonValue, parameters: Scope, faults: list[Problem], at: str) -> Template:
    if type(value) is not dict:
        raise wrong_type(value, "an object", at)
    if "axes" not in value:
        raise error("UCP-E-SCHEMA", "required members are missing: axes", at=at)
    return parse_template(value, parameters, faults, at=at)


def _rule(value: JsonValue, parameters: Scope, meshes: int, faults: list[Problem], at: str) -> PatternRule:
    found = members(value, frozenset({"match", "layout"}), _RULE_OPTIONAL, at)
    string(found.get("description", ""), pointer(at, "description"))
    match = read_globs(found["match"], faults, at=pointer(at, "match"))
    slots = read_globs(found["slots"], faults, at=pointer(at, "slots")) if "slots" in found else None
    scope = _scope(match, parameters, faults, pointer(at, "match"))
    layout = None
    if found["layout"] is not None:
        layout = _layout(found["layout"], scope, meshes, faults, pointer(at, "layout"))
    return PatternRule(match, slots, layout, at)


def _layout(value: JsonValue, scope: Scope, meshes: int, faults: list[Problem], at: str) -> LayoutTemplate:
    found = members(value, frozenset({"mesh", "steps"}), _NONE, at)
    mesh = integer(found["mesh"], pointer(at, "mesh"))
    if mesh >= meshes:
        message = f"there are {meshes} meshes, and none with the index {mesh}"
        faults.append(Problem("UCP-E-REFERENCE", pointer(at, "mesh"), message))
    here = pointer(at, "steps")
    for place, step in enumerate(array(found["steps"], here)):
        if type(step) is not dict:
            raise wrong_type(step, "an object", pointer(here, place))
        if "kind" not in step:
            raise error("UCP-E-SCHEMA", "a step has the member 'kind'", at=pointer(here, place))
        string(step["kind"], pointer(here, place, "kind"))
    return LayoutTemplate(mesh, parse_template(found["steps"], scope, faults, at=here), at)


def read_globs(value: JsonValue, faults: list[Problem], *, at: str) -> tuple[Glob, ...]:
    """Read a glob or an array of globs; raises UCP-E-SCHEMA. Those that are none go to ``faults``."""
    if isinstance(value, str):
        return (_glob(value, faults, at),)
    texts = array(value, at, least=1)
    return tuple(
        _glob(string(text, pointer(at, place)), faults, pointer(at, place))
        for place, text in enumerate(texts)
    )


def _glob(text: str, faults: list[Problem], at: str) -> Glob:
    try:
        return parse_glob(text)
    except UcpError as refusal:
        faults.append(relocated(refusal, at).problem())
        return parse_glob("**")


def _scope(match: tuple[Glob, ...], parameters: Scope, faults: list[Problem], at: str) -> Scope:
    """Return what expressions of a rule may use: parameters, ``shape``, and integers that all its globs capture."""
    for name in {name for glob in match for name, _ in glob.captures}:
        if name in parameters or name in RESERVED_NAMES:
            message = f"a capture cannot be called {name!r}: that name is taken"
            faults.append(Problem("UCP-E-PATTERN", at, message))
    common = [
        name
        for name, kind in match[0].captures
        if kind == "int" and all((name, kind) in glob.captures for glob in match)
    ]
    return {**parameters, **dict.fromkeys(common, "integer"), "shape": "integers"}
