"""Requirements of the specification: one MUST each, identifiers never reused, and nothing demanded outside."""

from __future__ import annotations

import re

import pytest

from tests.spec.document import BESIDE, DOCUMENTS, ROOT, identifiers, lines, prose, requirements, table

HISTORY = ROOT / "tests" / "spec" / "requirement_ids.txt"
KEY_WORDS = re.compile(r"\b(?:MUST|REQUIRED|SHALL|SHOULD|RECOMMENDED|MAY|OPTIONAL)\b")
SUFFIXES = {".py", ".json", ".mjs", ".toml", ".md", ".cpp"}
SHORT = re.compile(r"(?<![-\w])[DRWVS]-[0-9]{3}\b|UCP-[DRWVS]-[0-9]{3} to (?:[DRWVS]-)?[0-9]")
SUBJECTS = {
    "D": re.compile(r"(?!A (reader|writer|rewriter|validator)\b)"),
    "R": re.compile(r"A reader\b"),
    "W": re.compile(r"A (writer|rewriter)\b"),
    "V": re.compile(r"A validator\b"),
    "S": re.compile(r"A (reader|writer)\b|Software\b"),
}


def history() -> dict[str, str]:
    """Every identifier there ever was, with ``withdrawn`` after those that are gone."""
    rows = (line.split(maxsplit=1) for line in HISTORY.read_text(encoding="utf-8").splitlines())
    return {row[0]: row[1] if len(row) > 1 else "" for row in rows}


def test_identifiers_are_unique() -> None:
    found = [identifier for identifier, _ in requirements()]
    assert sorted(found) == sorted(set(found))


@pytest.mark.parametrize(("identifier", "text"), requirements(), ids=[name for name, _ in requirements()])
class TestRequirement:
    def test_it_demands_one_thing(self, identifier: str, text: str) -> None:
        assert len(KEY_WORDS.findall(text)) == text.count("MUST") == 1

    def test_it_is_one_sentence(self, identifier: str, text: str) -> None:
        assert text.endswith(".")
        assert ". " not in text

    def test_its_letter_says_who_is_bound(self, identifier: str, text: str) -> None:
        assert SUBJECTS[identifier[4]].match(text)


def test_an_identifier_in_bold_begins_a_requirement() -> None:
    for place, line in prose():
        if "**[UCP-" in line and place != example_line():
            assert line.startswith("**[UCP-"), place


def example_line() -> str:
    """The line of the conventions that shows what an identifier looks like."""
    return next(place for place, line in prose() if line.startswith("Every MUST stands in a requirement"))


def test_nothing_is_demanded_outside_requirements() -> None:
    for place, line in prose():
        if line.startswith(("**[UCP-", "The key words MUST, MUST NOT")) or place == example_line():
            continue
        assert not KEY_WORDS.search(line), f"{place} demands something without an identifier: {line}"


def test_identifiers_are_never_dropped_or_reused() -> None:
    """A new requirement is added to the list; one that goes stays there, as ``withdrawn``."""
    current = [identifier for identifier, _ in requirements()]
    known = history()
    assert set(known.values()) <= {"", "withdrawn"}
    assert sorted(current) == sorted(name for name, state in known.items() if not state)


def test_the_history_is_in_order() -> None:
    assert list(history()) == sorted(history())
    assert len(history()) == len(HISTORY.read_text(encoding="utf-8").splitlines())


def test_numbers_have_no_gaps() -> None:
    """Withdrawn ones keep theirs; nothing is set aside."""
    for letter in SUBJECTS:
        numbers = [int(name[-3:]) for name in history() if name[4] == letter]
        assert numbers == list(range(1, len(numbers) + 1)), letter


def test_every_identifier_that_is_mentioned_exists() -> None:
    for document in DOCUMENTS:
        assert identifiers("\n".join(lines(document))) <= set(history()), document


def test_every_identifier_that_anything_names_is_in_force() -> None:
    """Spelt in full, each: what is short is not found when a rule changes."""
    found = [path for path in ROOT.glob("*.md") if path.name not in DOCUMENTS]
    for folder in ("ucpformat", "conformance", "tests", "docs", "examples", "schema"):
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    current = {identifier for identifier, _ in requirements()}
    for path in found:
        # Vectors hold documents that are not UTF-8 on purpose.
        text = path.read_text(encoding="utf-8", errors="replace")
        assert identifiers(text) <= current, path
        assert not SHORT.search(text), path


def test_section_14_names_the_documents_beside_it() -> None:
    rows = table("| `kind` | what it says | specified in |")
    assert [row[2] for row in rows] == [f"[{document}]({document})" for document in BESIDE]
    assert {path.name for path in ROOT.glob("SPEC*.md")} == set(DOCUMENTS)
