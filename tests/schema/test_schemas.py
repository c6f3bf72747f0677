"""The schemas themselves: well-formed, closed, portable, and found without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing.exceptions import Unresolvable

from ucpformat import jsonio, schema
from ucpformat.model.layout_json import STEP_KINDS

DRAFT = Path(__file__).parents[2] / "schema" / "draft"
# Say something of the beginning of a string, or of any character in it.
PARTIAL_PATTERNS = {"^([^$]|$)", "\\n"}
FILES = sorted(DRAFT.glob("*.json"))


def load(path: Path) -> Any:
    return jsonio.loads(path.read_bytes(), at=path.name)


def nodes(value: object) -> Iterator[dict[str, Any]]:
    """Every object of a schema but conditions, which ask and do not demand."""
    if isinstance(value, dict):
        yield value
        for keyword, item in value.items():
            if keyword != "if":
                yield from nodes(item)
    elif isinstance(value, list):
        for item in value:
            yield from nodes(item)


def test_the_registry_holds_every_file() -> None:
    assert [f"{name}.schema.json" for name in schema.schema_names()] == [path.name for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
class TestFile:
    def test_it_is_a_schema(self, path: Path) -> None:
        Draft202012Validator.check_schema(load(path))

    def test_its_id_ends_in_its_file_name(self, path: Path) -> None:
        assert load(path)["$id"] == schema.BASE + path.name

    def test_references_are_relative_and_resolve(self, path: Path) -> None:
        resolver = schema.registry().resolver(schema.BASE + path.name)
        for node in nodes(load(path)):
            if isinstance(reference := node.get("$ref"), str):
                assert "://" not in reference
                resolver.lookup(reference)

    def test_objects_with_members_are_closed(self, path: Path) -> None:
        if path.name == "envelope.schema.json":
            pytest.skip("the envelope is read out of documents of any version, which have more members")
        for node in nodes(load(path)):
            if node.get("type") == "object" and "properties" in node and "allOf" not in node:
                assert node.get("additionalProperties", node.get("unevaluatedProperties")) is False

    def test_unions_are_discriminated(self, path: Path) -> None:
        if path.name == "value.schema.json":
            pytest.skip("a tagged value is told by the name of its one member, which `anyOf` says best")
        for node in nodes(load(path)):
            assert not isinstance(node.get("anyOf", node.get("oneOf")), list)

    def test_patterns_mean_the_same_to_every_engine(self, path: Path) -> None:
        for node in nodes(load(path)):
            pattern = node.get("pattern")
            if not isinstance(pattern, str) or pattern in PARTIAL_PATTERNS:
                continue
            assert pattern.startswith("^")
            assert pattern.endswith("$")
            assert not re.search(r"\\[dDwWsSbB]|\(\?", pattern)
            # Some engines let `$` match before a newline at the end.
            assert "maxLength" in node or node.get("not") == {"pattern": "\\n"}

    def test_integers_are_bounded_by_what_binary64_holds(self, path: Path) -> None:
        if path.name == "envelope.schema.json":
            pytest.skip("a version of any size is well-formed, and refused as a version")
        for node in nodes(load(path)):
            if node.get("type") == "integer" and node.keys() != {"type"}:
                assert -(2**53) < node["minimum"] <= node["maximum"] < 2**53


def test_unions_name_the_kinds_there_are() -> None:
    found = list(schema.problems("layout", {"mesh": 0, "steps": [{"kind": "split"}]}, "ucp.json#/layouts/0"))
    assert [(problem.at, problem.message) for problem in found] == [
        (
            "ucp.json#/layouts/0/steps/0/kind",
            f'must be one of {", ".join(map(json.dumps, STEP_KINDS))}, not "split"',
        )
    ]


def test_a_union_member_of_the_wrong_type_is_reported_once() -> None:
    found = list(schema.problems("layout", {"mesh": 0, "steps": [3]}, "x"))
    assert [(problem.at, problem.message) for problem in found] == [
        ("x#/steps/0", "expected object, not integer")
    ]


def test_superfluous_members_are_reported_one_by_one_where_they_stand() -> None:
    found = list(schema.problems("packs", {"packs": [], "b": 1, "a/": 1}, "x"))
    assert [problem.at for problem in found] == ["x#/b", "x#/a~1"]


def test_tagged_values_have_their_own_code() -> None:
    state: Any = {"values": {"x": {"$no-such-tag": 1}}, "optimizers": {}, "blobs": {}, "more": 1}
    assert {problem.code for problem in schema.problems("state", state, "x")} == {
        "UCP-E-VALUE",
        "UCP-E-SCHEMA",
    }


def test_an_unknown_reference_is_not_fetched() -> None:
    with pytest.raises(Unresolvable):
        schema.registry().resolver(schema.BASE).lookup("https://example.org/schema.json")


def test_unknown_names_are_key_errors() -> None:
    with pytest.raises(KeyError):
        schema.validator("no-such-schema")
