"""The worked examples of SPEC.md, section 13.1: out of the text, and the text out of the vectors of lowering."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ucp_conformance.vectors import all_vectors

from tests.spec.document import ROOT

__all__ = ["example", "rewrite", "shown", "vector"]

_EXAMPLE: Final = re.compile(
    r"```json schema=lower-params case=([a-z-]+)\n(.*?)```\n\n```json schema=lower-result\n(.*?)```\n",
    re.DOTALL,
)


def vector(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the case ``good/layouts/NAME`` asks of ``lower``, and what it expects."""
    found = next(vector for vector in all_vectors() if vector.id == f"good/layouts/{name}")
    asked = next(check["params"] for check in found.case["checks"] if check["op"] == "lower")
    return asked, json.loads(found.expected["lower.json"])


def shown() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return every worked example by the name of its case: what is asked, and what follows."""
    text = (ROOT / "SPEC.md").read_text(encoding="utf-8")
    return {name: (json.loads(asked), json.loads(follows)) for name, asked, follows in _EXAMPLE.findall(text)}


def example(name: str) -> str:
    """Return the text that shows the case ``name``, one line for each coordinate without pieces, and for each piece."""
    asked, follows = vector(name)
    members = ",\n".join(
        f' "{key}": ' + (_many(asked[key]) if key == "steps" else json.dumps(asked[key]))
        for key in sorted(asked)
    )
    locals_ = ",\n".join(
        f'  {{"coordinate": {local["coordinate"]}, "shape": {json.dumps(local["shape"])}, "pieces": '
        + _many(local["pieces"], "   ")
        + "}"
        for local in follows["locals"]
    )
    return (
        f"```json schema=lower-params case={name}\n{{\n{members}\n}}\n```\n\n"
        f'```json schema=lower-result\n{{\n "locals": [\n{locals_}\n ]\n}}\n```\n'
    )


def _many(items: list[Any], indent: str = "  ") -> str:
    if not items:
        return "[]"
    return "[\n" + ",\n".join(indent + json.dumps(item) for item in items) + f"\n{indent[1:]}]"


def rewrite() -> None:
    """Put `example` into SPEC.md for every case that stands there."""
    path = ROOT / "SPEC.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(_EXAMPLE.sub(lambda found: example(found[1]), text), encoding="utf-8")
