"""The vectors of lowering in one file: the library lowers them, and the page shows what the file says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.conformance.suite import CONFORMANCE
from tests.documentation.markdown import run_by
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Strided, lower
from ucpformat.model.atom import place_from_json
from ucpformat.model.layout_json import LayoutRecord, MeshRecord, resolve

Json = dict[str, Any]
VECTORS = json.loads((CONFORMANCE / "lowering.json").read_bytes())


def lowered(vector: Json) -> tuple[list[int], list[Json]]:
    """The view and the local tensors that the library makes of a vector."""
    mesh = MeshRecord.from_json(vector["mesh"], at="mesh")
    record = LayoutRecord.from_json({"mesh": 0, "steps": vector["steps"]}, at="layout")
    resolved = resolve([mesh], [record], at="layout")
    if resolved.problems:
        first = resolved.problems[0]
        raise UcpError(first.code, first.message, at=first.at)
    layout: Layout = resolved.layouts[0]
    place = place_from_json(vector["place"], "place") if "place" in vector else None
    lowering = lower(layout, tuple(vector["shape"]), place=place)
    found: list[Json] = []
    for coordinate in layout.mesh.coordinates():
        local = lowering.at(coordinate)
        pieces = []
        for piece in () if local is None else local.pieces:
            assert isinstance(piece.local, Strided)
            pieces.append(
                {
                    "offset": list(piece.box.offset),
                    "shape": list(piece.box.shape),
                    "local": piece.local.offset,
                    "strides": list(piece.local.strides),
                }
            )
        shape = None if local is None else list(local.shape)
        found.append({"coordinate": list(coordinate), "shape": shape, "pieces": pieces})
    return list(lowering.view), found


# A million blocks take seconds: the run of the reference (test_runs.py) has the same case.
LOWERED_THERE = {"good/limits/layout-blocks"}


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS["good"] if vector["name"] not in LOWERED_THERE],
    ids=lambda vector: vector["name"],
)
def test_the_library_lowers_it(vector: Json) -> None:
    assert lowered(vector) == (vector["view"], vector["locals"])


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: vector["case"])
def test_the_library_refuses_it(vector: Json) -> None:
    with pytest.raises(UcpError) as caught:
        lowered(vector)
    assert caught.value.code in vector["codes"]


def test_the_page_shows_every_vector() -> None:
    blocks = run_by("tests/conformance/test_lowering.py", "conformance/LOWERING.md")
    assert len(blocks) == len(VECTORS["good"]) > 80
    shown = {json.dumps(read(block.text)) for block in blocks}
    assert shown == {json.dumps(told(vector)) for vector in VECTORS["good"]}


def read(text: str) -> list[Any]:
    """A block of the page: shape, view, mesh, steps, place, and pieces or their number."""
    (shape, view), (mesh,) = (
        re.findall(r"^shape (\[.*?\])(?: view (.*))?$", text, re.MULTILINE)[0],
        re.findall(r"^mesh (.*)$", text, re.MULTILINE),
    )
    steps = [json.loads(step) for step in re.findall(r"^step (.*)$", text, re.MULTILINE)]
    place = [json.loads(place) for place in re.findall(r"^place (.*)$", text, re.MULTILINE)]
    many = re.findall(r"^(\d+) pieces$", text, re.MULTILINE)
    if many:
        return [json.loads(shape), json.loads(view or shape), json.loads(mesh), steps, place, int(many[0])]
    locals_: list[Json] = []
    for line in text.splitlines():
        if match := re.fullmatch(r"at (\[.*?\]) (?:nothing|local (.*))", line):
            local = None if match[2] is None else json.loads(match[2])
            locals_.append({"coordinate": json.loads(match[1]), "shape": local, "pieces": []})
        elif match := re.fullmatch(r"  (\[.*\])\+(\[.*\]) at (\d+) by (\[.*\])", line):
            names = ("offset", "shape", "local", "strides")
            locals_[-1]["pieces"].append(
                {name: json.loads(text) for name, text in zip(names, match.groups(), strict=True)}
            )
    return [json.loads(shape), json.loads(view or shape), json.loads(mesh), steps, place, locals_]


def told(vector: Json) -> list[Any]:
    """What `read` makes of a vector's block."""
    count = sum(len(local["pieces"]) for local in vector["locals"])
    place = [vector["place"]] if "place" in vector else []
    return [
        vector["shape"],
        vector["view"],
        vector["mesh"],
        vector["steps"],
        place,
        count if count > 16 else vector["locals"],
    ]
