"""What one rank holds is found without a look at what all others hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from tests.distributed.test_save import TensorLayout, cases
from ucpformat.distributed.description import Source
from ucpformat.distributed.local_state import SlotName
from ucpformat.distributed.share import SlotToShare, map_of, plain_holdings, portions, united
from ucpformat.geometry import (
    BufferPlace,
    Concat,
    Flatten,
    Layout,
    Lowering,
    Mesh,
    MeshAxis,
    Shard,
    chunk_grid,
)


@given(cases())
def test_one_rank_holds_what_its_region_says(case: tuple[int, dict[SlotName, TensorLayout]]) -> None:
    count, slots = case
    everyone = frozenset(range(count))
    for shape, layout, place in slots.values():
        source = Source(layout, place, everyone)
        for holdings in (plain_holdings(source, shape, at=""), united([source], shape, at="")):
            for rank in (*range(count), count + 1):
                found = [region.local_map for region in holdings.regions() if rank in region.holders]
                assert map_of(holdings, rank) == (found[0] if found else None)


@pytest.mark.parametrize("ranks", [64, 4096])
def test_a_share_of_a_flat_buffer_is_found_without_asking_all_ranks(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    layout = Layout(Mesh((MeshAxis("dp", ranks),)), (Flatten(), Concat("all"), Shard("dp", 0, "even")))
    count, each = 32, 8192
    whole = frozenset(range(ranks))
    slots = [
        SlotToShare(
            (f"w{number:02}", "value"),
            (Source(layout, BufferPlace((number * each,), (count * each,)), whole),),
            chunk_grid((each,), 4, 1 << 12),
            4,
        )
        for number in range(count)
    ]
    asked = []
    at = Lowering.at

    def counted(self: Lowering, coordinate: tuple[int, ...]) -> object:
        asked.append(coordinate)
        return at(self, coordinate)

    monkeypatch.setattr(Lowering, "at", counted)
    found = portions(slots, ranks // 2)
    assert sum(math.prod(portion.piece.box.shape) for portion in found) == count * each // ranks
    # Those that meet each tensor once, and this rank for each tensor: not all ranks for each tensor.
    assert len(asked) <= ranks + 4 * count
