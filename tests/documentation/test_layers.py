"""CONTRIBUTING.md lists the import contracts of pyproject.toml; ``UCP_REWRITE_DOCS=1`` writes that list anew."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest

from tests.documentation.markdown import ROOT

_BEGIN: Final = "<!-- made from pyproject.toml by tests/documentation/test_layers.py -->\n\n"
_END: Final = "\n<!-- end of what is made -->\n"


def _names(modules: Iterable[str], joined_by: str = "and") -> str:
    *others, last = [f"`{module.removeprefix('ucpformat.').strip('()')}`" for module in modules]
    return f"{', '.join(others)} {joined_by} {last}" if others else last


def _sentence(contract: Mapping[str, Any]) -> str:
    match contract["type"]:
        case "layers":
            rows = [_names(re.split(r" [|:] ", layer)) for layer in contract["layers"]]
            where = f"In {_names(contract['containers'])}, each" if "containers" in contract else "Each"
            return f"{where} imports only what stands behind it: {', then '.join(rows)}."
        case "forbidden":
            itself = "itself " if contract.get("allow_indirect_imports") else ""
            sources, targets = contract["source_modules"], _names(contract["forbidden_modules"], "or")
            who = f"None of {_names(sources)}" if len(sources) > 1 else f"No module of {_names(sources)}"
            return f"{who} {itself}imports {targets}."
        case "independence":
            return f"None of {_names(contract['modules'])} imports another of them."
        case "protected":
            allowed = _names(contract.get("allowed_importers", ["nothing"]))
            return f"{_names(contract['protected_modules'])} is imported by {allowed} alone."
        case "acyclic_siblings":
            return f"Modules side by side in {_names(contract['ancestors'])} import one another in no circle."
        case other:
            raise AssertionError(f"no sentence for contracts of the type {other!r}")


def described(contracts: Iterable[Mapping[str, Any]]) -> str:
    """Return a Markdown list of the contracts, with one entry for each."""
    return "".join(f"* {contract['name']}. {_sentence(contract)}\n" for contract in contracts)


def test_contributing_lists_the_import_contracts() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    path = ROOT / "CONTRIBUTING.md"
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin
    assert end
    expected = before + begin + described(settings["contracts"]) + end + after
    if os.environ.get("UCP_REWRITE_DOCS"):
        path.write_text(expected, encoding="utf-8")
        return
    assert text == expected, "run this test with UCP_REWRITE_DOCS=1"


@pytest.mark.parametrize(
    ("contract", "sentence"),
    [
        (
            {"type": "layers", "layers": ["p.a", "p.b | p.c : p.d", "(p.e)"], "containers": ["p"]},
            "* N. In `p`, each imports only what stands behind it: `p.a`, then `p.b`, `p.c` and `p.d`, then `p.e`.\n",
        ),
        (
            {"type": "forbidden", "source_modules": ["ucpformat.a"], "forbidden_modules": ["torch", "json"]},
            "* N. No module of `a` imports `torch` or `json`.\n",
        ),
        (
            {
                "type": "forbidden",
                "source_modules": ["ucpformat.a", "ucpformat.b"],
                "forbidden_modules": ["torch"],
                "allow_indirect_imports": True,
            },
            "* N. None of `a` and `b` itself imports `torch`.\n",
        ),
        (
            {"type": "independence", "modules": ["a", "b"]},
            "* N. None of `a` and `b` imports another of them.\n",
        ),
        (
            {"type": "protected", "protected_modules": ["a"], "allowed_importers": ["b"]},
            "* N. `a` is imported by `b` alone.\n",
        ),
        (
            {"type": "acyclic_siblings", "ancestors": ["ucpformat.a"]},
            "* N. Modules side by side in `a` import one another in no circle.\n",
        ),
    ],
)
def test_each_type_of_contract_is_a_sentence(contract: dict[str, Any], sentence: str) -> None:
    assert described([{"name": "N", **contract}]) == sentence
