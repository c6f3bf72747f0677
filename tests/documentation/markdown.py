"""Pages of documentation taken apart: fenced blocks, links, headings, and words set in backticks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
_EVERY = "every block: "
_COMMENT = re.compile(r"\s*<!-- *(.*?) *-->\s*", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block, and its note: the HTML comment directly before it, or one that is for every block of a page."""

    page: str
    line: int
    """Of the fence that opens it, from 1."""
    info: str
    text: str
    note: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def options(self) -> Mapping[str, str]:
        """The words after the language: ``name=value``, or a name with nothing."""
        return {name: value for name, _, value in (word.partition("=") for word in self.info.split()[1:])}

    @property
    def is_run(self) -> bool:
        """Whether it is typed with the rest of its page, and its note names no other fate."""
        return not self.note.startswith(("not run: ", "run by ", "commands checked: "))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    """A Markdown file of the repository, by its path from the root."""

    name: str
    blocks: tuple[Block, ...]
    spans: tuple[tuple[int, str], ...]
    """Line and text of what is set in backticks."""
    links: tuple[tuple[int, str], ...]
    """Line and target of links and pictures."""
    prose: tuple[tuple[int, str], ...]
    """Line and text of what is neither code nor a link's target."""
    anchors: frozenset[str]


def anchor_of(heading: str) -> str:
    """What GitHub makes of a heading: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _flat(tokens: list[Token], line: int = 0) -> Iterator[tuple[int, Token]]:
    """All tokens with the line, from 1, in which the enclosing block begins."""
    for token in tokens:
        here = token.map[0] + 1 if token.map else line
        yield here, token
        for child in token.children or ():
            yield here, child
            if child.type == "softbreak":
                here += 1


@cache
def page(name: str) -> Page:
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / name).read_text(encoding="utf-8"))
    blocks, spans, links, prose, anchors = [], [], [], [], []
    before: Token | None = None
    heading = False
    general = said = ""
    for line, token in _flat(tokens):
        match token.type:
            case "fence":
                note = said if before is not None and before.type == "html_block" else ""
                blocks.append(Block(name, line, token.info.strip(), token.content, note or general))
            case "html_block":
                comment = _COMMENT.fullmatch(token.content)
                said = " ".join(comment[1].split()) if comment else ""
                if said.startswith(_EVERY):
                    general, said = said.removeprefix(_EVERY), ""
            case "code_inline":
                spans.append((line, token.content))
            case "link_open" | "image":
                links.append((line, str(token.attrs["href" if token.type == "link_open" else "src"])))
            case "text":
                prose.append((line, token.content))
            case "inline" if heading:
                anchors.append(anchor_of(re.sub(r"[`*]", "", token.content)))
        heading = token.type == "heading_open"
        before = token
    seen: Counter[str] = Counter()
    numbered = set()
    for anchor in anchors:
        numbered.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return Page(name, tuple(blocks), tuple(spans), tuple(links), tuple(prose), frozenset(numbered))


@cache
def pages() -> tuple[Page, ...]:
    """The pages that users and contributors read; the specification has tests of its own (tests/spec)."""
    globs = (
        "README.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "GOVERNANCE.md",
        "SECURITY.md",
        "docs/**/*.md",
        "benchmarks/*.md",
        "conformance/**/*.md",
        "js/*.md",
    )
    found = {path.relative_to(ROOT).as_posix() for glob in globs for path in ROOT.glob(glob)}
    return tuple(page(name) for name in sorted(found))


def run_by(place: str, name: str) -> list[Block]:
    """The blocks of the page ``name`` that the test file ``place`` runs, as their notes say."""
    return [block for block in page(name).blocks if block.note == f"run by {place}"]
