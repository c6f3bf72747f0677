"""One script out of JavaScript modules, which browsers run without loading anything else (ADR 0021).

Each module becomes a function that returns what it exports, called in the order of imports. The forms that the modules
of `js/` have are understood and no others: what else begins like an import or an export is refused, so that nothing is
bundled wrongly.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

__all__ = ["bundle", "source"]

_PLATFORM: Final = "browser/platform.mjs"
"""What `#platform` means in a browser, as `js/package.json` says."""

_IMPORT: Final = re.compile(r"^import (\{[^}]*\}|\* as \w+|\w+) from '([^']+)';\n", re.MULTILINE)
_PASSED_ON: Final = re.compile(r"^export (\{[^}]*\}|\*) from '([^']+)';\n", re.MULTILINE)
_DECLARED: Final = re.compile(r"^export ((?:(?:async )?function\*?|class|const) +(\w+))", re.MULTILINE)
_DEFAULT: Final = re.compile(r"^export default ", re.MULTILINE)
_NOTHING: Final = re.compile(r"^export \{\};\n", re.MULTILINE)
_LEFT: Final = re.compile(r"^(?:import|export)\b", re.MULTILINE)


@cache
def source(name: str) -> str:
    """Return the text of a file of the JavaScript package, inside an installed package or beside it in a checkout."""
    packaged = files("ucpformat") / "_js"
    folder: Traversable = packaged if packaged.is_dir() else Path(__file__).parents[2] / "js"
    return (folder / name).read_text(encoding="utf-8")


def bundle(entry: str) -> str:
    """Return the module ``entry`` of `js/` and all that it imports as one classic script.

    The same modules give the same bytes.

    Raises:
        UcpError: ``UCP-E-SOURCE`` where modules import each other, or have an import or export of another form.
    """
    modules = list(_in_order(entry, [], set()))
    numbers = {name: number for number, name in enumerate(modules)}
    parts = [
        f"// {name}\nconst m{numbers[name]} = (() => {{\n{_wrapped(name, numbers)}}})();\n"
        for name in modules
    ]
    return f"'use strict';\n(() => {{\n{''.join(parts)}}})();\n"


def _in_order(name: str, above: list[str], done: set[str]) -> Iterator[str]:
    """Yield a module behind those that it imports."""
    if name in above:
        raise error("UCP-E-SOURCE", f"modules import each other: {' -> '.join([*above, name])}", at=name)
    if name in done:
        return
    text = source(name)
    for _, target in (*_IMPORT.findall(text), *_PASSED_ON.findall(text)):
        yield from _in_order(_target(name, target), [*above, name], done)
    done.add(name)
    yield name


def _target(name: str, target: str) -> str:
    """Return the module that ``name`` means by ``target``."""
    if target == "#platform":
        return _PLATFORM
    parts = [*name.split("/")[:-1], *target.split("/")]
    kept: list[str] = []
    for part in parts:
        if part == "..":
            kept.pop()
        elif part != ".":
            kept.append(part)
    return "/".join(kept)


def _wrapped(name: str, numbers: dict[str, int]) -> str:
    """Return the body of the function that a module becomes."""
    text = source(name)
    exported: list[str] = []

    def imported(found: re.Match[str]) -> str:
        what, module = found[1], f"m{numbers[_target(name, found[2])]}"
        if what.startswith("{"):
            return f"const {what.replace(' as ', ': ')} = {module};\n"
        if what.startswith("*"):
            return f"const {what.removeprefix('* as ')} = {module};\n"
        return f"const {what} = {module}.default;\n"

    def passed_on(found: re.Match[str]) -> str:
        module = f"m{numbers[_target(name, found[2])]}"
        if found[1] == "*":
            exported.append(f"...{module}")
        else:
            exported.extend(
                f"{part.strip()}: {module}.{part.strip()}"
                for part in found[1][1:-1].split(",")
                if part.strip()
            )
        return ""

    def declared(found: re.Match[str]) -> str:
        exported.append(found[2])
        return found[1]

    def default(_: re.Match[str]) -> str:
        exported.append("default: standard")
        return "const standard = "

    for form, made in (
        (_IMPORT, imported),
        (_PASSED_ON, passed_on),
        (_DECLARED, declared),
        (_DEFAULT, default),
    ):
        text = form.sub(made, text)
    text = _NOTHING.sub("", text)
    if left := _LEFT.search(text):
        line = text[left.start() :].partition("\n")[0]
        raise error("UCP-E-SOURCE", f"the bundler does not know this form: {line}", at=name)
    return f"{text}return {{{', '.join(exported)}}};\n"
