"""Globs over dotted names (SPEC-PATTERNS): wildcards and captures, matched in linear time.

A glob is parsed into components, a component into segments between its variables. Segments have one extent
wherever they begin, so that the leftmost place of each is as good as any later one: nothing backtracks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from ucpformat.errors import UcpError, error

__all__ = ["Captures", "Glob", "Kind", "is_identifier", "parse_glob"]

Kind = Literal["text", "int", "path"]
Captures = Mapping[str, str | int]

MAX_GLOB: Final = 1024
_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPECIAL: Final = frozenset("*{}\\")
_LONGEST_INTEGER: Final = 15
_KINDS: Final[Mapping[str, Kind]] = {"": "text", ":int": "int", ":path": "path"}


def is_identifier(text: str) -> bool:
    """Return whether ``text`` can name a capture or a parameter: ASCII letters, digits, ``_``, no digit first."""
    return bool(text) and set(text) <= _LETTERS | _DIGITS and text[0] in _LETTERS


@dataclass(frozen=True, slots=True)
class _Integer:
    """A maximal run of decimal digits, captured."""

    name: str


@dataclass(frozen=True, slots=True)
class _Text:
    """Characters of one component: any number where ``name`` is None, else at least one, captured."""

    name: str | None


_Segment = tuple["str | _Integer", ...]


@dataclass(frozen=True, slots=True)
class _Component:
    """``segments[0] variables[0] segments[1] ...``: one more segment than variables; a segment may be empty.

    ``literal`` is what the component has to be, where it has neither wildcard nor capture.
    """

    text: str
    segments: tuple[_Segment, ...]
    variables: tuple[_Text, ...]
    literal: str | None

    def match(self, text: str) -> dict[str, str | int] | None:
        found: dict[str, str | int] = {}
        stop = _end(self.segments[0], text, 0, found)
        if stop is None:
            return None
        last = len(self.variables)
        for index, variable in enumerate(self.variables, 1):
            for position in range(stop + (variable.name is not None), len(text) + 1):
                mine: dict[str, str | int] = {}
                end = _end(self.segments[index], text, position, mine)
                if end is not None and (index < last or end == len(text)):
                    break
            else:
                return None
            if variable.name is not None:
                found[variable.name] = text[stop:position]
            found.update(mine)
            stop = end
        return found if stop == len(text) else None


@dataclass(frozen=True, slots=True)
class _Many:
    """Several components: any number where ``name`` is None, else at least one, captured with their dots."""

    name: str | None

    @property
    def least(self) -> int:
        return 0 if self.name is None else 1


@dataclass(frozen=True, slots=True)
class Glob:
    """A parsed glob. ``captures`` are the names of its captures and their kinds, in order.

    ``runs`` are its components between the ``gaps``, which are of any length: one more run than gaps. Made by
    `parse_glob`.
    """

    text: str
    runs: tuple[tuple[_Component, ...], ...]
    gaps: tuple[_Many, ...]
    captures: tuple[tuple[str, Kind], ...]
    least: tuple[int, ...]
    """How many components the runs and gaps from each run on take at least."""

    @property
    def is_template(self) -> bool:
        """Whether captures alone decide the name: no ``*`` and no ``**``."""
        texts = [variable.name for run in self.runs for component in run for variable in component.variables]
        return None not in (*texts, *(gap.name for gap in self.gaps))

    def match(self, name: str) -> dict[str, str | int] | None:
        """Return the captures where ``name`` matches, each as short as can be, the first one first; else None."""
        return self.match_components(name.split("."))

    def match_components(self, components: Sequence[str]) -> dict[str, str | int] | None:
        """Return `match`, of a name that was split at its dots."""
        count = len(components)
        if count < self.least[0] or (not self.gaps and count > self.least[0]):
            return None
        if self.runs[-1] and (wanted := self.runs[-1][-1].literal) is not None and wanted != components[-1]:
            return None
        found: dict[str, str | int] = {}
        if not _run_matches(self.runs[0], components, 0, found):
            return None
        stop = len(self.runs[0])
        for index, gap in enumerate(self.gaps, 1):
            latest = count - self.least[index]
            is_last = index == len(self.gaps)
            for position in range(latest if is_last else stop + gap.least, latest + 1):
                mine: dict[str, str | int] = {}
                if _run_matches(self.runs[index], components, position, mine):
                    break
            else:
                return None
            if gap.name is not None:
                found[gap.name] = ".".join(components[stop:position])
            found.update(mine)
            stop = position + len(self.runs[index])
        return found

    def fill(self, captures: Captures) -> str:
        """Return the name that has ``captures``; only of a template.

        Raises UCP-E-PATTERN where a value is none that the capture can have.
        """
        parts = [_filled(component, captures) for component in self.runs[0]]
        for gap, run in zip(self.gaps, self.runs[1:], strict=True):
            parts.append(str(captures[gap.name or ""]))
            parts += [_filled(component, captures) for component in run]
        name = ".".join(parts)
        if self.match(name) != {capture: captures[capture] for capture, _ in self.captures}:
            raise error(
                "UCP-E-PATTERN", f"{self.text!r} makes {name!r} of {dict(captures)!r}, and does not lead back"
            )
        return name

    def mismatch(self, name: str) -> tuple[int, str]:
        """Return how many components of a name that does not match are right, and what is wrong with the next one."""
        components = name.split(".")
        first, last = self.runs[0], self.runs[-1]
        head = _agreeing(first, components)
        tail = _agreeing(last[::-1], components[::-1])
        agreed = min(head + tail, len(components), sum(map(len, self.runs)))
        if head < len(first):
            if head == len(components):
                return agreed, f"the name ends before {first[head].text!r}"
            return agreed, f"component {head + 1} is {components[head]!r}, not {first[head].text!r}"
        if not self.gaps:
            return agreed, f"the name goes on behind {components[head - 1]!r}"
        if tail < len(last) and agreed < len(components):
            position = len(components) - tail
            return (
                agreed,
                f"component {position} is {components[position - 1]!r}, not {last[len(last) - 1 - tail].text!r}",
            )
        return agreed, f"what lies between does not fit {self.text!r}"


def _end(segment: _Segment, text: str, start: int, found: dict[str, str | int]) -> int | None:
    """Return where ``segment`` ends if it begins at ``start``, or None; integers go to ``found``."""
    position = start
    for part in segment:
        if isinstance(part, str):
            if not text.startswith(part, position):
                return None
            position += len(part)
            continue
        if position and text[position - 1] in _DIGITS:
            return None
        stop = position
        while stop < len(text) and text[stop] in _DIGITS:
            stop += 1
        digits = text[position:stop]
        if not 0 < len(digits) <= _LONGEST_INTEGER or (digits[0] == "0" and len(digits) > 1):
            return None
        found[part.name] = int(digits)
        position = stop
    return position


def _run_matches(
    run: Sequence[_Component], components: Sequence[str], start: int, found: dict[str, str | int]
) -> bool:
    for position, component in enumerate(run, start):
        if component.literal is not None:
            if component.literal != components[position]:
                return False
        elif (mine := component.match(components[position])) is None:
            return False
        else:
            found.update(mine)
    return True


def _agreeing(run: Sequence[_Component], components: Sequence[str]) -> int:
    agreed = 0
    for component, text in zip(run, components, strict=False):
        if component.match(text) is None:
            break
        agreed += 1
    return agreed


def _filled(component: _Component, captures: Captures) -> str:
    parts: list[str] = []
    for index, segment in enumerate(component.segments):
        if index:
            parts.append(str(captures[component.variables[index - 1].name or ""]))
        parts += [part if isinstance(part, str) else str(captures[part.name]) for part in segment]
    return "".join(parts)


@lru_cache(maxsize=1 << 12)
def parse_glob(text: str) -> Glob:
    """Parse a glob; raises UCP-E-PATTERN where it is none, UCP-E-LIMIT over 1024 characters."""
    if len(text) > MAX_GLOB:
        raise error("UCP-E-LIMIT", f"a glob has at most {MAX_GLOB} characters, not {len(text)}")
    captures: dict[str, Kind] = {}
    runs: list[list[_Component]] = [[]]
    gaps: list[_Many] = []
    for position, component in enumerate(text.split(".")):
        many = _many(component, text, captures)
        if many is None:
            runs[-1].append(_component(component, text, captures))
        elif position and not runs[-1]:
            raise _refusal(text, f"{component!r} follows another of its kind, and which ends where is open")
        else:
            gaps.append(many)
            runs.append([])
    least = [len(runs[-1])]
    for run, gap in zip(runs[-2::-1], gaps[::-1], strict=True):
        least.insert(0, len(run) + gap.least + least[0])
    return Glob(text, tuple(map(tuple, runs)), tuple(gaps), tuple(captures.items()), tuple(least))


def _refusal(text: str, why: str) -> UcpError:
    return error("UCP-E-PATTERN", f"{text[:80]!r} is no glob: {why}")


def _many(component: str, text: str, captures: dict[str, Kind]) -> _Many | None:
    if component == "**":
        return _Many(None)
    if component.startswith("{") and component.endswith(":path}"):
        name = component[1 : -len(":path}")]
        _declare(name, "path", text, captures)
        return _Many(name)
    return None


def _declare(name: str, kind: Kind, text: str, captures: dict[str, Kind]) -> None:
    if not is_identifier(name):
        raise _refusal(text, f"{name!r} does not name a capture: letters, digits and _ do")
    if name in captures:
        raise _refusal(text, f"it has two captures {name!r}")
    captures[name] = kind


def _component(component: str, text: str, captures: dict[str, Kind]) -> _Component:
    segments: list[list[str | _Integer]] = [[]]
    variables: list[_Text] = []
    position = 0
    while position < len(component):
        sign = component[position]
        position += 1
        if sign == "\\":
            if position == len(component) or component[position] not in _SPECIAL:
                raise _refusal(text, "a backslash stands before one of * { } \\ alone")
            _append(segments[-1], component[position])
            position += 1
        elif sign == "*":
            _check_gap(segments, variables, text)
            variables.append(_Text(None))
            segments.append([])
        elif sign == "{":
            stop = component.find("}", position)
            if stop < 0:
                raise _refusal(text, "a brace is not closed in its component")
            name, colon, kind = component[position:stop].partition(":")
            position = stop + 1
            known = _KINDS.get(colon + kind)
            if known is None or known == "path":
                raise _refusal(text, "a capture is {name} or {name:int}, or the whole component {name:path}")
            _declare(name, known, text, captures)
            if known == "int":
                segments[-1].append(_Integer(name))
            else:
                _check_gap(segments, variables, text)
                variables.append(_Text(name))
                segments.append([])
        elif sign == "}":
            raise _refusal(text, "a closing brace has none that opens; write \\}")
        else:
            _append(segments[-1], sign)
    fixed = None
    if not variables and not any(isinstance(part, _Integer) for part in segments[0]):
        fixed = "".join(map(str, segments[0]))
    return _Component(component, tuple(map(tuple, segments)), tuple(variables), fixed)


def _append(segment: list[str | _Integer], sign: str) -> None:
    if segment and isinstance(segment[-1], str):
        segment[-1] += sign
    else:
        segment.append(sign)


def _check_gap(segments: list[list[str | _Integer]], variables: list[_Text], text: str) -> None:
    if variables and not segments[-1]:
        raise _refusal(text, "two wildcards or captures touch, and which ends where is open")
