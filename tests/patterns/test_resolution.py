"""Pattern documents, parsed and resolved (SPEC-PATTERNS)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patterns.documents import TP, document, parsed, rule, shard
from ucpformat import jsonio
from ucpformat.errors import UcpError
from ucpformat.geometry import Blocks, Layout, Mesh, MeshAxis, Only, RaggedAxis, Shard
from ucpformat.model.atom import Atom, Slot
from ucpformat.patterns import Patterns, load_patterns, parse_glob, parse_patterns, resolve, slot_shapes

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "a.0.w": {"value": (8, 6), "step": ()},
    "a.1.w": {"value": (8, 6)},
    "b": {"value": (6,)},
}
MESH = Mesh((MeshAxis("tp", 2),))


DEFECTS: list[tuple[dict[str, Any], str, str]] = [
    ({"rules": [rule("a.**.**")]}, "UCP-E-PATTERN", "/rules/0/match"),
    ({"rules": [rule(["b", "{"])]}, "UCP-E-PATTERN", "/rules/0/match/1"),
    ({"rules": [rule("b", slots="{x")]}, "UCP-E-PATTERN", "/rules/0/slots"),
    ({"rules": [rule("x" * 1025)]}, "UCP-E-LIMIT", "/rules/0/match"),
    ({"rules": [rule("{tp}")]}, "UCP-E-PATTERN", "/rules/0/match"),
    ({"rules": [rule("{shape}")]}, "UCP-E-PATTERN", "/rules/0/match"),
    ({"rules": [rule("{x}", shard("=x"))]}, "UCP-E-PATTERN", "/rules/0/layout/steps/0/dim"),
    ({"rules": [rule(["{x:int}", "b"], shard("=x"))]}, "UCP-E-PATTERN", "/rules/0/layout/steps/0/dim"),
    ({"rules": [rule("b", shard("=1 +"))]}, "UCP-E-PATTERN", "/rules/0/layout/steps/0/dim"),
    ({"rules": [rule("b", shard("=" + "1" * 600))]}, "UCP-E-LIMIT", "/rules/0/layout/steps/0/dim"),
    ({"rules": [rule("b", shard(sizes={"each": "tp", "below": 1, "item": 1}))]}, "UCP-E-PATTERN",
     "/rules/0/layout/steps/0/sizes/each"),
    ({"rules": [rule("b", shard(sizes={"each": "2", "below": 1, "item": 1}))]}, "UCP-E-PATTERN",
     "/rules/0/layout/steps/0/sizes/each"),
    ({"rules": [{"match": "b", "layout": {"mesh": 1, "steps": []}}]}, "UCP-E-REFERENCE", "/rules/0/layout/mesh"),
    ({"parameters": [{"name": "shape"}], "meshes": []}, "UCP-E-PATTERN", "/parameters/0/name"),
    ({"parameters": [{"name": "tp"}, {"name": "tp"}]}, "UCP-E-PATTERN", "/parameters/1/name"),
    ({"parameters": [{"name": "tp", "default": "=later"}, {"name": "later"}]}, "UCP-E-PATTERN",
     "/parameters/0/default"),
    ({"meshes": [{"axes": [{"name": "tp", "size": "=shape[0]"}]}]}, "UCP-E-PATTERN", "/meshes/0/axes/0/size"),
    ({"read_features": ["zstd"]}, "UCP-E-FEATURE", "/read_features"),
    ({"write_features": ["zstd"]}, "UCP-E-FEATURE-SET", "/write_features"),
    ({"extensions": {"org.example": {}}}, "UCP-E-EXTENSION", "/extensions/org.example"),
    ({"format": "x"}, "UCP-E-FORMAT", "/format"),
    ({"format_version": 1}, "UCP-E-VERSION", "/format_version"),
    ({"kind": "plan"}, "UCP-E-SCHEMA", "/kind"),
]  # fmt: skip
"""What is wrong with a document, the code by which it is refused, and where."""


def refusal(patterns: Patterns, atoms: Any = SHAPES, **parameters: Any) -> UcpError:
    with pytest.raises(UcpError) as caught:
        resolve(patterns, atoms, parameters)
    return caught.value


def test_the_first_rule_that_matches_atom_and_slot_decides() -> None:
    patterns = parsed(
        rule("a.0.*", slots=["step", "exp_*"]),
        rule(["x.{i:int}", "a.{i:int}.w"], shard("=i")),
        rule("a.**", shard(1)),
        rule("**"),
    )
    assert resolve(patterns, SHAPES) == {
        ("a.0.w", "step"): Layout(MESH),
        ("a.0.w", "value"): Layout(MESH, (Shard("tp", 0, "even"),)),
        ("a.1.w", "value"): Layout(MESH, (Shard("tp", 1, "even"),)),
        ("b", "value"): Layout(MESH),
    }


@given(st.lists(st.sampled_from(["a.**", "*.{i:int}.w", "b", "**", "a.0.*", "c"]), max_size=6))
def test_order_is_all_that_decides_between_rules(globs: list[str]) -> None:
    """Each rule shards over an axis of its own, which tells which one it was."""
    axes = [{"name": f"r{place}", "size": 1} for place in range(len(globs))]
    rules = [
        rule(glob, {"kind": "only", "axis": f"r{place}", "coordinates": [0]})
        for place, glob in enumerate(globs)
    ]
    patterns = parsed(*rules, meshes=[{"axes": axes}])
    for name in ("a.0.w", "b"):
        wanted = next(
            (place for place, glob in enumerate(globs) if parse_glob(glob).match(name) is not None), None
        )
        if wanted is None:
            assert refusal(patterns, {name: {"value": ()}}).code == "UCP-E-UNMATCHED"
        else:
            found = resolve(patterns, {name: {"value": ()}})[name, "value"]
            assert found.steps == (Only(f"r{wanted}", (0,)),)


def test_null_leaves_a_slot_alone() -> None:
    patterns = parsed({"match": "b", "layout": None}, rule("**"))
    assert ("b", "value") not in resolve(patterns, SHAPES)
    assert len(resolve(patterns, SHAPES)) == 3


def test_equal_layouts_are_one_object() -> None:
    patterns = parsed(rule("a.0.*", shard()), rule("a.1.*", shard("=0 * shape[0]")), rule("**"))
    found = resolve(patterns, SHAPES | {"a.0.v": {"value": (8,)}}, {})
    assert found["a.0.w", "value"] is found["a.0.v", "value"] is found["a.1.w", "value"]


def test_expressions_make_meshes_and_steps() -> None:
    patterns = parsed(
        rule(
            "layers.{layer:int}.*",
            {"kind": "only", "axis": "pp", "coordinates": ["=stage[layer]"]},
            {
                "kind": "blocks",
                "dim": 0,
                "sizes": {"each": "i", "below": "=groups", "item": "=shape[0] / groups + i - i"},
                "steps": {"each": "i", "below": "=groups", "item": None},
            },
            shard(rule="balanced"),
        ),
        parameters=[
            {"name": "groups"},
            {"name": "pp", "default": 2},
            {"name": "layers", "default": "=2 * pp"},
            {
                "name": "stage",
                "type": "integers",
                "default": {"each": "layer", "below": "=layers", "item": "=layer // (layers / pp)"},
            },
            {"name": "widths", "type": "integers", "default": [1, "=groups"]},
        ],
        meshes=[
            {"axes": [{"name": "pp", "size": "=pp"}, {"name": "tp", "by": "pp", "sizes": "=widths"}],
             "ranks": {"each": "i", "below": "=1 + groups", "item": "=groups - i"}},
        ],
    )  # fmt: skip
    found = resolve(patterns, {f"layers.{layer}.w": {"value": (12, 5)} for layer in range(4)}, {"groups": 3})
    mesh = Mesh((MeshAxis("pp", 2), RaggedAxis("tp", "pp", (1, 3))), (3, 2, 1, 0))
    assert found == {
        (f"layers.{layer}.w", "value"): Layout(
            mesh, (Only("pp", (layer // 2,)), Blocks(0, (4, 4, 4), (None,) * 3), Shard("tp", 0, "balanced"))
        )
        for layer in range(4)
    }


def test_positions_of_a_tied_tensor_are_put_in_order() -> None:
    tied = {"kind": "only", "axis": "tp", "coordinates": ["=tp - 1", 0]}
    for tp, wanted in ((1, (0,)), (3, (0, 2))):
        found = resolve(parsed(rule("**", tied)), {"b": {"value": (6,)}}, {"tp": tp})
        assert found["b", "value"].steps == (Only("tp", wanted),)


def test_an_unmatched_name_is_refused_with_the_nearest_rules() -> None:
    """UCP-R-032."""
    patterns = parsed(
        rule("model.layers.{i:int}.mlp.up.weight"),
        rule("model.layers.{i:int}.attn.*.weight", slots="step"),
        rule("head.**"),
        rule("model.norm.weight"),
    )
    atoms: Any = {
        "model.layers.x.mlp.up.weight": {"value": (2,)},
        "model.layers.0.attn.q.weight": {"value": (2,)},
        **{f"tail.{place}": {"value": (2,)} for place in range(5)},
    }
    found = refusal(patterns, atoms)
    assert (found.code, found.at) == ("UCP-E-UNMATCHED", "patterns.json#/rules")
    assert found.message.startswith("nothing matches the slot 'value' of 'model.layers.x.mlp.up.weight'")
    assert "rule 0, 'model.layers.{i:int}.mlp.up.weight': component 3 is 'x', not '{i:int}'" in found.message
    assert "'head.**'" not in found.message
    assert "nor do 6 other atoms have a match: 'model.layers.0.attn.q.weight', 'tail.0'" in found.message
    del atoms["model.layers.x.mlp.up.weight"]
    assert "rule 1, which is for the slots step alone" in refusal(patterns, atoms).message
    assert "nothing matches the slot 'value' of 'b'. Add" in refusal(parsed(), {"b": {"value": ()}}).message


@pytest.mark.parametrize(("changes", "code", "at"), DEFECTS)
def test_documents_are_refused_where_they_are_wrong(changes: dict[str, Any], code: str, at: str) -> None:
    """UCP-R-022, UCP-R-033, UCP-D-119 to UCP-D-124."""
    with pytest.raises(UcpError) as caught:
        parse_patterns(json.dumps(document(**changes)).encode(), at="p.json")
    assert (caught.value.code, caught.value.at) == (code, f"p.json#{at}")


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"meshes": [[]]}, "/meshes/0"),
        ({"meshes": [{}]}, "/meshes/0"),
        ({"rules": [{"match": "b", "layout": {"mesh": 0, "steps": [1]}}]}, "/rules/0/layout/steps/0"),
        ({"rules": [{"match": "b", "layout": {"mesh": 0, "steps": [{}]}}]}, "/rules/0/layout/steps/0"),
        ({"rules": [rule("b", shard(0.5))]}, "/rules/0/layout/steps/0/dim"),  # type: ignore[arg-type]
    ],
)
def test_structure_is_checked_before_content(changes: dict[str, Any], at: str) -> None:
    """UCP-R-022: whatever else is wrong comes later."""
    value = document(**{**changes, "parameters": [{"name": "min"}]})
    with pytest.raises(UcpError) as caught:
        parse_patterns(json.dumps(value).encode(), at="p.json")
    assert (caught.value.code, caught.value.at) == ("UCP-E-SCHEMA", f"p.json#{at}")


def test_bytes_are_strict_json() -> None:
    """UCP-R-022."""
    with pytest.raises(UcpError) as caught:
        parse_patterns(b'{"format": "ucp", "format": "ucp"}')
    assert caught.value.code == "UCP-E-JSON"


@pytest.mark.parametrize(
    ("steps", "code", "at"),
    [
        ([shard("=shape[2]")], "UCP-E-PATTERN", "/rules/0/layout/steps/0/dim"),
        ([shard("=tp / 3")], "UCP-E-PATTERN", "/rules/0/layout/steps/0/dim"),
        ([shard("=0 - tp")], "UCP-E-SCHEMA", "/rules/0/layout/steps/0/dim"),
        ([shard(sizes={"each": "i", "below": "=0 - 1", "item": 1})], "UCP-E-PATTERN",
         "/rules/0/layout/steps/0/sizes"),
        ([shard(sizes={"each": "i", "below": "no", "item": 1})], "UCP-E-PATTERN",
         "/rules/0/layout/steps/0/sizes"),
        ([shard(sizes={"each": "i", "below": 2000, "item": {"each": "j", "below": 2000, "item": 1}})],
         "UCP-E-LIMIT", "/rules/0/layout/steps/0/sizes/item"),
        ([shard(sizes=["=tp", 1])], "", ""),
        ([shard(sizes=["=tp", 1, 1])], "UCP-E-LAYOUT", "/rules/0/layout/steps/0/sizes"),
        ([shard(), shard()], "UCP-E-LAYOUT", "/rules/0/layout/steps/1/axis"),
        ([{"kind": "split"}], "UCP-E-SCHEMA", "/rules/0/layout/steps/0/kind"),
        ([{"kind": "=1"}], "UCP-E-SCHEMA", "/rules/0/layout/steps/0/kind"),
        ([{"kind": "flatten", "dim": 0}], "UCP-E-SCHEMA", "/rules/0/layout/steps/0/dim"),
    ],
)  # fmt: skip
def test_what_a_rule_makes_is_checked_where_it_stands(steps: list[Any], code: str, at: str) -> None:
    """UCP-R-033, UCP-D-126 to UCP-D-128."""
    patterns = parsed(rule("b", *steps))
    if not code:
        assert len(resolve(patterns, {"b": {"value": (3, 1)}})) == 1
        return
    found = refusal(patterns, {"b": {"value": (3, 1)}})
    assert (found.code, found.at) == (code, f"patterns.json#{at}")
    assert "(for 'b' of shape [3, 1])" in found.message


def test_what_was_not_given_is_said_where_it_does_not_fit() -> None:
    """A default that others are made of is often what is wrong: a model of two layers, and layers=1."""
    atoms = {"model.layers.1.self_attn.q_proj.weight": {"value": (64, 64)}}
    with pytest.raises(UcpError) as caught:
        resolve(load_patterns("llama"), atoms, {"tp": 4})
    assert caught.value.message.endswith(
        "; not given, and at their defaults, are layers=1 (decoder layers; only their division among stages depends "
        "on it), pp=1 (pipeline stages)"
    )
    assert resolve(load_patterns("llama"), atoms, {"tp": 4, "layers": 2})


@pytest.mark.parametrize(
    ("parameters", "at", "why"),
    [
        ({"tp": -1, "n": 1}, "#/parameters/0", "'tp' is an integer from 0"),
        ({"tp": True, "n": 1}, "#/parameters/0", "not True"),
        ({"tp": [1], "n": 1}, "#/parameters/0", "'tp' is an integer from 0"),
        ({"n": 2**53}, "#/parameters/1", "'n' is an integer from 0"),
        ({"n": 1, "list": 3}, "#/parameters/2", "'list' is an array of integers"),
        ({"n": 1, "list": [1, -1]}, "#/parameters/2", "'list' is an array of integers"),
        ({"n": 1, "list": "12"}, "#/parameters/2", "'list' is an array of integers"),
        ({}, "#/parameters/1", r"'n' \(how many\) needs a value"),
        ({"n": 1, "m": 1}, "", "no parameter 'm'; there are: tp, n, list"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], at: str, why: str) -> None:
    """UCP-D-125."""
    patterns = parsed(
        rule("**"),
        parameters=[
            {"name": "tp", "default": 2},
            {"name": "n", "description": "how many"},
            {"name": "list", "type": "integers", "default": []},
        ],
    )
    with pytest.raises(UcpError, match=why) as caught:
        resolve(patterns, {}, parameters)
    assert (caught.value.code, caught.value.at) == ("UCP-E-PATTERN", f"patterns.json{at}")


def test_parameters_of_a_document_without_any() -> None:
    patterns = parsed(rule("**"), parameters=[], meshes=[{"axes": []}])
    assert resolve(patterns, {"b": {"value": ()}}) == {("b", "value"): Layout(Mesh(()))}
    with pytest.raises(UcpError, match="there are: none"):
        resolve(patterns, {}, {"tp": 1})


def test_a_default_of_the_wrong_type_is_refused() -> None:
    patterns = parsed(rule("**"), parameters=[{"name": "tp", "default": [1]}])
    assert refusal(patterns).code == "UCP-E-PATTERN"


def test_meshes_are_checked() -> None:
    patterns = parsed(rule("**"), meshes=[TP, {"axes": [{"name": "a", "size": "=tp - 2"}]}])
    assert (refusal(patterns).code, refusal(patterns).at) == (
        "UCP-E-SCHEMA",
        "patterns.json#/meshes/1/axes/0/size",
    )
    patterns = parsed(rule("**"), meshes=[TP, {"axes": [{"name": "", "size": 1}]}])
    assert (refusal(patterns).code, refusal(patterns).at) == (
        "UCP-E-LAYOUT",
        "patterns.json#/meshes/1/axes/0/name",
    )


def test_a_document_is_written_as_it_was_read() -> None:
    value = document(rule("b", shard("=tp - tp")))
    patterns = Patterns.from_json(jsonio.loads(json.dumps(value).encode(), at="x"), at="x")
    assert patterns.to_json() == value


def test_shapes_are_those_of_atoms() -> None:
    atom = Atom("b", "b", (Slot("step", "float32", ()), Slot("value", "float32", (3, 2))))
    assert slot_shapes([atom]) == {"b": {"step": (), "value": (3, 2)}}
