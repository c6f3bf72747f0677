"""The public interface as one page, made from docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import ucpformat as ucp
from tests.documentation.fixtures import EXAMPLE

__all__ = ["members", "page"]

_HEAD: Final = """\
# The Python interface

<!-- made from the docstrings by tests/documentation/test_api.py -->

<!-- every block: run by tests/documentation/test_docstrings.py -->

All that `import ucpformat as ucp` offers.
Each example runs by itself, in a directory where this has been run before:

```python
{example}```
"""


def members(found: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a public class, and of the classes of ours that it is made of.

    Those that another library's class declares, such as DCP's storage, are for that library to call.
    """
    others = (
        [base for base in inspect.getmro(found) if not base.__module__.startswith("ucpformat")]
        if inspect.isclass(found)
        else []
    )
    seen = {name for base in others if base is not object for name in vars(base)}
    for base in inspect.getmro(found) if inspect.isclass(found) else ():
        for name, value in vars(base).items() if base.__module__.startswith("ucpformat") else ():
            inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            is_member = inspect.isfunction(inner) or isinstance(inner, property)
            if name.startswith("_") or name in seen or not is_member:
                continue
            seen.add(name)
            yield name, inner


def page() -> str:
    """Return the whole page."""
    text = [_HEAD.format(example=EXAMPLE)]
    kinds = [
        ("Functions", [name for name in ucp.__all__ if not inspect.isclass(getattr(ucp, name))]),
        ("Classes", [name for name in ucp.__all__ if _is_class(name)]),
        ("Errors", [name for name in ucp.__all__ if _is_error(name)]),
    ]
    for title, names in kinds:
        text.append(f"\n## {title}\n")
        for name in names:
            found = getattr(ucp, name)
            text.append(_entry("###", f"ucp.{name}", found))
            text += [_entry("####", f"{name}.{member}", value) for member, value in members(found)]
    text.append(f"\n## Cadence\n\n{_parted(inspect.getdoc(ucp.cadence) or '')[0]}")
    for name in ucp.cadence.__all__:
        found = getattr(ucp.cadence, name)
        text.append(_entry("###", f"ucp.cadence.{name}", found))
        text += [_entry("####", f"{name}.{member}", value) for member, value in members(found)]
    text.append(f"\n## Layouts\n\n`ucp.layouts` has these: {_listed(ucp.layouts.__all__)}.\n")
    return "".join(text)


def _is_error(name: str) -> bool:
    found = getattr(ucp, name)
    return inspect.isclass(found) and issubclass(found, BaseException)


def _is_class(name: str) -> bool:
    return inspect.isclass(getattr(ucp, name)) and not _is_error(name)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _entry(level: str, title: str, found: Any) -> str:
    """Write a name, its signature, and its docstring as Markdown."""
    text = f"\n{level} `{title}`\n\n"
    signature = "" if isinstance(found, property) or _is_plain_error(found) else _signature(title, found)
    if signature:
        text += f"```python\n{signature}\n```\n\n"
    prose, example = _parted(inspect.getdoc(found) or "")
    text += prose
    if example:
        text += f"\n```python\n{example}\n```\n"
    return text


def _is_plain_error(found: Any) -> bool:
    return inspect.isclass(found) and issubclass(found, BaseException)


def _signature(title: str, found: Any) -> str:
    parameters = []
    star = False
    for name, one in inspect.signature(found).parameters.items():
        if name == "self" or name == "cls":
            continue
        if one.kind is one.KEYWORD_ONLY and not star:
            parameters.append("*")
            star = True
        star = star or one.kind is one.VAR_POSITIONAL
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        parameters.append(f"{stars}{name}{_default(one.default)}")
    line = f"{title}({', '.join(parameters)})"
    if len(line) <= 100:
        return line
    return f"{title}(\n" + "".join(f"    {one},\n" for one in parameters) + ")"


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, str):
        return f'="{value}"'
    return f"={value!r}" if isinstance(value, int | float | tuple | None) else "=..."


_SECTION: Final = re.compile(r"(Args|Attributes|Returns|Raises):")
_ITEM: Final = re.compile(r"    ([\w.*]+): (.*)")


def _parted(doc: str) -> tuple[str, str]:
    """Return the prose of a docstring as Markdown, and its examples."""
    first = doc.find(">>> ")
    head, example = (doc, "") if first < 0 else (doc[:first], doc[first:])
    lines: list[str] = []
    in_section = ""
    for line in head.rstrip().splitlines():
        section = _SECTION.fullmatch(line)
        if section:
            in_section = section[1]
            lines.append(f"**{in_section}**" if in_section == "Returns" else f"**{in_section}**\n")
        elif in_section and (item := _ITEM.fullmatch(line)) and in_section != "Returns":
            lines.append(f"* `{item[1]}`: {item[2]}")
        else:
            lines.append(line.strip() if in_section == "Returns" else re.sub(r"^ {4,}", "  ", line))
            in_section = in_section if line.strip() else ""
    return re.sub(r"``", "`", "\n".join(lines)).strip() + "\n", example.strip()
