"""Patterns resolved (SPEC-PATTERNS): the layout of every slot of every atom, or an error that says why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ucpformat.errors import UcpError, error
from ucpformat.geometry import Layout, Mesh, Only, Step
from ucpformat.jsonio import pointer
from ucpformat.model.fields import relocated
from ucpformat.model.layout_json import MeshRecord, step_from_json
from ucpformat.patterns.nearest import Candidate, unmatched

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.atom import Atom
    from ucpformat.patterns.document import LayoutTemplate, PatternRule, Patterns
    from ucpformat.patterns.expression import Environment, Value
    from ucpformat.patterns.glob import Captures
    from ucpformat.patterns.parameters import Settings

__all__ = ["AtomShapes", "resolve", "slot_shapes"]

AtomShapes = Mapping[str, Mapping[str, Sequence[int]]]
"""Name of an atom to name of a slot to its logical shape, in elements."""


def slot_shapes(atoms: Iterable[Atom]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the names and shapes that `resolve` takes, of the atoms of a checkpoint."""
    return {atom.name: {slot.name: slot.shape for slot in atom.slots} for atom in atoms}


def resolve(
    patterns: Patterns, atoms: AtomShapes, parameters: Settings | None = None
) -> dict[tuple[str, str], Layout]:
    """Return the layout of every slot: that of the first rule that matches atom and slot, by ``(atom, slot)``.

    A slot whose rule says ``null`` is left out. Equal layouts are one object.

    Raises UCP-E-UNMATCHED: no rule matches; the nearest rules are named, with what keeps each from matching.
    Raises UCP-E-PATTERN: a parameter is missing or superfluous, or an expression has no value.
    Raises UCP-E-SCHEMA, UCP-E-LAYOUT, UCP-E-LIMIT: a rule makes steps that are none.
    """
    resolver = _Resolver(patterns, {} if parameters is None else parameters)
    resolved: dict[tuple[str, str], Layout] = {}
    missing: list[tuple[str, str]] = []
    for name, slots in atoms.items():
        for slot, shape in slots.items():
            rule = resolver.rule(name, slot)
            if rule is None:
                missing.append((name, slot))
            elif rule[0].layout is not None:
                resolved[name, slot] = resolver.layout(*rule, name, tuple(shape))
    if missing:
        candidates = [
            Candidate(f"rule {place}", rule.match, rule.slots) for place, rule in enumerate(patterns.rules)
        ]
        raise unmatched(candidates, missing, pointer(patterns.at, "rules"))
    return resolved


class _Resolver:
    """One use of patterns: parameters have values, and what rules made is remembered."""

    def __init__(self, patterns: Patterns, settings: Settings) -> None:
        self.rules = patterns.rules
        self.parameters = patterns.parameters
        self.settings = settings
        try:
            self.environment: Environment = patterns.parameters.environment(settings)
        except UcpError as refusal:
            raise relocated(refusal, patterns.at) if not refusal.at else refusal from None
        self.meshes = [
            _mesh(template.fill(self.environment), pointer(patterns.at, "meshes", place))
            for place, template in enumerate(patterns.meshes)
        ]
        self.candidates: dict[str, list[tuple[PatternRule, Captures]]] = {}
        self.made: dict[tuple[str, tuple[Value, ...]], Layout] = {}
        self.interned: dict[Layout, Layout] = {}

    def rule(self, name: str, slot: str) -> tuple[PatternRule, Captures] | None:
        for rule, captures in self._matching(name):
            if rule.takes_slot(slot):
                return rule, captures
        return None

    def _matching(self, name: str) -> list[tuple[PatternRule, Captures]]:
        """Return the rules whose globs match ``name``, up to the first for all slots; kept for the next slot."""
        found = self.candidates.get(name)
        if found is None:
            found = []
            for rule in self.rules:
                captures = rule.captures(name)
                if captures is not None:
                    found.append((rule, captures))
                    if rule.slots is None:
                        break
            self.candidates = {name: found}
        return found

    def layout(self, rule: PatternRule, captures: Captures, name: str, shape: tuple[int, ...]) -> Layout:
        template = cast("LayoutTemplate", rule.layout)
        integers = {key: value for key, value in captures.items() if isinstance(value, int)}
        environment: Environment = {**self.environment, **integers, "shape": shape}
        # Parameters are the same for all, and may be long.
        varying = (used for used in template.steps.names if used not in self.environment)
        key = rule.at, tuple(environment[used] for used in varying)
        layout = self.made.get(key)
        if layout is None:
            try:
                layout = self._make(template, environment)
            except UcpError as refusal:
                message = f"{refusal.message} (for {name!r} of shape {list(shape)}){self._assumed(template)}"
                raise error(refusal.code, message, at=refusal.at) from None
            layout = self.made[key] = self.interned.setdefault(layout, layout)
        return layout

    def _assumed(self, template: LayoutTemplate) -> str:
        """Return the parameters of a layout that were not given, which are often what is wrong."""
        found = [
            f"{entry.name}={value}" + (f" ({entry.description})" if entry.description else "")
            for entry in self.parameters.assumed(template.steps.names, self.settings)
            if isinstance(value := self.environment[entry.name], int)
        ]
        return f"; not given, and at their defaults, are {', '.join(found)}" if found else ""

    def _make(self, template: LayoutTemplate, environment: Environment) -> Layout:
        values = cast("list[JsonValue]", template.steps.fill(environment))
        steps = [_step(value, at=pointer(template.at, "steps", place)) for place, value in enumerate(values)]
        try:
            return Layout(self.meshes[template.mesh], tuple(steps))
        except UcpError as refusal:
            raise relocated(refusal, template.at) from None


def _step(value: JsonValue, *, at: str) -> Step:
    """Return a step; positions of an `Only` are sorted and unique: the first and last stage may be one."""
    step = step_from_json(value, at=at)
    return Only(step.axis, tuple(sorted(set(step.coordinates)))) if isinstance(step, Only) else step


def _mesh(value: JsonValue, at: str) -> Mesh:
    record = MeshRecord.from_json(value, at=at)
    try:
        return Mesh(record.axes, record.ranks)
    except UcpError as refusal:
        raise relocated(refusal, at) from None
