"""The hand-written parsers refuse exactly the documents that the schemas refuse (SPEC 18, level structure)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.mutations import mutated
from ucpformat import jsonio, schema
from ucpformat.errors import UcpError
from ucpformat.model.arrangement import Arrangement
from ucpformat.model.atom import Atom
from ucpformat.model.envelope import check_envelope
from ucpformat.model.index_part import IndexPart
from ucpformat.model.layout_json import LayoutRecord
from ucpformat.model.references import PackList
from ucpformat.model.root import Root
from ucpformat.model.state import StateDocument
from ucpformat.patterns import AtomMapDocument, Patterns
from ucpformat.update_log.batch import BatchHeader
from ucpformat.update_log.documents import Epoch, LogDocument

EXAMPLES = Path(__file__).parents[2] / "schema" / "examples"


def structure_alone(parse: Callable[..., object]) -> Callable[..., object]:
    """A parser that passes over what is wrong with the content of a document."""

    def structure(value: Any, *, at: str) -> None:
        try:
            parse(value, at=at)
        except UcpError as found:
            if found.code in STRUCTURE:
                raise

    return structure


PARSERS: dict[str, Callable[..., object]] = {
    "arrangement": Arrangement.structure,
    "atom": Atom.from_json,
    "atom-map": structure_alone(AtomMapDocument.from_json),
    "envelope": check_envelope,
    "index": IndexPart.structure,
    "layout": LayoutRecord.from_json,
    "packs": PackList.structure,
    "patterns": structure_alone(Patterns.from_json),
    "root": Root.structure,
    "state": StateDocument.structure,
    "update-log": LogDocument.structure,
    "update-log-batch": BatchHeader.from_json,
    "update-log-epoch": Epoch.structure,
}
WHOLE: dict[str, Any] = {
    "arrangement": Arrangement,
    "atom-map": AtomMapDocument,
    "index": IndexPart,
    "packs": PackList,
    "patterns": Patterns,
    "root": Root,
    "state": StateDocument,
}
STRUCTURE = {"UCP-E-SCHEMA", "UCP-E-FORMAT", "UCP-E-VERSION"}
CONTENT = {
    "UCP-E-LIMIT",
    "UCP-E-KEY",
    "UCP-E-NAME",
    "UCP-E-REFERENCE",
    "UCP-E-FEATURE-SET",
    "UCP-E-DTYPE",
    "UCP-E-SHAPE",
    "UCP-E-LAYOUT",
    "UCP-E-PATTERN",
}
AT = "index/x.json"


def examples(name: str) -> list[Any]:
    valid = sorted(EXAMPLES.glob(f"valid/{name}/*.json"))
    return [jsonio.loads(path.read_bytes(), at=path.name) for path in valid]


def as_read(value: Any) -> Any:
    """What a reader of the document sees: numbers by value, not by spelling."""
    return jsonio.loads(jsonio.dumps_canonical(value), at=AT)


def refusal(parse: Callable[..., object], value: Any) -> UcpError | None:
    try:
        parse(value, at=AT)
    except UcpError as found:
        return found
    return None


def parents_exist(value: Any, at: str) -> bool:
    """Whether a place leads through ``value``, but for its last step, which may be what is missing."""
    key, _, pointer = at.partition("#")
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    for step in steps[:-1]:
        if isinstance(value, list):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return False
    return key == AT


@pytest.mark.parametrize("name", sorted(PARSERS))
@given(data=st.data())
def test_parser_refuses_what_the_schema_refuses(name: str, data: st.DataObject) -> None:
    """UCP-R-006, UCP-R-014, UCP-D-006, UCP-D-020, UCP-D-022."""
    value = as_read(data.draw(mutated(examples(name))))
    # Tagged values have a code and a parser of their own.
    problems = [found for found in schema.problems(name, value, AT) if found.code != "UCP-E-VALUE"]
    found = refusal(PARSERS[name], value)
    assert (found is not None) == bool(problems), (found, problems)
    if found is not None:
        assert found.code in STRUCTURE
        assert parents_exist(value, found.at)


@pytest.mark.parametrize("name", sorted(WHOLE))
@given(data=st.data())
def test_a_sound_document_is_read_whole_or_refused_for_its_content(name: str, data: st.DataObject) -> None:
    value = as_read(data.draw(mutated(examples(name))))
    if refusal(PARSERS[name], value) is not None:
        return
    found = refusal(WHOLE[name].from_json, value)
    if found is None:
        document = WHOLE[name].from_json(value, at=AT)
        assert WHOLE[name].from_json(as_read(document.to_json()), at=AT) == document
    else:
        assert found.code in CONTENT
        assert parents_exist(value, found.at)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_parser_refuses_every_invalid_example(name: str) -> None:
    for path in sorted(EXAMPLES.glob(f"invalid/{name}/*.json")):
        example: Any = jsonio.loads(path.read_bytes(), at=path.name)
        found = refusal(PARSERS[name], example["document"])
        assert found is not None, path
        assert found.code in STRUCTURE
