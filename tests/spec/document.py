"""SPEC.md taken apart: fences, requirements, tables."""

from __future__ import annotations

import re
from functools import cache

from tests.documentation.markdown import ROOT as ROOT
from tests.documentation.markdown import Block, page

REQUIREMENT = re.compile(r"\*\*\[(UCP-[DRWVS]-[0-9]{3})\]\*\* (.+)")
_NAMED = re.compile(r"UCP-([DRWVS])-([0-9]{3})(?: to UCP-\1-([0-9]{3}))?")


@cache
def lines() -> tuple[str, ...]:
    return tuple((ROOT / "SPEC.md").read_text(encoding="utf-8").splitlines())


def fences() -> tuple[Block, ...]:
    return page("SPEC.md").blocks


@cache
def prose() -> tuple[tuple[int, str], ...]:
    """Numbered lines outside fences."""
    inside = {
        number for fence in fences() for number in range(fence.line, fence.line + fence.text.count("\n") + 2)
    }
    return tuple((number, line) for number, line in enumerate(lines(), 1) if number not in inside)


@cache
def requirements() -> tuple[tuple[str, str], ...]:
    """Identifier and text of every requirement, in order."""
    found = (REQUIREMENT.match(line) for _, line in prose())
    return tuple((match[1], match[2]) for match in found if match)


def table(header: str) -> list[list[str]]:
    """The cells of the table whose header line is ``header``, without the backticks around a cell."""
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
