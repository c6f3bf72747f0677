"""docs/patterns.md: its examples do what it says, and its documents are such."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

import pytest

from ucpformat import schema
from ucpformat.patterns import atom_map_names, parse_atom_map, parse_patterns, pattern_names

PAGE = Path(__file__).parents[2] / "docs" / "patterns.md"
DOCUMENTS = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_examples_print_what_the_page_shows() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS, encoding="utf-8")
    assert found.attempted > 10
    assert found.failed == 0


@pytest.mark.parametrize("text", DOCUMENTS)
def test_documents_of_the_page_are_sound(text: str) -> None:
    value = json.loads(text)
    assert list(schema.problems(value["kind"], value, "x")) == []
    {"patterns": parse_patterns, "atom-map": parse_atom_map}[value["kind"]](text.encode())


def test_the_page_tells_of_every_ready_made_document() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(DOCUMENTS) == 2
    assert [
        name
        for name in (*pattern_names(), *atom_map_names())
        if f"`{name}`" not in text and f"'{name}'" not in text
    ] == []
