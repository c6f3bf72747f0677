"""Meshes and layouts as JSON (SPEC 12)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat import jsonio, schema
from ucpformat.errors import UcpError
from ucpformat.geometry import (
    BlockRule,
    Blocks,
    Concat,
    Flatten,
    Join,
    Layout,
    LocalOnly,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Partial,
    Permute,
    RaggedAxis,
    Scale,
    Shard,
    Step,
    View,
)
from ucpformat.model.layout_json import (
    LayoutRecord,
    MeshRecord,
    layout_to_json,
    mesh_to_json,
    resolve,
    step_from_json,
    step_to_json,
)

extents = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)
shards = st.builds(
    Shard, st.sampled_from("abc"), st.integers(0, 3), st.sampled_from(["ceil", "even", "balanced"]) | extents
)
own_steps = st.none() | st.lists(st.none() | st.lists(shards, max_size=2).map(tuple), max_size=3).map(tuple)
rules = st.builds(BlockRule, st.sampled_from(["ceil", "even", "balanced"]), st.integers(1, 9))
steps: st.SearchStrategy[Step] = (
    shards
    | st.just(Flatten())
    | st.builds(Join, st.integers(0, 3))
    | st.builds(Only, st.sampled_from("abc"), extents)
    | st.builds(Blocks, st.integers(0, 3), extents | rules, own_steps)
    | st.builds(View, st.lists(st.integers(0, 9), max_size=3).map(tuple))
    | st.builds(Permute, st.lists(st.integers(0, 3), max_size=3).map(tuple))
    | st.builds(Concat, st.sampled_from(["a", "ü"]))
    | st.builds(Partial, st.sampled_from("abc"), st.sampled_from(["mean", "sum", "max"]))
    | st.integers(-4096, 4096).map(lambda exponent: Scale(Fraction(2) ** exponent))
    | st.builds(LocalOnly, st.sampled_from(["refuse", "keep"]))
    | st.builds(lambda dim, to: Pad(dim, to=to), st.integers(0, 3), st.integers(0, 9))
    | st.builds(lambda dim, multiple: Pad(dim, multiple=multiple), st.integers(0, 3), st.integers(1, 9))
)


def again(value: Any) -> Any:
    return jsonio.loads(jsonio.dumps_canonical(value), at="x")


@given(steps)
def test_a_step_survives_the_way_through_json(step: Step) -> None:
    value = again(step_to_json(step))
    assert step_from_json(value, at="x") == step
    assert list(schema.problems("layout", {"mesh": 0, "steps": [value]}, "x")) == []


@given(st.permutations(range(6)), st.booleans())
def test_a_mesh_survives_the_way_through_json(ranks: list[int], explicit: bool) -> None:
    mesh = Mesh((MeshAxis("a", 2), MeshAxis("b", 3)), tuple(ranks) if explicit else None)
    record = MeshRecord.from_json(again(mesh_to_json(mesh)), at="x")
    assert resolve([record], [], at="x").meshes == (mesh,)


def test_a_ragged_mesh_survives_the_way_through_json() -> None:
    mesh = Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (3, 1))), (3, 2, 1, 0))
    record = MeshRecord.from_json(again(mesh_to_json(mesh)), at="x")
    assert resolve([record], [], at="x").meshes == (mesh,)


def test_a_layout_refers_to_its_mesh_by_index() -> None:
    meshes = (Mesh(()), Mesh((MeshAxis("a", 2),)))
    layout = Layout(meshes[1], (Shard("a", 0),))
    record = LayoutRecord.from_json(again(layout_to_json(layout, meshes)), at="x")
    assert record.mesh == 1
    records = [MeshRecord(mesh.axes, mesh.ranks) for mesh in meshes]
    resolved = resolve(records, [record], at="x")
    assert (resolved.layouts, resolved.problems) == ((layout,), ())


def test_a_layout_on_a_mesh_that_is_not_stored_is_refused() -> None:
    with pytest.raises(UcpError, match="UCP-E-REFERENCE"):
        layout_to_json(Layout(Mesh(())), ())


@pytest.mark.parametrize("factor", [Fraction(3), Fraction(-2), Fraction(1, 3), Fraction(2) ** 4097])
def test_other_factors_than_powers_of_two_are_not_stored(factor: Fraction) -> None:
    with pytest.raises(UcpError, match=r"UCP-E-LAYOUT.*powers of two"):
        step_to_json(Scale(factor))


def test_layouts_of_one_buffer_do_the_same_with_it() -> None:
    """UCP-D-075."""
    meshes = [MeshRecord((MeshAxis("a", 2), MeshAxis("b", 2)), None)] * 2
    buffer = (Flatten(), Concat("g"))
    layouts = [
        LayoutRecord(0, (*buffer, Shard("a", 0))),
        LayoutRecord(0, (Shard("b", 0), *buffer, Shard("a", 0))),
        LayoutRecord(1, (*buffer, Shard("b", 0))),
        LayoutRecord(0, (Flatten(), Concat("h"))),
        LayoutRecord(0, (*buffer, Shard("a", 0, "even"))),
    ]
    resolved = resolve(meshes, layouts, at="x")
    assert [(problem.code, problem.at) for problem in resolved.problems] == [
        ("UCP-E-LAYOUT", "x#/layouts/4/steps")
    ]
    assert len(resolved.layouts) == 5


def test_every_problem_of_meshes_and_layouts_is_found() -> None:
    """UCP-D-039, UCP-D-044, UCP-D-045, UCP-R-017."""
    meshes = [MeshRecord((MeshAxis("a", 2), MeshAxis("a", 2)), None), MeshRecord((MeshAxis("a", 2),), None)]
    layouts = [
        LayoutRecord(0, ()),
        LayoutRecord(2, ()),
        LayoutRecord(1, (Flatten(), Shard("b", 0))),
        LayoutRecord(1, ()),
    ]
    resolved = resolve(meshes, layouts, at="ucp.json")
    assert [(problem.code, problem.at) for problem in resolved.problems] == [
        ("UCP-E-LAYOUT", "ucp.json#/meshes/0/axes/1/name"),
        ("UCP-E-REFERENCE", "ucp.json#/layouts/1/mesh"),
        ("UCP-E-LAYOUT", "ucp.json#/layouts/2/steps/1/axis"),
    ]
    assert len(resolved.meshes) == len(resolved.layouts) == 1
