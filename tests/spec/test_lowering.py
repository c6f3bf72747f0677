"""SPEC.md, sections 12 and 13: the table of rules, the worked examples, and where structure can change."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from ucp_conformance.oracle import layouts
from ucp_conformance.oracle.buffers import entry_of
from ucp_conformance.oracle.layouts import Local, lower, pieces, view_of
from ucp_conformance.vectors import all_vectors

from tests.spec import lowering
from tests.spec.document import identifiers, lines, table
from ucpformat import geometry
from ucpformat.errors import UcpError
from ucpformat.geometry.reinterpret import reinterpret
from ucpformat.model.atom import place_from_json
from ucpformat.model.layout_json import LayoutRecord, MeshRecord, resolve

HEADER = "| step | of the layout alone | of the slot | at every coordinate | code |"
ALONE, SLOT, COORDINATE, CODE = range(1, 5)
OF_ELEMENTS = {"UCP-D-079", "UCP-D-080"}

Json = dict[str, Any]
LOWERED = [
    (vector.id.removeprefix("good/layouts/"), check["params"])
    for vector in all_vectors()
    if vector.id.startswith("good/layouts/")
    for check in vector.case["checks"]
    if check["op"] == "lower"
]
REFUSED = [
    (vector.case, check)
    for vector in all_vectors()
    if vector.id.startswith(("bad/layouts/", "bad/limits/layout-"))
    for check in vector.case["checks"]
    if check["op"] == "lower"
]


def section(number: str) -> str:
    text = "\n".join(lines())
    return text.partition(f"\n## {number}. ")[2].partition("\n## ")[0]


def test_the_table_has_every_rule_of_layouts() -> None:
    rows = table(HEADER)
    assert rows
    stated = set(re.findall(r"\[(UCP-D-\d{3})\]", section("12")))
    listed = identifiers(" ".join(cell for row in rows for cell in row[:CODE]))
    assert listed == stated - OF_ELEMENTS


def test_rules_without_a_code_of_their_own_are_those_that_readers_refuse_as_malformed() -> None:
    codes = {
        name: row[CODE].strip("`") for row in table(HEADER) for name in identifiers(" ".join(row[ALONE:CODE]))
    }
    for name, code in codes.items():
        (text,) = re.findall(rf"\[{name}\]\*\* (.*)", section("12"))
        own = re.findall(r"`(UCP-E-[A-Z-]+)`", text)
        assert own in ([], [code]), name
        assert own or code in {"UCP-E-LAYOUT", "UCP-E-REFERENCE"}, name


@pytest.mark.parametrize(("case", "check"), REFUSED, ids=[case["id"] for case, _ in REFUSED])
def test_a_rule_is_broken_when_the_table_says(case: Json, check: Json) -> None:
    """The mesh and the steps are looked at without a shape first, and then with one."""
    params = check["params"]
    when = {ALONE} if refused_alone(params) else {SLOT, COORDINATE}
    (rule,) = set(case["requirements"]) - {"UCP-R-003", "UCP-R-017"}
    found = [(place, row[CODE]) for row in table(HEADER) for place in when if rule in identifiers(row[place])]
    assert found
    assert {code.strip("`") for _, code in found} <= set(check["expect"]["error"]["codes"])


def refused_alone(params: Json) -> bool:
    mesh = MeshRecord.from_json(params["mesh"], at="mesh")
    layout = LayoutRecord.from_json({"mesh": 0, "steps": params["steps"]}, at="layout")
    resolved = resolve([mesh], [layout], at="")
    if resolved.problems:
        return True
    place = place_from_json(params["place"], "place") if "place" in params else None
    with pytest.raises(UcpError):
        evaluated(resolved.layouts[0], params["shape"], place)
    return False


def evaluated(layout: geometry.Layout, shape: Sequence[int], place: geometry.BufferPlace | None) -> None:
    lowered = geometry.lower(layout, tuple(shape), place=place)
    for coordinate in layout.mesh.coordinates():
        lowered.at(coordinate)


def test_worked_examples_are_cases_and_are_right() -> None:
    if os.environ.get("UCP_REWRITE_DOCS"):
        lowering.rewrite()
    shown = lowering.shown()
    assert (
        len(shown)
        == section("13").count("schema=lower-params")
        == section("13").count("schema=lower-result")
        == 5
    )
    for name, example in shown.items():
        assert example == lowering.vector(name), name
        asked, follows = example
        assert follows["locals"] == [
            {
                "coordinate": list(coordinate),
                "shape": None if local is None else list(local.shape),
                "pieces": [] if local is None else pieces(local, view_of(asked["steps"], asked["shape"])),
            }
            for coordinate, local in lower(asked["mesh"], asked["steps"], asked["shape"]).items()
        ]


def test_worked_examples_show_what_their_words_say() -> None:
    shown = lowering.shown()
    views = {name: view_of(asked["steps"], asked["shape"]) for name, (asked, _) in shown.items()}
    assert views["permute"] == (3, 4)
    assert views["view-falls-back"] == (2, 3) != tuple(shown["view-falls-back"][0]["shape"])
    counts = {
        name: [len(local["pieces"]) for local in follows["locals"]] for name, (_, follows) in shown.items()
    }
    assert counts["ceil-even"] == counts["permute"] == [1, 1]
    assert counts["flatten"][0] == 2
    assert counts["padding-breaks-group"] == [1, 2]
    first, second = shown["padding-breaks-group"][1]["locals"][1]["pieces"]
    assert (first["strides"][0], second["local"] - first["local"] - first["strides"][0]) == (4, 2)
    assert {
        tuple(piece["strides"]) for local in shown["permute"][1]["locals"] for piece in local["pieces"]
    } == {(1, 3)}


@pytest.mark.parametrize(("name", "params"), LOWERED, ids=[name for name, _ in LOWERED])
def test_structure_changes_next_to_ends_of_ranges_alone(name: str, params: Json) -> None:
    mesh, steps, shape = params["mesh"], params["steps"], params["shape"]
    view = view_of(steps, shape)
    if not view or math.prod(shape) == 0 or any(step["kind"] == "local" for step in steps):
        return
    for coordinate, local in lower(mesh, steps, shape, params.get("place")).items():
        if local is not None:
            near = set(ends(params, coordinate))
            assert set(changes(local, view)) <= {i for end in near for i in (end, end + 1)}, coordinate


def changes(local: Local, view: Sequence[int]) -> Iterator[int]:
    """Yield the indices of dimension 0 at which structure changes, or a step."""
    width = math.prod(view[1:])
    lists = [
        pieces(Local(local.shape, tuple(c if c // width == i else -1 for c in local.cells)), view)
        for i in range(view[0])
    ]
    alike = [[(p["offset"][1:], p["shape"][1:], p["strides"][1:]) for p in found] for found in lists]
    places = [[p["local"] for p in found] for found in lists]
    previous = None
    for i in range(1, view[0]):
        steps = [b - a for a, b in zip(places[i - 1], places[i], strict=False)]
        if alike[i] != alike[i - 1] or (previous is not None and steps != previous):
            yield i
        previous = steps if alike[i] == alike[i - 1] else None


def ends(params: Json, coordinate: tuple[int, ...]) -> Iterator[int]:
    """Yield the indices on dimension 0 of the view of the elements that begin a kept range, or stand behind one."""
    steps = params["steps"]
    seen = reinterpret(
        tuple(params["shape"]),
        [
            (
                geometry.View(tuple(step["shape"]))
                if step["kind"] == "view"
                else geometry.Permute(tuple(step["order"])),
                "",
            )
            for step in steps
            if step["kind"] in ("view", "permute")
        ],
    )
    kinds = [step["kind"] for step in steps]
    flat = kinds.index("flatten") if "flatten" in kinds else len(steps)
    dims = [
        kept(params, [step for step in steps[:flat] if step.get("dim") == dim], extent, coordinate)
        for dim, extent in enumerate(seen.extents)
    ]
    found = [dim for dim, group in enumerate(seen.dims) if 0 in group]
    if not found:
        return
    (mine,) = found
    group = seen.dims[mine]
    inner = math.prod(seen.view[dim] for dim in group[group.index(0) + 1 :])

    def index(element: int) -> int:
        whole = element // inner
        return whole if group[0] == 0 else whole % seen.view[0]

    yield from map(index, edges(dims[mine]))
    if flat == len(steps):
        return
    behind = math.prod(map(len, dims[mine + 1 :]))
    count = behind * math.prod(map(len, dims[: mine + 1]))
    cutting = [step for step in steps[flat + 1 :] if "dim" in step or step["kind"] == "concat"]
    ranges = kept(params, cutting, count, coordinate)
    for position in edges(ranges):
        if position < count:
            element = dims[mine][position // behind % len(dims[mine])]
            yield index(element if element >= 0 else seen.extents[mine])


def kept(params: Json, steps: list[Json], extent: int, coordinate: tuple[int, ...]) -> tuple[int, ...]:
    """Return what steps keep of one dimension, in the order of the local tensor; -1 is padding."""
    where = dict(zip((axis["name"] for axis in params["mesh"]["axes"]), coordinate, strict=True))
    tensor = layouts._Tensor((extent,), tuple(range(extent)))
    for step in steps:
        if step["kind"] == "concat":
            tensor = layouts._buffer(tensor, *entry_of(params["mesh"], params["place"], where))
        else:
            tensor = layouts._apply(tensor, {**step, "dim": 0}, params["mesh"], where)
    return tensor.cells


def edges(cells: Sequence[int]) -> Iterator[int]:
    """Yield the first index of every range, and the one behind its last."""
    held = sorted(cell for cell in cells if cell >= 0)
    for before, after in pairwise([-2, *held, -2]):
        if after != before + 1:
            yield from (at for at in (before + 1, after) if at >= 0)
