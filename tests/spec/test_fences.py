"""Every JSON example of SPEC.md says what it is an example of, and is one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spec.document import Fence, fences
from ucpformat import jsonio, schema
from ucpformat.errors import REGISTRY, UcpError
from ucpformat.model.arrangement import Arrangement
from ucpformat.model.envelope import Envelope, Extension
from ucpformat.model.index_part import IndexPart
from ucpformat.model.layout_json import LayoutRecord
from ucpformat.model.packs import PackList
from ucpformat.model.root import Root
from ucpformat.model.state import StateDocument
from ucpformat.patterns import AtomMapDocument, Patterns

JSON_FENCES = [fence for fence in fences() if fence.info[:1] in (("json",), ("jsonc",))]
PARSERS: dict[str, Any] = {
    "arrangement": Arrangement.from_json,
    "atom-map": AtomMapDocument.from_json,
    "envelope": Envelope.from_json,
    "index": IndexPart.from_json,
    "layout": LayoutRecord.from_json,
    "packs": PackList.from_json,
    "patterns": Patterns.from_json,
    "root": Root.from_json,
    "state": StateDocument.from_json,
}


def name(fence: Fence) -> str:
    return f"line-{fence.line}"


def check(fence: Fence) -> None:
    """Fail unless the example is what its tags say; ``UcpError`` where it is refused."""
    at = f"SPEC.md line {fence.line}"
    value = jsonio.loads(fence.text.encode("utf-8"), at=at)
    what = fence.option("schema")
    assert what is not None, "an invalid example that is JSON says of what, too"
    if what == "root-extensions":
        validator = schema.validator("defs", "extensions")
        assert [fault.message for fault in validator.iter_errors(value)] == []
        for extension in value.values():  # type: ignore[union-attr]
            Extension.from_json(extension, at=at)
        return
    problems = list(schema.problems(what, value, at))
    if fence.option("invalid") is None:
        assert problems == []
    PARSERS[what](value, at=at)


def test_every_fence_says_what_it_is() -> None:
    for fence in fences():
        assert fence.info, f"the fence in line {fence.line} has no language"
        assert fence.info[0] in {"json", "text"}, f"the fence in line {fence.line} is neither json nor text"


@pytest.mark.parametrize("fence", JSON_FENCES, ids=name)
def test_a_json_example_is_tagged(fence: Fence) -> None:
    assert {word.partition("=")[0] for word in fence.info[1:]} & {"schema", "invalid"}
    assert {word.partition("=")[0] for word in fence.info[1:]} <= {"schema", "invalid"}


@pytest.mark.parametrize("fence", JSON_FENCES, ids=name)
def test_a_json_example_is_what_it_says(fence: Fence) -> None:
    code = fence.option("invalid")
    if code is None:
        check(fence)
        return
    assert code in REGISTRY
    with pytest.raises(UcpError) as caught:
        check(fence)
    assert caught.value.code == code


def test_every_kind_of_document_has_an_example() -> None:
    """A reader of the specification sees each of them once, whole."""
    shown = {fence.option("schema") for fence in JSON_FENCES}
    assert shown >= set(schema.schema_names()) - {"atom", "defs", "value"}


@pytest.mark.parametrize(
    ("info", "text", "raised"),
    [
        ("json schema=packs", '{"packs": {}}', AssertionError),
        ("json schema=packs", '{"packs": [}', UcpError),
        ("json schema=packs", '{"packs": [{"key": "x", "length": 0}]}', UcpError),
        ("json schema=root-extensions", '{"a": {"b": 1}}', AssertionError),
        ("json invalid=UCP-E-SCHEMA schema=packs", '{"packs": {}}', UcpError),
    ],
)
def test_the_check_refuses(info: str, text: str, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        check(Fence(tuple(info.split()), text, 1))
