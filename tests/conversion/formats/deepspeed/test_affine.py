"""Affine maps in and out without DeepSpeed; its own code is asked in tests/frameworks_live/deepspeed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conversion.formats.deepspeed.autotp import (
    codegen_steps,
    kept_tail_steps,
    scaled_steps,
    shared_qk_steps,
    split_steps,
)
from ucpformat.conversion.formats.deepspeed.tensor_parallel.affine import affine_description, affine_holdings
from ucpformat.errors import UcpError
from ucpformat.geometry import (
    Layout,
    LocalOnly,
    Mesh,
    MeshAxis,
    Pad,
    Partial,
    Shard,
    Step,
    lower,
    plan_transfer,
)

TP = Mesh((MeshAxis("tp", 2),))


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ((5, 3), split_steps("tp", 0, (3, 2))),
        ((3, 5), split_steps("tp", 1, (5, 0))),
        ((7, 3), kept_tail_steps("tp", 0, (3, 1), 3)),
        ((4, 8), shared_qk_steps("tp", 1, 8)),
        ((24, 2), codegen_steps(["tp"], 2, (24, 2))),
        ((48,), codegen_steps(["tp"], 2, (48,))),
        ((3,), scaled_steps(2)),
        ((), ()),
        ((0, 3), ()),
    ],
)
def test_a_description_comes_back_as_what_it_describes(
    shape: tuple[int, ...], steps: tuple[Step, ...]
) -> None:
    lowering = lower(Layout(TP, steps), shape)
    again = affine_holdings(affine_description(lowering), at="map")
    assert (again.shape, again.scale) == (shape, lowering.scale)
    assert again.reduce is None
    assert again.own_axes is None
    back, forth = plan_transfer(lowering, again), plan_transfer(again, lowering)
    assert back.elements_sent == forth.elements_sent == 0


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 4))
def test_splits_of_any_widths_come_back(widths: list[int], tail: int) -> None:
    mesh = Mesh((MeshAxis("tp", len(widths)),))
    lowering = lower(Layout(mesh, kept_tail_steps("tp", 0, widths, tail)), (sum(widths) + tail, 2))
    again = affine_holdings(affine_description(lowering), at="map")
    maps = {rank: region.local_map for region in again.regions() for rank in region.holders}
    for rank in range(len(widths)):
        local = lowering.at((rank,))
        assert local is not None
        assert maps[rank].shape == local.shape
        assert sum(p.box.size for p in maps[rank].pieces) == sum(p.box.size for p in local.pieces)


def piece(shape: list[int], source: list[Any], dest: list[Any], **more: Any) -> dict[str, Any]:
    return {"shape": shape, "source": source, "dest": dest, "locations": [0], **more}


WHOLE = piece([2, 3], [0, [3, 1]], [0, [3, 1]])


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([piece([2, 3], [0, [3, 1]], [1, [3, 1]])], "UCP-E-LAYOUT"),
        ([piece([1, 3], [0, [3, 1]], [0, [3, 1]])], "UCP-E-LAYOUT"),
        ([piece([1, 3], [0, [3, 1]], [0, [3, 1]])] * 2, "UCP-E-LAYOUT"),
        ([piece([2, 3], [1, [3, 1]], [0, [3, 1]])], "UCP-E-LAYOUT"),
        ([piece([2, 3], [-1, [3, 1]], [0, [3, 1]])], "UCP-E-LAYOUT"),
        ([piece([2], [0, [3, 1]], [0, [3, 1]])], "UCP-E-LAYOUT"),
        ([{**WHOLE, "scale": 0.0}], "UCP-E-LAYOUT"),
        ([{"shape": [2, 3]}], "UCP-E-LAYOUT"),
        (
            [piece([1, 3], [0, [3, 1]], [0, [3, 1]]), piece([1, 3], [0, [3, 1]], [3, [3, 1]])],
            "UCP-E-COVER",
        ),
        (
            [
                piece([1, 3], [0, [3, 1]], [0, [3, 1]], scale=0.5),
                piece([1, 3], [3, [3, 1]], [3, [3, 1]], scale=0.25),
            ],
            "UCP-E-LAYOUT",
        ),
    ],
)
def test_bad_maps_are_refused(pieces: list[dict[str, Any]], code: str) -> None:
    entry = {"logical_shape": [2, 3], "ranks": {0: {"shard_shape": [2, 3], "pieces": pieces}}}
    affine_holdings({**entry, "ranks": {"0": {"shard_shape": [2, 3], "pieces": [WHOLE]}}}, at="map")
    with pytest.raises(UcpError) as refusal:
        affine_holdings(entry, at="map")
    assert refusal.value.code == code
    assert refusal.value.at.startswith("map")


def test_a_map_that_falls_into_too_many_boxes_is_refused() -> None:
    """A transposition of a large matrix is a box for each element."""
    side = 300
    pieces = [
        piece([side * side // 2], [0, [2]], [0, [1]]),
        piece([side * side // 2], [1, [2]], [side * side // 2, [1]]),
    ]
    entry = {
        "logical_shape": [side, side],
        "ranks": {0: {"shard_shape": [side, side], "pieces": pieces}},
    }
    with pytest.raises(UcpError, match="UCP-E-LIMIT"):
        affine_holdings(entry, at="map")


@pytest.mark.parametrize(
    ("steps", "shape"),
    [
        ((Pad(0, multiple=2), Shard("tp", 0, "even")), (3, 2)),
        ((Partial("tp", "sum"),), (2,)),
        ((LocalOnly(),), (2, 1)),
    ],
)
def test_what_no_map_can_say_is_refused(steps: tuple[Step, ...], shape: tuple[int, ...]) -> None:
    with pytest.raises(UcpError, match="UCP-E-LAYOUT"):
        affine_description(lower(Layout(TP, steps), shape))


def test_degrees_that_do_not_fit_codegen_are_refused() -> None:
    for axes, degree, shape in (
        (["tp"], 3, (36, 1)),
        (["tp"], 2, (25, 1)),
        (["a", "b"], 6, (72, 1)),
        (["tp"], 8, (96,)),
    ):
        with pytest.raises(UcpError, match="UCP-E-LAYOUT"):
            codegen_steps(axes, degree, shape)
    assert len(codegen_steps(["a", "b"], 8, (96, 1))) == 4
    with pytest.raises(UcpError, match="do not halve"):
        shared_qk_steps("tp", 0, 3)
