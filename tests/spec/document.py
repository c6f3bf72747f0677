"""The specification taken apart, SPEC.md and the documents beside it: fences, requirements, tables."""

from __future__ import annotations

import re
from functools import cache

from tests.documentation.markdown import ROOT as ROOT
from tests.documentation.markdown import Block, page

REQUIREMENT = re.compile(r"\*\*\[(UCP-[DRWVS]-[0-9]{3})\]\*\* (.+)")
_NAMED = re.compile(r"UCP-([DRWVS])-([0-9]{3})(?: to UCP-\1-([0-9]{3}))?")


BESIDE = ("SPEC-PATTERNS.md", "SPEC-ATOM-MAPS.md", "SPEC-UPDATE-LOGS.md", "SPEC-ARRANGEMENTS.md")
"""The documents that section 14 of SPEC.md names."""
DOCUMENTS = ("SPEC.md", *BESIDE)


@cache
def lines(document: str = "SPEC.md") -> tuple[str, ...]:
    return tuple((ROOT / document).read_text(encoding="utf-8").splitlines())


def fences() -> tuple[Block, ...]:
    return tuple(block for document in DOCUMENTS for block in page(document).blocks)


@cache
def prose(documents: tuple[str, ...] = DOCUMENTS) -> tuple[tuple[str, str], ...]:
    """Lines outside fences, each after its place."""
    inside = {
        f"{fence.page}:{number}"
        for fence in fences()
        for number in range(fence.line, fence.line + fence.text.count("\n") + 2)
    }
    numbered = (
        (f"{document}:{number}", line)
        for document in documents
        for number, line in enumerate(lines(document), 1)
    )
    return tuple((place, line) for place, line in numbered if place not in inside)


@cache
def requirements(documents: tuple[str, ...] = DOCUMENTS) -> tuple[tuple[str, str], ...]:
    """Identifier and text of every requirement, in order."""
    found = (REQUIREMENT.match(line) for _, line in prose(documents))
    return tuple((match[1], match[2]) for match in found if match)


def table(header: str) -> list[list[str]]:
    """The cells of the table of SPEC.md whose header line is ``header``, without the backticks around a cell."""
    start = lines().index(header) + 2
    rows = []
    for line in lines()[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def identifiers(text: str) -> set[str]:
    """Every requirement that ``text`` names, ranges (``UCP-D-001 to UCP-D-003``) included."""
    return {
        f"UCP-{letter}-{number:03}"
        for letter, first, last in _NAMED.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }
