"""Atom maps (SPEC-ATOM-MAPS): against numpy, both ways; and refused where something would be left over."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patterns.documents import atom_map, parsed_map
from ucpformat.errors import UcpError
from ucpformat.patterns import (
    AtomMapDocument,
    apply_atom_map,
    atom_map_names,
    atom_map_sides,
    carried,
    load_atom_map,
    parse_atom_map,
)
from ucpformat.patterns.atom_mapping import Direction

Arrays = dict[tuple[str, str], np.ndarray[Any, Any]]


def convert(document: AtomMapDocument, arrays: Arrays, towards: Direction, **parameters: int) -> Arrays:
    """``arrays``, which are all of the other side, as the map makes them."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for (atom, slot), array in arrays.items():
        shapes.setdefault(atom, {})[slot] = array.shape
    mapping = apply_atom_map(document, shapes, parameters, towards=towards)
    made = {
        (atom, slot): array for atom, slot, array in carried(mapping, lambda atom, slot: arrays[atom, slot])
    }
    assert {
        (atom, slot): shape for atom, slots in mapping.shapes.items() for slot, shape in slots.items()
    } == {key: array.shape for key, array in made.items()}
    return made


def refusal(
    document: AtomMapDocument, shapes: Any, towards: Direction = "right", **parameters: Any
) -> UcpError:
    with pytest.raises(UcpError) as caught:
        apply_atom_map(document, shapes, parameters, towards=towards)
    return caught.value


@st.composite
def sides(draw: st.DrawFn, hub: np.ndarray[Any, Any], arrays: Arrays, depth: int = 3) -> Any:
    """A tensor that is ``hub``; its atoms go to ``arrays``."""
    kind = draw(st.sampled_from(["atom", "stack", "concat"])) if depth else "atom"
    if kind == "stack" and hub.ndim and 0 < hub.shape[dim := draw(st.integers(0, hub.ndim - 1))] < 4:
        parts = [draw(sides(np.take(hub, i, dim), arrays, depth - 1)) for i in range(hub.shape[dim])]
        return {"kind": "stack", "dim": dim, "of": parts}
    if kind == "concat" and hub.ndim:
        dim = draw(st.integers(0, hub.ndim - 1))
        cuts = sorted(draw(st.lists(st.integers(0, hub.shape[dim]), max_size=2)))
        parts = [draw(sides(part, arrays, depth - 1)) for part in np.split(hub, cuts, dim)]
        return {"kind": "concat", "dim": dim, "of": parts}
    order = draw(st.permutations(range(hub.ndim)))
    seen = np.transpose(hub, np.argsort(order).tolist()).copy()
    shape = draw(st.sampled_from([seen.shape, (seen.size,), (1, seen.size), (*seen.shape, 1)]))
    name = f"a{len(arrays)}"
    arrays[name, "value"] = seen.reshape(shape)
    return {
        "kind": "atom",
        "name": name,
        "shape": list(shape),
        "view": list(seen.shape),
        "permute": list(order),
    }


@given(data=st.data(), shape=st.lists(st.sampled_from([0, 1, 2, 3, 4, 6]), max_size=4))
def test_a_side_means_what_numpy_makes_of_it_and_leads_back(data: st.DataObject, shape: list[int]) -> None:
    hub = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    arrays: Arrays = {}
    document = parsed_map({"left": data.draw(sides(hub, arrays)), "right": "whole"})
    made = convert(document, arrays, "right")
    assert made.keys() == {("whole", "value")}
    np.testing.assert_array_equal(made["whole", "value"], hub)
    back = convert(document, made, "left")
    assert back.keys() == arrays.keys()
    for key, array in arrays.items():
        assert back[key].shape == array.shape
        np.testing.assert_array_equal(back[key], array)


@given(data=st.data(), shape=st.lists(st.sampled_from([1, 2, 3, 4]), max_size=3))
def test_many_atoms_are_made_of_many(data: st.DataObject, shape: list[int]) -> None:
    hub = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    left: Arrays = {}
    right: Arrays = {}
    entry = {"left": data.draw(sides(hub, left)), "right": data.draw(sides(hub, right))}
    for towards, given_arrays, wanted in (("right", left, right), ("left", right, left)):
        made = convert(parsed_map(entry), given_arrays, towards)  # type: ignore[arg-type]
        assert made.keys() == wanted.keys()
        for key, array in wanted.items():
            np.testing.assert_array_equal(made[key], array)


def test_captures_of_every_kind_lead_either_way() -> None:
    document = parsed_map(
        {"left": "module.{i:int}.{rest:path}.{x}", "right": "{x}.{rest:path}.m{i:int}"},
    )
    arrays: Arrays = {(f"module.{i}.a.b.w", "value"): np.full((2,), i) for i in range(12)}
    made = convert(document, arrays, "right")
    assert list(made) == [(f"w.a.b.m{i}", "value") for i in range(12)]
    assert convert(document, made, "left").keys() == arrays.keys()


def test_experts_and_layers_are_stacked_and_taken_apart() -> None:
    """Per-expert atoms of each layer against one atom for all layers and experts."""
    document = parsed_map(
        {
            "left": {
                "kind": "stack",
                "dim": 0,
                "of": {
                    "each": "layer",
                    "below": "=n",
                    "item": {
                        "kind": "stack",
                        "dim": 0,
                        "of": {
                            "each": "e",
                            "below": "=n + 1",
                            "item": {
                                "kind": "atom",
                                "name": "layers.{layer:int}.experts.{e:int}.{which}",
                                "permute": [1, 0],
                            },
                        },
                    },
                },
            },
            "right": "experts.{which}",
        }
    )
    arrays: Arrays = {
        (f"layers.{layer}.experts.{e}.{which}", slot): np.random.default_rng(layer + e).random(
            (3, 4 + (which == "up"))
        )
        for layer in range(2)
        for e in range(3)
        for which in ("up", "down")
        for slot in ("value", "exp_avg")
    }
    made = convert(document, arrays, "right")
    assert {key: array.shape for key, array in made.items()} == {
        (f"experts.{which}", slot): (2, 3, 4 + (which == "up"), 3)
        for which in ("up", "down")
        for slot in ("value", "exp_avg")
    }
    np.testing.assert_array_equal(
        made["experts.up", "value"][1, 2], arrays["layers.1.experts.2.up", "value"].T
    )
    back = convert(document, made, "left")
    assert back.keys() == arrays.keys()
    assert all((back[key] == arrays[key]).all() for key in arrays)
    too_many = {f"layers.{layer}.experts.{e}.up": {"value": (3, 4)} for layer in range(2) for e in range(4)}
    found = refusal(document, too_many)
    assert found.code == "UCP-E-UNMATCHED"
    assert "'layers.0.experts.3.up'" in found.message
    assert "it has no atom of this index" in found.message


def test_what_is_the_same_is_one_and_is_checked() -> None:
    """UCP-D-134: tied weights, and the step count of what is fused."""
    document = parsed_map({"left": {"kind": "same", "of": ["in", "out"]}, "right": "tied"})
    one = np.arange(6).reshape(2, 3)
    made = convert(document, {("in", "value"): one, ("out", "value"): one.copy()}, "right")
    np.testing.assert_array_equal(made["tied", "value"], one)
    back = convert(document, made, "left")
    assert back.keys() == {("in", "value"), ("out", "value")}
    for other in (one + 1, one.astype(np.int32), one.reshape(3, 2)):
        with pytest.raises(UcpError) as caught:
            convert(document, {("in", "value"): one, ("out", "value"): other}, "right")
        assert caught.value.code == "UCP-E-MISMATCH"


def test_as_many_are_the_same_as_a_parameter_says() -> None:
    of = {"each": "e", "below": "=n", "item": "experts.{e:int}.{rest:path}"}
    document = parsed_map({"left": {"kind": "same", "of": of}, "right": "experts.{rest:path}"})
    arrays: Arrays = {(f"experts.{e}.up", "step"): np.array(7.0) for e in range(2)}
    made = convert(document, arrays, "right")
    assert made == {("experts.up", "step"): np.array(7.0)}
    assert convert(document, made, "left").keys() == arrays.keys()
    found = refusal(document, {"experts.0.up": {"step": ()}, "experts.2.up": {"step": ()}})
    assert found.code == "UCP-E-UNMATCHED"


def test_zero_and_minus_zero_are_not_the_same() -> None:
    document = parsed_map({"left": {"kind": "same", "of": ["in", "out"]}, "right": "tied"})
    with pytest.raises(UcpError, match="different elements"):
        convert(document, {("in", "value"): np.array([0.0]), ("out", "value"): np.array([-0.0])}, "right")


def test_the_first_entry_that_takes_a_slot_has_it() -> None:
    document = parsed_map(
        {"left": "a", "right": "b", "slots": "step"},
        {"left": "a", "right": "c"},
        {"left": "**", "right": None},
        {"left": None, "right": ["d", "e.*"]},
    )
    shapes: dict[str, dict[str, tuple[int, ...]]] = {"a": {"step": (), "value": (2,)}, "f.g": {"value": (1,)}}
    mapping = apply_atom_map(document, shapes, towards="right")
    assert mapping.shapes == {"b": {"step": ()}, "c": {"value": (2,)}}
    assert mapping.dropped == (("f.g", "value"),)
    back = apply_atom_map(
        document, mapping.shapes | {"d": {"value": ()}, "e.f": {"value": ()}}, towards="left"
    )
    assert back.shapes == {"a": shapes["a"]}
    assert back.dropped == (("d", "value"), ("e.f", "value"))


CONCAT = {
    "left": {
        "kind": "concat",
        "dim": 0,
        "of": [
            {"kind": "atom", "name": "q.{i:int}", "shape": ["=n", 3]},
            {"kind": "atom", "name": "k.{i:int}", "shape": [1, 3]},
        ],
    },
    "right": "qk.{i:int}",
}


@pytest.mark.parametrize(
    ("shapes", "code", "why"),
    [
        (
            {"x": {"value": (2, 3)}},
            "UCP-E-UNMATCHED",
            "'x'; the nearest are entry 0, 'q.{i:int}': component 1 is 'x'",
        ),
        ({"q.0": {"value": (2, 3)}}, "UCP-E-MISMATCH", "the slot 'value' of 'k.0' that belongs to it is not"),
        (
            {"q.0": {"value": (2, 3), "m": (2, 3)}, "k.0": {"value": (1, 3)}},
            "UCP-E-MISMATCH",
            "the slot 'm' of 'k.0'",
        ),
        ({"q.0": {"value": (3, 3)}, "k.0": {"value": (1, 3)}}, "UCP-E-MISMATCH", "the map says [2, 3]"),
    ],
)
def test_atoms_that_do_not_fit_are_refused(shapes: Any, code: str, why: str) -> None:
    """UCP-R-032, UCP-D-134."""
    found = refusal(parsed_map(CONCAT), shapes)
    assert found.code == code
    assert why in found.message
    assert found.at.startswith("atom-map.json#/entries")


def test_many_missing_atoms_are_counted() -> None:
    document = parsed_map(
        {
            "left": {"kind": "stack", "dim": 0, "of": {"each": "e", "below": 5, "item": "x.{e:int}"}},
            "right": "x",
        }
    )
    assert "3 more are missing" in refusal(document, {"x.2": {"value": ()}}).message


def test_a_tensor_of_another_shape_is_refused_on_the_way_back() -> None:
    found = refusal(parsed_map(CONCAT), {"qk.0": {"value": (4, 3)}}, "left")
    assert (found.code, found.at) == ("UCP-E-MISMATCH", "atom-map.json#/entries/0")


def test_a_slot_is_made_once() -> None:
    """UCP-D-135."""
    document = parsed_map({"left": "a", "right": "c"}, {"left": "b", "right": "c"})
    found = refusal(document, {"a": {"value": ()}, "b": {"value": ()}})
    assert (found.code, found.at) == ("UCP-E-NAME", "atom-map.json#/entries/1")


@pytest.mark.parametrize(
    ("left", "shapes", "code", "at"),
    [
        ({"kind": "atom", "name": "a", "permute": [0, 0]}, {"a": (2, 2)}, "UCP-E-PATTERN", "/left/permute"),
        ({"kind": "atom", "name": "a", "permute": [0]}, {"a": (2, 2)}, "UCP-E-PATTERN", "/left/permute"),
        ({"kind": "atom", "name": "a", "shape": [4], "view": [3]}, {"a": (4,)}, "UCP-E-PATTERN", "/left/view"),
        ({"kind": "atom", "name": "a", "shape": ["=n - 3"]}, {"a": (4,)}, "UCP-E-SCHEMA", "/left/shape/0"),
        ({"kind": "atom", "name": "a", "shape": ["=n / 3"]}, {"a": (4,)}, "UCP-E-PATTERN", "/left/shape/0"),
        ({"kind": "atom", "name": "a", "shape": ["n"]}, {"a": (4,)}, "UCP-E-SCHEMA", "/left/shape/0"),
        ({"kind": "stack", "dim": 2, "of": ["a"]}, {"a": (4,)}, "UCP-E-PATTERN", "/left/dim"),
        ({"kind": "stack", "dim": 0, "of": ["a", "b"]}, {"a": (4,), "b": (3,)}, "UCP-E-MISMATCH", "/left"),
        ({"kind": "concat", "dim": 1, "of": [{"kind": "atom", "name": "a", "shape": [4]}]}, {"a": (4,)},
         "UCP-E-PATTERN", "/left/dim"),
        ({"kind": "stack", "dim": 0, "of": {"each": "e", "below": "=n - 2", "item": "a.{e:int}"}}, {"a.0": ()},
         "UCP-E-PATTERN", "/left"),
        ({"kind": "same", "of": ["a", "b"]}, {"a": (2, 3), "b": (3, 2)}, "UCP-E-MISMATCH", ""),
    ],
)  # fmt: skip
def test_a_side_that_does_not_fit_is_refused_where_it_stands(
    left: Any, shapes: Any, code: str, at: str
) -> None:
    """UCP-R-033, UCP-D-132."""
    found = refusal(
        parsed_map({"left": left, "right": "whole"}),
        {name: {"value": shape} for name, shape in shapes.items()},
    )
    assert (found.code, found.at) == (code, f"atom-map.json#/entries/0{at}")


def test_a_tensor_is_not_made_of_too_many_atoms(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCP-D-133; the limit is lowered here, as a million atoms take their time."""
    assert atom_map_sides.MAX_PARTS == 2**20
    monkeypatch.setattr(atom_map_sides, "MAX_PARTS", 30)
    inner = {"kind": "stack", "dim": 0, "of": {"each": "f", "below": "=n", "item": "a.{e:int}.{f:int}"}}
    left = {"kind": "stack", "dim": 0, "of": {"each": "e", "below": 1 << 50, "item": inner}}
    found = refusal(parsed_map({"left": left, "right": "whole"}), {"a.0.0": {"value": ()}})
    assert (found.code, found.at) == ("UCP-E-LIMIT", "atom-map.json#/entries/0/left/of/item/of/item")


@pytest.mark.parametrize(
    ("entry", "code", "at"),
    [
        ({"left": "a.*", "right": "b"}, "UCP-E-PATTERN", "/left"),
        ({"left": "a.**", "right": "b"}, "UCP-E-PATTERN", "/left"),
        ({"left": "{", "right": "{"}, "UCP-E-PATTERN", "/left"),
        ({"left": "a" * 1025, "right": "b"}, "UCP-E-LIMIT", "/left"),
        ({"left": "a.{x}", "right": "b"}, "UCP-E-PATTERN", "/right"),
        ({"left": "a.{x}", "right": "b.{x:int}"}, "UCP-E-PATTERN", "/right"),
        ({"left": "a.{n}", "right": "b.{n}"}, "UCP-E-PATTERN", "/left"),
        ({"left": "a", "right": None, "slots": "**.**"}, "UCP-E-PATTERN", "/slots"),
        ({"left": "**.**", "right": None}, "UCP-E-PATTERN", "/left"),
        ({"left": "a", "right": {"kind": "atom", "name": "{", "shape": [1]}}, "UCP-E-PATTERN", "/right/name"),
        ({"left": "a", "right": {"kind": "atom", "name": "b", "view": [1]}}, "UCP-E-PATTERN", "/right"),
        ({"left": "a", "right": {"kind": "atom", "name": "b", "shape": ["=m"]}}, "UCP-E-PATTERN", "/right/shape/0"),
        ({"left": "a", "right": {"kind": "atom", "name": "b", "permute": ["=shape[0]"]}}, "UCP-E-PATTERN",
         "/right/permute/0"),
        ({"left": "a", "right": {"kind": "concat", "dim": 0, "of": ["b"]}}, "UCP-E-PATTERN", "/right/of/0"),
        ({"left": "a", "right": {"kind": "concat", "dim": 0, "of": {"each": "i", "below": 2, "item":
          {"kind": "stack", "dim": 0, "of": ["b.{i:int}"]}}}}, "UCP-E-PATTERN", "/right/of/item/of/0"),
        ({"left": "a", "right": {"kind": "stack", "dim": 0, "of": [{"kind": "same", "of": ["b"]}]}},
         "UCP-E-PATTERN", "/right/of/0"),
        ({"left": "a", "right": {"kind": "stack", "dim": 0, "of": {"each": "i", "below": 2, "item": "b"}}},
         "UCP-E-PATTERN", "/right/of/item"),
        ({"left": "a", "right": {"kind": "stack", "dim": 0, "of": {"each": "n", "below": 2, "item": "b.{n:int}"}}},
         "UCP-E-PATTERN", "/right/of/each"),
    ],
)  # fmt: skip
def test_documents_are_refused_where_they_are_wrong(entry: Any, code: str, at: str) -> None:
    """UCP-R-033, UCP-D-129 to UCP-D-131."""
    with pytest.raises(UcpError) as caught:
        parse_atom_map(json.dumps(atom_map(entry)).encode(), at="m.json")
    assert (caught.value.code, caught.value.at) == (code, f"m.json#/entries/0{at}")


@pytest.mark.parametrize(
    ("side", "at"),
    [
        (1, ""),
        ({}, ""),
        ({"kind": "concat", "dim": 0, "of": "a"}, "/of"),
        ({"kind": "atom", "name": "a", "shape": "=n"}, "/shape"),
        ({"kind": "same", "of": [1]}, "/of/0"),
        ({"kind": "same", "of": {"each": "i", "below": 1, "item": {}}}, "/of/item"),
    ],
)
def test_structure_is_checked_before_content(side: Any, at: str) -> None:
    """UCP-R-022: whatever else is wrong comes later."""
    with pytest.raises(UcpError) as caught:
        parse_atom_map(json.dumps(atom_map({"left": "**", "right": side})).encode(), at="m.json")
    assert (caught.value.code, caught.value.at) == ("UCP-E-SCHEMA", f"m.json#/entries/0/right{at}")


def test_a_name_that_does_not_lead_back_is_refused() -> None:
    """UCP-D-129: the text that was captured would be captured otherwise."""
    document = parsed_map({"left": "{x}.{y}-z", "right": "{x}-{y}"})
    assert convert(document, {("a.b-z", "value"): np.array(1)}, "right").keys() == {("a-b", "value")}
    found = refusal(document, {"a-c.b-z": {"value": ()}})
    assert (found.code, found.at) == ("UCP-E-PATTERN", "atom-map.json#/entries/0")
    assert "does not lead back" in found.message


def test_parameters_are_those_of_the_document() -> None:
    found = refusal(parsed_map(CONCAT), {}, m=1)
    assert (found.code, found.at) == ("UCP-E-PATTERN", "atom-map.json")
    assert refusal(parsed_map(CONCAT), {}, n=-1).at == "atom-map.json#/parameters/0"


def test_parts_of_several_data_types_are_refused() -> None:
    document = parsed_map(CONCAT)
    arrays: Arrays = {("q.0", "value"): np.zeros((2, 3)), ("k.0", "value"): np.zeros((1, 3), np.float32)}
    with pytest.raises(UcpError, match="float32, float64"):
        convert(document, arrays, "right")


def test_a_source_of_another_size_than_was_said_is_refused() -> None:
    mapping = apply_atom_map(
        parsed_map({"left": "a", "right": "b"}), {"a": {"value": (3, 2)}}, towards="right"
    )
    with pytest.raises(UcpError, match="has 5 elements"):
        list(carried(mapping, lambda _atom, _slot: np.zeros(5)))


def test_a_document_is_written_as_it_was_read() -> None:
    assert parsed_map(CONCAT).to_json() == atom_map(CONCAT)


@pytest.mark.parametrize("name", atom_map_names())
def test_a_ready_made_map_is_sound_and_explains_its_parameters(name: str) -> None:
    document = load_atom_map(name)
    assert document.to_json()["description"]
    assert all(parameter.description for parameter in document.parameters.entries)
