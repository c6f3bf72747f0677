"""ZeRO's buffers as our layouts say, against the buffers that DeepSpeed has in memory; the degree always changes."""

from __future__ import annotations

import pytest
import torch

from tests.frameworks_live.deepspeed.cases import CASES, DEGREES
from tests.frameworks_live.deepspeed.conftest import Library, Saved
from tests.frameworks_live.deepspeed.model import Net, groups_of
from tests.frameworks_live.deepspeed.moves import moved
from ucpformat.conversion.formats.deepspeed.zero.layouts import (
    partition_places,
    round_robin_order,
    shared_places,
    zero_mesh,
)
from ucpformat.geometry import Lowering, Pad, lower

pytestmark = pytest.mark.distributed

ZERO = [name for name, case in CASES.items() if case.stage > 0 and case.degrees == DEGREES]


def lowerings(saved: Saved) -> list[dict[str, Lowering]]:
    """By flat group, how each of its parameters lies in the ranks' buffers."""
    reference, mesh = saved.reference, zero_mesh(saved.degree)
    found = []
    for number, group in enumerate(reference["shapes"]):
        names, shapes = [name for name, _ in group], [tuple(shape) for _, shape in group]
        if CASES[saved.name].stage == 3:
            placed = partition_places(mesh, shapes, group="g")
        else:
            paddings = reference["paddings"]
            placed = shared_places(mesh, shapes, group="g", paddings=paddings and paddings[number])
        found.append(
            {
                name: lower(layout, shape, place=place)
                for name, shape, (layout, place) in zip(names, shapes, placed, strict=True)
            }
        )
    return found


def without_padding(buffer: torch.Tensor, group: dict[str, Lowering], rank: int) -> torch.Tensor:
    """ZeRO-3's buffers with zeros where no tensor is: it leaves there what the memory held; ZeRO-1's have zeros."""
    if all(not any(isinstance(step, Pad) for step in lowering.layout.steps) for lowering in group.values()):
        return buffer
    kept = torch.zeros_like(buffer)
    for lowering in group.values():
        local = lowering.at((rank,))
        for piece in () if local is None else local.pieces:
            place = (piece.box.shape, piece.local.strides, piece.local.offset)
            kept.as_strided(*place).copy_(buffer.as_strided(*place))
    return kept


@pytest.mark.parametrize("name", ZERO)
@pytest.mark.parametrize("degree", DEGREES)
def test_the_layouts_are_deepspeeds_buffers(library: Library, name: str, degree: int) -> None:
    saved = library.get(name, degree)
    tensors = saved.reference["tensors"]
    for number, group in enumerate(lowerings(saved)):
        for rank in range(degree):
            real = saved.buffers(rank)[number]
            ours = torch.zeros_like(real)
            for parameter, lowering in group.items():
                local = lowering.at((rank,))
                assert local is not None
                assert local.shape == real.shape
                # What DeepSpeed gathers of reordered buffers is wrong: there the module's own weights are compared.
                value = tensors[parameter]["value"].float()
                full = value if CASES[name].round_robin else tensors[parameter]["master"]
                for piece in local.pieces:
                    box = full[tuple(map(slice, piece.box.offset, piece.box.stop))]
                    ours.as_strided(piece.box.shape, piece.local.strides, piece.local.offset).copy_(box)
            if CASES[name].round_robin:
                real = real.to(torch.bfloat16).float()
            assert torch.equal(without_padding(real, group, rank), ours)


@pytest.mark.parametrize(
    ("name", "degree", "target", "target_degree"),
    [
        ("z1-bf16", 2, "z1-bf16", 3),
        ("z1-bf16", 4, "z1-round-robin", 3),
        ("z2-bf16", 3, "z3-bf16", 2),
        ("z3-bf16", 2, "z1-bf16", 3),
        ("z3-bf16", 4, "z3-sub-groups", 3),
        ("z3-sub-groups", 3, "z1-aligned", 4),
        ("z1-aligned", 2, "z2-fp32", 3),
    ],
)
def test_buffers_move_between_stages_and_degrees(
    library: Library, name: str, degree: int, target: str, target_degree: int
) -> None:
    """Before the first step all runs hold the same weights, so that one's real buffers give the other's."""
    source, other = library.get(name, degree), library.get(target, target_degree)
    held = {
        parameter: (number, lowering)
        for number, group in enumerate(lowerings(source))
        for parameter, lowering in group.items()
    }
    low_precision = CASES[target].dtype == "float32" and CASES[name].dtype == "bfloat16"
    for number, group in enumerate(lowerings(other)):
        real = [other.buffers(rank, "initial")[number] for rank in range(target_degree)]
        ours = [torch.zeros_like(buffer) for buffer in real]
        for parameter, lowering in group.items():
            place, before = held[parameter]
            buffers = {rank: source.buffers(rank, "initial")[place] for rank in range(degree)}
            for rank, part in moved(before, buffers, lowering).items():
                ours[rank] += part
        for rank, (mine, theirs) in enumerate(zip(ours, real, strict=True)):
            wanted = without_padding(theirs, group, rank)
            assert torch.equal(mine, wanted.to(torch.bfloat16).float() if low_precision else wanted)


@pytest.mark.parametrize("degree", DEGREES)
def test_round_robin_order_is_that_of_the_buffer(library: Library, degree: int) -> None:
    net = Net(frozen=True)
    names = {id(item): name for name, item in net.named_parameters()}
    saved = library.get("z1-round-robin", degree)
    for group, listed in zip(groups_of(net, 2), saved.reference["shapes"], strict=True):
        before = [names[id(item)] for item in group["params"]]
        assert [name for name, _ in listed] == [before[k] for k in round_robin_order(len(before), degree)]
