"""`schema/examples`: documents that a schema accepts, and documents that it refuses for one stated reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ucpformat import jsonio, schema

EXAMPLES = Path(__file__).parents[2] / "schema" / "examples"
VALID = sorted(EXAMPLES.glob("valid/*/*.json"))
INVALID = sorted(EXAMPLES.glob("invalid/*/*.json"))


def load(path: Path) -> Any:
    return jsonio.loads(path.read_bytes(), at=path.name)


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", VALID, ids=name)
def test_valid_example_is_accepted(path: Path) -> None:
    assert list(schema.problems(path.parent.name, load(path), "document")) == []


@pytest.mark.parametrize("path", INVALID, ids=name)
def test_invalid_example_is_refused_where_and_why_it_says(path: Path) -> None:
    """UCP-D-006, UCP-D-020, UCP-D-022, UCP-D-085, UCP-D-035."""
    example = load(path)
    assert example.keys() == {"keyword", "at", "document"}
    faults = {
        (str(fault.validator), jsonio.pointer("", *fault.absolute_path).removeprefix("#"))
        for fault in schema.validator(path.parent.name).iter_errors(example["document"])
    }
    assert (example["keyword"], example["at"]) in faults
    # One mutation, one reason: whatever else is reported lies at the same place.
    assert {at for _, at in faults} == {example["at"]}


@pytest.mark.parametrize("path", INVALID, ids=name)
def test_problems_have_the_code_and_place_of_the_document(path: Path) -> None:
    example = load(path)
    problems = list(schema.problems(path.parent.name, example["document"], "x.json"))
    code = "UCP-E-FORMAT" if path.parent.name == "envelope" else "UCP-E-SCHEMA"
    assert {problem.code for problem in problems} == {code}
    assert len(set(problems)) == len(problems)
    for problem in problems:
        assert f"x.json#{example['at']}".startswith(problem.at) or problem.at.startswith(
            f"x.json#{example['at']}/" if example["at"] else "x.json"
        )
        assert 0 < len(problem.message) < 500


def test_every_schema_of_a_document_has_examples_of_both_kinds() -> None:
    documents = set(schema.schema_names()) - {"defs", "value"}
    assert {path.parent.name for path in VALID} >= documents
    assert {path.parent.name for path in INVALID} >= documents
