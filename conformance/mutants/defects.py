"""Defects planted in the two implementations: edits of their sources.

`python.toml` and `node.toml` have those that the conformance suite finds, `library/` those that the tests of the Python
library find, floor by floor.
"""

from __future__ import annotations

import ast
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = [
    "IMPLEMENTATIONS",
    "ROOT",
    "Defect",
    "EditError",
    "Implementation",
    "changes",
    "copy_sources",
    "load",
    "planted",
]

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]


class EditError(Exception):
    """An edit fits no place of the sources, or several."""


@dataclass(frozen=True)
class Implementation:
    """The folders and files of an implementation that are copied, and what of them may be edited."""

    name: str
    copied: tuple[str, ...]
    suffixes: tuple[str, ...]


IMPLEMENTATIONS: Final = {
    "python": Implementation("python", ("ucpformat", "schema/draft", "conformance/drivers/python"), (".py",)),
    "node": Implementation(
        "node", ("js/lib", "js/node", "js/package.json", "conformance/drivers/node"), (".mjs",)
    ),
}


TESTS: Final = ("tests", "pyproject.toml")


@dataclass(frozen=True)
class Edit:
    """Replace the text ``old`` by ``new``, in the definition ``where`` of a Python module if one is named."""

    old: str
    new: str
    where: str


@dataclass(frozen=True)
class Defect:
    """One mutant: what is wrong in it, the edits that make it so, and which cases are tried first.

    ``near`` are texts of case ids, requirements, or ``lives`` and ``races``, which are those of logs. ``tests`` are arguments of pytest, for what no driver is asked.
    """

    name: str
    implementation: str
    kind: str
    what: str
    near: tuple[str, ...]
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]


def load(implementation: str) -> list[Defect]:
    """Read the defects of an implementation, in the order of their files."""
    paths = [HERE / f"{implementation}.toml"]
    if implementation == "python":
        paths += sorted((HERE / "library").glob("*.toml"))
    documents = [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]
    return [
        _defect(implementation, kind, one)
        for document in documents
        for kind, found in document.items()
        for one in found
    ]


def _defect(implementation: str, kind: str, one: dict[str, Any]) -> Defect:
    edits = [one] if "old" in one else one["edit"]
    return Defect(
        one["name"],
        implementation,
        kind,
        one["what"],
        tuple(one.get("near", ())),
        tuple(one.get("tests", ())),
        tuple(
            Edit(edit["old"].strip("\n"), edit["new"].strip("\n"), edit.get("where", "")) for edit in edits
        ),
    )


def changes(defect: Defect) -> dict[str, str]:
    """Return the files that a defect changes, by their path below `ROOT`, and what they then hold.

    Raises `EditError` where an edit does not fit exactly one place.
    """
    texts = dict(_sources(defect.implementation))
    changed: dict[str, str] = {}
    for edit in defect.edits:
        path, text = _edited(edit, texts)
        texts[path] = changed[path] = text
    return changed


def planted(defect: Defect, tree: Path) -> None:
    """Copy the implementation into ``tree``, which is an empty folder, and plant the defect there."""
    changed = changes(defect)
    copy_sources(defect.implementation, tree, has_tests=bool(defect.tests))
    for name, text in changed.items():
        path = tree / name
        path.write_text(text, encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()


def copy_sources(implementation: str, tree: Path, *, has_tests: bool) -> None:
    """Copy an implementation as it is into ``tree``, an empty folder, and the tests of the library beside it."""
    for name in IMPLEMENTATIONS[implementation].copied + (TESTS if has_tests else ()):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("node_modules"))
        else:
            shutil.copy2(ROOT / name, tree / name)


@cache
def _sources(name: str) -> dict[str, str]:
    """Return what an implementation consists of, by path below `ROOT`."""
    implementation = IMPLEMENTATIONS[name]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in implementation.copied
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in implementation.suffixes and "node_modules" not in path.parts
    }


def _edited(edit: Edit, texts: Mapping[str, str]) -> tuple[str, str]:
    """Return the one file that an edit changes, and what it then holds."""
    found: list[tuple[str, str]] = []
    for path, text in texts.items():
        if edit.old in text:
            for start, stop in _spans(text, edit.where) if edit.where else [(0, len(text))]:
                scope = text[start:stop]
                changed = text[:start] + scope.replace(edit.old, edit.new, 1) + text[stop:]
                found += [(path, changed)] * scope.count(edit.old)
    if len(found) != 1:
        places = ", ".join(sorted({path for path, _ in found}))
        raise EditError(f"found {len(found)} times{' in ' if places else ''}{places}: {edit.old}")
    return found[0]


def _spans(text: str, where: str) -> Iterator[tuple[int, int]]:
    """Yield where the definitions of a qualified name begin and end in a module."""
    lines = text.splitlines(keepends=True)
    edges = [0]
    for line in lines:
        edges.append(edges[-1] + len(line))
    for name, node in _definitions(ast.parse(text), ""):
        if name == where and node.end_lineno is not None:
            yield edges[node.lineno - 1], edges[node.end_lineno]


def _definitions(tree: ast.AST, within: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{node.name}", node
            yield from _definitions(node, f"{within}{node.name}.")
