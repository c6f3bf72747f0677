"""Blocks that are data: what they say they are an example of, they are."""

from __future__ import annotations

import tomllib
from typing import Any, Final

from tests.documentation.markdown import Block
from ucpformat import jsonio, schema
from ucpformat.model.arrangement import Arrangement
from ucpformat.model.envelope import Extension, check_envelope
from ucpformat.model.index_part import IndexPart
from ucpformat.model.layout_json import LayoutRecord
from ucpformat.model.references import PackList
from ucpformat.model.root import Root
from ucpformat.model.state import StateDocument
from ucpformat.patterns import AtomMapDocument, Patterns
from ucpformat.update_log.batch import BatchHeader
from ucpformat.update_log.documents import Epoch, LogDocument

_PARSERS: Final[dict[str, Any]] = {
    "arrangement": Arrangement.from_json,
    "atom-map": AtomMapDocument.from_json,
    "envelope": check_envelope,
    "index": IndexPart.from_json,
    "layout": LayoutRecord.from_json,
    "packs": PackList.from_json,
    "patterns": Patterns.from_json,
    "root": Root.from_json,
    "state": StateDocument.from_json,
    "update-log": LogDocument.structure,
    "update-log-batch": BatchHeader.from_json,
    "update-log-epoch": Epoch.structure,
}


def check_data(block: Block) -> None:
    """Fail unless a block of JSON or TOML is what its info string says; ``UcpError`` where a reader refuses it."""
    match block.language:
        case "json":
            value = jsonio.loads(block.text.encode("utf-8"), at=str(block))
            assert "schema" in block.options, f"{block}: JSON of what? Say schema=NAME"
            _check_document(block.options["schema"], value, block)
        case "toml":
            tomllib.loads(block.text)
        case language:
            raise AssertionError(f"{block}: nobody knows how to run {language!r}")


def _check_document(name: str, value: Any, block: Block) -> None:
    at = str(block)
    if name == "root-extensions":
        faults = [fault.message for fault in schema.validator("defs", "extensions").iter_errors(value)]
        assert faults == []
        for extension in value.values():
            Extension.from_json(extension, at=at)
    elif name in _PARSERS:
        problems = list(schema.problems(name, value, at))
        if "invalid" not in block.options:
            assert problems == []
        _PARSERS[name](value, at=at)
    else:
        from ucp_conformance.resources import protocol_validator

        protocol_validator(name).validate(value)
