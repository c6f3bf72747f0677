"""Arrangement documents beyond what the schema says: names, references, layouts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ucpformat.errors import UcpError
from ucpformat.model.arrangement import Arrangement, parse_arrangement

EXAMPLE = Path(__file__).parents[2] / "schema" / "examples" / "valid" / "arrangement" / "full.json"


def document() -> Any:
    return json.loads(EXAMPLE.read_text())


def test_a_document_survives_the_way_there_and_back() -> None:
    found = parse_arrangement(EXAMPLE.read_bytes(), at="b.json")
    assert [slot.name for slot in found.atoms[0].slots] == ["exp_avg", "step", "value"]
    assert found.layouts[1].mesh is found.meshes[0]
    again = parse_arrangement(json.dumps(found.to_json()).encode(), at="b.json")
    assert again == found


@pytest.mark.parametrize(
    ("change", "code", "at"),
    [
        (lambda d: d["atoms"].append(d["atoms"][0]), "UCP-E-NAME", "#/atoms/1/name"),
        (lambda d: d["atoms"][0].update(name=""), "UCP-E-NAME", "#/atoms/0/name"),
        (
            lambda d: d["atoms"][0]["slots"]["value"].update(layout=2),
            "UCP-E-REFERENCE",
            "#/atoms/0/slots/value/layout",
        ),
        (
            lambda d: d["atoms"][0]["slots"]["value"].update(dtype="f32"),
            "UCP-E-DTYPE",
            "#/atoms/0/slots/value/dtype",
        ),
        (
            lambda d: d["atoms"][0]["slots"].update(Value={"dtype": "int8", "shape": []}),
            "UCP-E-KEY",
            "#/atoms/0/slots/value",
        ),
        (lambda d: d["layouts"][0]["steps"][0].update(axis="pp"), "UCP-E-LAYOUT", "#/layouts/0/steps/0/axis"),
        (lambda d: d["layouts"][1].update(mesh=1), "UCP-E-REFERENCE", "#/layouts/1/mesh"),
        (lambda d: d.update(read_features=["zstd"]), "UCP-E-FEATURE", "#/read_features"),
        (lambda d: d.update(write_features=["x"]), "UCP-E-FEATURE-SET", "#/write_features"),
    ],
)
def test_content_is_checked_where_it_stands(change: Any, code: str, at: str) -> None:
    value = copy.deepcopy(document())
    change(value)
    with pytest.raises(UcpError) as caught:
        parse_arrangement(json.dumps(value).encode(), at="b.json")
    assert (caught.value.code, caught.value.at) == (code, f"b.json{at}")


def test_structure_comes_before_content() -> None:
    value = document()
    value["atoms"].append(value["atoms"][0])
    _, problems = Arrangement.structure(value, at="b.json")
    assert [problem.code for problem in problems] == ["UCP-E-NAME"]
