"""Drawings: every cell is labelled by who holds it, in text and in SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import ucpformat as ucp
from ucpformat.layouts import BlockRule, Blocks, BufferPlace, Concat, Join, Pad

DP2_TP4 = ucp.Mesh((ucp.MeshAxis("dp", 2), ucp.MeshAxis("tp", 4)))
TP2 = ucp.Mesh((ucp.MeshAxis("tp", 2),))


def labels(drawing: ucp.Drawing) -> list[str]:
    """Return the label of every cell of the SVG, row by row."""
    root = ElementTree.fromstring(drawing.svg())
    return [group.findtext("{*}text") or "" for group in root.iter("{http://www.w3.org/2000/svg}g")]


CASES: list[tuple[ucp.Layout, tuple[int, ...], BufferPlace | None, list[str]]] = [
    (ucp.Layout(DP2_TP4, (ucp.Shard("tp", 0),)), (8, 4), None, ["0,4", "1,5", "2,6", "3,7"]),
    (ucp.Layout(DP2_TP4), (8, 4), None, ["0 +7"]),
    (ucp.Layout(DP2_TP4), (), None, ["0 +7"]),
    (ucp.Layout(TP2, (ucp.Shard("tp", 0),)), (5,), None, ["0", "1"]),
    (ucp.Layout(TP2, (ucp.Only("tp", (1,)),)), (2, 2), None, ["1"]),
    # fused: each of two blocks is split
    (
        ucp.Layout(TP2, (Blocks(0, (4, 2)), ucp.Shard("tp", 0, "even"), Join(0))),
        (6, 3),
        None,
        ["0", "1", "0", "1"],
    ),
    # strided: blocks by a rule
    (
        ucp.Layout(TP2, (Blocks(0, BlockRule("even", 2)), ucp.Shard("tp", 0, "even"), Join(0))),
        (8,),
        None,
        ["0", "1", "0", "1"],
    ),
    (ucp.Layout(TP2, (Pad(0, to=6), ucp.Shard("tp", 0, "even"))), (5, 2), None, ["0", "1"]),
    # a flat buffer that begins with another tensor
    (
        ucp.Layout(TP2, (ucp.Flatten(), Concat("flat"), ucp.Shard("tp", 0, "even"))),
        (2, 2),
        BufferPlace((1,), (8,)),
        ["0", "0", "0", "1"],
    ),
    # the third dim is the one that is split
    (ucp.Layout(TP2, (ucp.Shard("tp", 2, "even"),)), (3, 2, 4), None, ["0", "1"]),
]


@pytest.mark.parametrize(("layout", "shape", "place", "expected"), CASES)
def test_each_cell_says_who_holds_it(
    layout: ucp.Layout, shape: tuple[int, ...], place: BufferPlace | None, expected: list[str]
) -> None:
    drawing = ucp.draw(layout, shape, place)
    assert labels(drawing) == expected
    cells = [
        cell.strip() for line in str(drawing).splitlines() for cell in re.findall(r"(?<=│)[^│]+(?=│)", line)
    ]
    assert set(expected) == {label for cell in cells for label in re.split(r"\s{2,}", cell)}


def test_padding_is_told() -> None:
    lines = str(ucp.draw(ucp.Layout(TP2, (Pad(0, to=6), ucp.Shard("tp", 0, "even"))), (5,))).splitlines()
    assert lines[-2:] == ["rank 0: 3", "rank 1: 3, 1 of 3 elements are padding or of other tensors"]


def test_a_tensor_without_elements() -> None:
    drawing = ucp.draw(ucp.Layout(TP2), (0, 4))
    assert str(drawing).splitlines()[:2] == ["0x4 over tp 2", "it has no elements"]
    assert labels(drawing) == []


def test_names_of_axes_are_text() -> None:
    mesh = ucp.Mesh((ucp.MeshAxis("<script>\x1b[31m\u202e", 2),))
    drawing = ucp.draw(ucp.Layout(mesh), (2,))
    assert "<script>" not in drawing.svg()
    assert not {"\x1b", "\u202e"} & {*drawing.svg(), *str(drawing)}


def test_many_ranks_are_scaled_down() -> None:
    mesh = ucp.Mesh((ucp.MeshAxis("dp", 100),))
    text = str(ucp.draw(ucp.Layout(mesh, (ucp.Shard("dp", 0),)), (100, 2)))
    assert "scaled down: each cell shows who holds its first element" in text
    assert text.endswith("and 84 more parts")
