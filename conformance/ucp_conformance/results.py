"""Results of checks: outcomes, expected failures, and what an implementation earns by them (SPEC section 6)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ucp_conformance.profiles import PROFILES

__all__ = [
    "BEYOND",
    "COMPRESSORS",
    "LEVELS",
    "OPTIONAL",
    "ROLES",
    "Result",
    "apply_expected",
    "badge",
    "classes",
    "read_expected",
]

ROLES: Final = ("validator", "reader", "writer", "rewriter")
LEVELS: Final = ("inspect", "dense", "reshard", "full")
COMPRESSORS: Final = ("zstd", "blosc")
OPTIONAL: Final = (
    *COMPRESSORS,
    "incremental",
    "row-overwrite",
    "weight-versions",
    "process-images",
    "update-log",
)
BEYOND: Final = tuple(profile for profile in PROFILES if profile != "core")
"""Profiles that an implementation below level Full claims by name."""
BAD: Final = frozenset({"fail", "xpass", "crash", "timeout", "protocol"})
"""Outcomes that make a run fail."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one check of one implementation. ``other`` is the partner of a generated case."""

    id: str
    driver: str
    role: str
    level: str
    outcome: str
    requirements: Sequence[str] = ()
    features: Sequence[str] = ()
    profiles: Sequence[str] = ()
    ms: float = 0.0
    detail: str = ""
    stderr: str = ""
    other: str = ""
    case: dict[str, Any] | None = field(default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the object of a report."""
        value: dict[str, Any] = {
            "id": self.id,
            "driver": self.driver,
            "role": self.role,
            "level": self.level,
            "outcome": self.outcome,
            "requirements": sorted(set(self.requirements)),
            "features": sorted(set(self.features)),
            "profiles": list(self.profiles),
            "ms": round(self.ms, 2),
            "detail": self.detail,
        }
        if self.stderr:
            value["stderr"] = self.stderr
        if self.other:
            value["with"] = self.other
        if self.case is not None:
            value["case"] = self.case
        return value


def read_expected(path: Path) -> list[dict[str, str]]:
    """Return the expected failures of a file: ``[[expected]]`` with ``id`` (a glob), ``reason``, maybe ``driver``."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("expected", [])
    for entry in entries:
        if not isinstance(entry.get("id"), str) or len(str(entry.get("reason", "")).split()) < 3:
            raise ValueError(f"{path}: an expected failure has an id and a reason of several words: {entry}")
    return list(entries)


def apply_expected(results: Iterable[Result], expected: Sequence[dict[str, str]]) -> list[Result]:
    """Turn expected failures into xfail, and passes that were expected to fail into xpass."""
    found = []
    for result in results:
        entry = next((entry for entry in expected if _matches(entry, result)), None)
        if entry is not None and result.outcome == "pass":
            result = replace(result, outcome="xpass", detail=f"expected to fail: {entry['reason']}")
        elif entry is not None and result.outcome in BAD:
            result = replace(result, outcome="xfail", detail=f"{entry['reason']} ({result.detail})")
        found.append(result)
    return found


def _matches(entry: dict[str, str], result: Result) -> bool:
    return fnmatchcase(result.id, entry["id"]) and entry.get("driver", result.driver) == result.driver


def classes(
    results: Sequence[Result], driver: str, roles: Sequence[str], profiles: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the level earned per role, None where not even the lowest is; optional features; profiles beyond core.

    ``roles`` and ``profiles`` are those that the driver claims.
    """
    mine = [result for result in results if result.driver == driver]
    earned: dict[str, Any] = {}
    for role in ROLES:
        earned[role] = None
        if role not in roles:
            continue
        for level in LEVELS:
            up_to = [
                result
                for result in mine
                if result.role == role
                and not set(result.features) & set(OPTIONAL)
                and LEVELS.index(result.level) <= LEVELS.index(level)
            ]
            here = [result for result in up_to if result.level == level]
            if any(result.outcome != "pass" for result in up_to):
                break
            # A level without cases of its own says nothing, unless one above it has some.
            if here:
                earned[role] = level
    for feature in OPTIONAL:
        of_feature = [result for result in mine if feature in result.features]
        earned[f"+{feature}"] = bool(of_feature) and all(result.outcome == "pass" for result in of_feature)
    for feature in (*COMPRESSORS, "update-log"):
        earned[f"+{feature} to read"] = _only_reads([one for one in mine if feature in one.features])
    for profile in BEYOND:
        of_profile = [
            result
            for result in mine
            if profile in result.profiles and result.role in roles and set(result.profiles) <= set(profiles)
        ]
        earned[f"+{profile}"] = bool(of_profile) and all(result.outcome == "pass" for result in of_profile)
    return earned


def _only_reads(results: Sequence[Result]) -> bool:
    """Return whether all that reads passes, and what writes is claimed by nobody."""
    read = [result.outcome for result in results if result.role in {"validator", "reader"}]
    written = [result.outcome for result in results if result.role not in {"validator", "reader"}]
    return bool(read) and set(read) == {"pass"} and set(written) == {"unclaimed"}


def badge(earned: dict[str, Any], format_version: int = 0) -> dict[str, Any]:
    """Return a badge (shields endpoint): the class earned, in words."""
    by_level: dict[str, list[str]] = {}
    for role in ROLES:
        if earned.get(role) is not None:
            by_level.setdefault(earned[role], []).append(role)
    words = [
        f"{level.capitalize()} {'/'.join(by_level[level])}" for level in reversed(LEVELS) if level in by_level
    ]
    # Full takes every profile, and whoever has no level has nothing to add one to.
    named = OPTIONAL if set(by_level) <= {"full"} else (*BEYOND, *OPTIONAL)
    words_of = ((f"+{name}", f"+{name} to read") for name in named)
    added = [word for pair in words_of for word in pair if earned.get(word)]
    message = " ".join([", ".join(words) or "no class", *added])
    color = "brightgreen" if list(by_level) == ["full"] else "yellow" if by_level else "red"
    return {"schemaVersion": 1, "label": f"UCP {format_version}", "message": message, "color": color}
