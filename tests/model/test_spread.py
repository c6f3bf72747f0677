"""How slots were spread: layouts that fit, buffers in which slots lie beside each other (SPEC 12.1)."""

from __future__ import annotations

from ucpformat.errors import error
from ucpformat.geometry import (
    BlockRule,
    Blocks,
    BufferPlace,
    Concat,
    Flatten,
    Layout,
    Lowering,
    Mesh,
    MeshAxis,
    Shard,
)
from ucpformat.model.spread import SpreadSlot, spread_faults

MESH = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 2)))
BUFFER = Layout(MESH, (Shard("tp", 0), Flatten(), Concat("g"), Shard("dp", 0, "even")))
PLAIN = Layout(MESH, (Shard("tp", 0),))


def faults(*slots: SpreadSlot) -> list[tuple[int, bool, str]]:
    return [(fault.number, fault.of_layout, fault.refusal.at) for fault in spread_faults(slots)]


def placed(offset: int, total: int = 16, name: str = "value", layout: Layout = BUFFER) -> SpreadSlot:
    return SpreadSlot(name, "float32", (4, 2), layout, BufferPlace((offset,), (total,)))


def test_a_place_goes_with_a_concat() -> None:
    """UCP-D-067."""
    alone = SpreadSlot("value", "float32", (4,), None, BufferPlace((0,), (4,)))
    beside = SpreadSlot("value", "float32", (4,), PLAIN, BufferPlace((0,), (4,)))
    without = SpreadSlot("value", "float32", (4,), BUFFER)
    assert (
        faults(
            SpreadSlot("value", "float32", (4,), None), SpreadSlot("value", "float32", (4,), PLAIN), placed(0)
        )
        == []
    )
    assert faults(alone, beside, without) == [(0, False, ""), (1, False, ""), (2, False, "")]


def test_slots_of_one_name_share_a_buffer() -> None:
    """UCP-D-072 to UCP-D-074."""
    assert faults(placed(0), placed(4), placed(0, name="exp_avg"), placed(12)) == []
    assert faults(placed(0), placed(3)) == [(1, False, "")]
    assert faults(placed(0), placed(4, 18)) == [(1, False, "")]
    assert faults(placed(13), placed(0)) == [(0, False, "")]


def test_equal_layouts_are_one() -> None:
    again = Layout(Mesh(MESH.axes), BUFFER.steps)
    assert faults(placed(0), placed(2, layout=again)) == [(1, False, "")]


def test_a_layout_that_does_not_fit_is_told_once() -> None:
    uneven = SpreadSlot("value", "float32", (5,), Layout(MESH, (Shard("tp", 0, "even"),)))
    assert faults(uneven, uneven, placed(0, 15), placed(4, 15)) == [
        (0, True, "/steps/0/rule"),
        (2, True, "/steps/3/rule"),
    ]
    head = Layout(MESH, (Shard("tp", 0, "even"), Flatten(), Concat("g")))
    slot = SpreadSlot("value", "float32", (5,), head, BufferPlace((0,), (15,)))
    assert faults(slot, slot) == [(0, True, "/steps/0/rule")]


def test_what_is_checked_beside_is_told() -> None:
    def check(lowering: Lowering) -> None:
        raise error("UCP-E-COVER", "nothing covers it")

    found = list(spread_faults([SpreadSlot("value", "float32", (4,), PLAIN)] * 2, check))
    assert [(fault.number, fault.of_layout, fault.refusal.code) for fault in found] == [
        (0, True, "UCP-E-COVER")
    ]


def test_offsets_that_may_cut_a_tensor_into_too_many_boxes_are_tried() -> None:
    seen: list[Lowering] = []
    many = Layout(MESH, (Flatten(), Concat("g"), Blocks(0, BlockRule("ceil", 257)), Shard("dp", 0)))
    for layout, count in ((BUFFER, 1), (many, 2)):
        seen.clear()
        slots = [placed(0, 1024, layout=layout), placed(16, 1024, layout=layout)]
        assert list(spread_faults(slots, seen.append)) == []
        assert len(seen) == count
