"""Every requirement of the specification is named by a test or a vector, or listed with the reason why none can."""

from __future__ import annotations

import tomllib

from tests.spec.document import ROOT, identifiers, requirements

UNTESTABLE = ROOT / "conformance" / "untestable.toml"
SUFFIXES = {".py", ".json", ".mjs", ".toml", ".md"}


def named() -> set[str]:
    """Every requirement that a file under tests/ or conformance/ names; the tests of the text do not count."""
    found: set[str] = set()
    for folder in ("tests", "conformance"):
        for path in sorted((ROOT / folder).rglob("*")):
            skipped = path == UNTESTABLE or path.parent == ROOT / "tests" / "spec"
            # What an implementation names in its code proves nothing.
            skipped |= ROOT / "conformance" / "drivers" in path.parents
            if path.suffix in SUFFIXES and path.is_file() and not skipped:
                # Vectors hold documents that are not UTF-8 on purpose.
                found |= identifiers(path.read_text(encoding="utf-8", errors="replace"))
    return found


def untestable() -> dict[str, str]:
    return {name: entry["reason"] for name, entry in tomllib.loads(UNTESTABLE.read_text("utf-8")).items()}


def test_every_requirement_is_named_by_a_test_or_has_a_reason_not_to_be() -> None:
    missing = {identifier for identifier, _ in requirements()} - named() - set(untestable())
    assert sorted(missing) == []


def test_reasons_are_given_for_requirements_that_exist_and_have_no_test() -> None:
    for identifier, reason in untestable().items():
        assert identifier in dict(requirements())
        assert identifier not in named(), f"{identifier} has a test: its reason is out of date"
        assert len(reason.split()) > 3


def test_every_requirement_that_a_test_names_exists() -> None:
    history = (ROOT / "tests" / "spec" / "requirement_ids.txt").read_text(encoding="utf-8")
    assert named() <= identifiers(history)
