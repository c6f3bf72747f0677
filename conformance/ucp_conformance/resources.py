"""Where the suite's data lie: beside the sources in a checkout, inside the package where it is installed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

__all__ = ["protocol_validator", "schema_validator", "specification", "untestable_file", "vectors_folder"]

_PACKED = Path(__file__).parent / "_data"
_SOURCES = Path(__file__).parent.parent


def _data(name: str, beside: str) -> Path:
    packed = _PACKED / name
    return packed if packed.exists() else (_SOURCES / beside).resolve()


def vectors_folder() -> Path:
    """Return the static vectors."""
    return _data("vectors", "vectors")


def untestable_file() -> Path:
    """Return requirements that no case can hold, with reasons."""
    return _data("untestable.toml", "untestable.toml")


def specification() -> str:
    """Return the text of the specification that the suite is of, SPEC.md and that of update logs behind it."""
    names = ("SPEC.md", "SPEC-UPDATE-LOGS.md")
    return "\n".join(_data(name, f"../{name}").read_text(encoding="utf-8") for name in names)


@cache
def _registry() -> Registry[Any]:
    registry: Registry[Any] = Registry()
    for folder in (_data("schema/draft", "../schema/draft"), _data("protocol", "protocol")):
        for path in sorted(folder.glob("*.schema.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            registry = registry.with_resource(content["$id"], Resource.from_contents(content))
    return registry


@cache
def schema_validator(name: str) -> Draft202012Validator:
    """Return the validator of one of the format's schemas: ``root``, ``index``, ..."""
    uri = f"https://ucpformat.org/schema/draft/{name}.schema.json"
    return Draft202012Validator({"$ref": uri}, registry=_registry())


@cache
def protocol_validator(name: str) -> Draft202012Validator:
    """Return the validator of one of the protocol's schemas: ``request``, ``reply``, ``hello-result``, ``case``, ..."""
    uri = f"https://ucpformat.org/schema/conformance/{name}.schema.json"
    return Draft202012Validator({"$ref": uri}, registry=_registry())
