"""Every JSON example of the specification says what it is an example of, and is one."""

from __future__ import annotations

import pytest

from tests.documentation.data import check_data
from tests.documentation.markdown import Block
from tests.spec.document import fences
from ucpformat import schema
from ucpformat.errors import REGISTRY, UcpError

JSON_FENCES = [fence for fence in fences() if fence.language == "json"]


def test_every_fence_says_what_it_is() -> None:
    for fence in fences():
        assert fence.language in {"json", "text"}, f"the fence at {fence} is neither json nor text"


@pytest.mark.parametrize("fence", JSON_FENCES, ids=str)
def test_a_json_example_is_tagged(fence: Block) -> None:
    assert fence.options.keys() & {"schema", "invalid"}
    assert fence.options.keys() <= {"schema", "invalid", "case"}


@pytest.mark.parametrize("fence", JSON_FENCES, ids=str)
def test_a_json_example_is_what_it_says(fence: Block) -> None:
    code = fence.options.get("invalid")
    if code is None:
        check_data(fence)
        return
    assert code in REGISTRY
    with pytest.raises(UcpError) as caught:
        check_data(fence)
    assert caught.value.code == code


def test_every_kind_of_document_has_an_example() -> None:
    """A reader of the specification sees each of them once, whole."""
    shown = {fence.options.get("schema") for fence in JSON_FENCES}
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
        check_data(Block("SPEC.md", 1, info, text, ""))
