"""Whole columns say no more, and no less, than a look at every atom (SPEC 11.1)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.model.test_atom import AT, atom, parts
from ucpformat.errors import UcpError
from ucpformat.jsonio import JsonValue
from ucpformat.model.index_part import IndexPart, PartColumns, SoundAtoms, sound_atoms

# What may stand in the place of any value: other types, and texts and numbers at the edge of what is allowed.
STRANGE: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, True, False, 0, 1, -1, 1.5, 2**53 - 1, 2**53, "", "w", "W", "a/b", "é", "\x00", "\x7f", ".a", "zarr.json",
        "ZARR.JSON", "k" * 201, "n" * 1024, "n" * 1025, "é" * 513, "float31", "crc32c-tree:" + "F" * 64, [], ["w"],
        [1], [True], [-1], [[]], [2**53], [1] * 33, {}, {"value": {}}, {"name": "gzip", "configuration": {"level": 9}},
        {"name": "gzip", "configuration": {}},
        {"A": {"dtype": "int8", "shape": []}, "a": {"dtype": "int8", "shape": []}},
    ]
).map(copy.deepcopy)  # fmt: skip  # what is drawn may be changed in its turn


def places(value: JsonValue) -> list[tuple[str | int, ...]]:
    """The paths of all values below this one."""
    found: list[tuple[str | int, ...]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in items:
        found.append((step,))
        found += ((step, *rest) for rest in places(below))
    return found


@st.composite
def hostile_parts(draw: st.DrawFn) -> list[JsonValue]:
    """The atoms of a good part with some values replaced, removed or added."""
    found: Any = {"atoms": json.loads(json.dumps(draw(parts()).to_json()))["atoms"]}
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from(places(found)))
        target: Any = found
        for step in path:
            target = target[step]
        change = draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "replace":
            target[last] = draw(STRANGE)
        elif change == "remove" and len(path) > 0:
            del target[last]
        elif isinstance(target[last], dict):
            member = st.sampled_from(
                ["aliases", "annotations", "layout", "place", "content", "compressor", "x"]
            )
            target[last][draw(member)] = draw(STRANGE)
    atoms = found["atoms"]
    return atoms if isinstance(atoms, list) and atoms else [{}]


def problems(values: list[JsonValue]) -> list[object]:
    try:
        part = IndexPart.structure({"atoms": values}, at=AT)
    except UcpError as refusal:
        return [refusal.code]
    return list(part.problems(at=AT))


@given(hostile_parts())
@example([atom(slots={"value": {"dtype": "int8", "shape": [True]}}), atom(name="x", key="x")])
@example([atom(slots={"value": {"dtype": "int8", "shape": [1], "layout": True}})])
def test_what_is_taken_at_a_glance_has_no_problems(values: list[JsonValue]) -> None:
    if sound_atoms(values) is not None:
        assert problems(values) == []


@given(parts())
def test_good_parts_are_taken_at_a_glance(part: IndexPart) -> None:
    value = json.loads(json.dumps(part.to_json()))
    found = sound_atoms(value["atoms"])
    assert (found is not None) == (problems(value["atoms"]) == [])
    if found is not None:
        assert tuple(found) == part.atoms
        assert found[1:] == part.atoms[1:]
        assert found.columns == PartColumns.of(part.atoms)
        assert list(IndexPart(found).problems(at=AT)) == []


@pytest.mark.parametrize(
    "values", [[3], ["w"], [None], [[]], [{}], [{"name": "w"}], [atom(name={})], [atom(key=[])]]
)
def test_what_is_no_atom_takes_a_closer_look(values: list[JsonValue]) -> None:
    assert sound_atoms(values) is None


def test_layouts_beyond_the_root_are_found_in_columns() -> None:
    """UCP-D-032."""
    slots: dict[str, JsonValue] = {"value": {"dtype": "int8", "shape": [], "layout": 2}}
    part = IndexPart.from_json({"atoms": [atom(slots=slots)]}, at=AT)
    assert isinstance(part.atoms, SoundAtoms)
    assert part.columns().highest_layout == 2
    assert [problem.code for problem in part.reference_problems(2, at=AT)] == ["UCP-E-REFERENCE"]


def test_sound_atoms_are_no_other_sequence() -> None:
    found = sound_atoms([atom()])
    assert found is not None
    assert found != [*found]
