from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry import model
from tests.geometry.strategies import views_of
from ucpformat.errors import LayoutError
from ucpformat.geometry import Box, Layout, Mesh, MeshAxis, Permute, Piece, Shard, Step, Strided, View, lower

TP = Mesh((MeshAxis("tp", 2),))


@given(st.data(), st.sampled_from([1, 6, 12, 24, 30]))
def test_any_view_of_a_tensor_that_is_in_order_will_do(data: st.DataObject, count: int) -> None:
    shape, first, second = (data.draw(views_of(count)) for _ in range(3))
    steps: list[Step] = [View(first), View(second)]
    if second:
        steps.append(Shard("tp", data.draw(st.integers(0, len(second) - 1))))
    layout = Layout(TP, tuple(steps))
    lowering = lower(layout, shape)
    for coordinate in TP.coordinates():
        found = model.local_of(lowering, coordinate)
        assert found is not None
        np.testing.assert_array_equal(found, model.held(layout, shape, coordinate))


def test_a_view_that_only_joins_dims_needs_no_other_coordinates() -> None:
    stacked = lower(Layout(TP, (View((8, 5)), Shard("tp", 0))), (4, 2, 5))
    assert stacked.view == (4, 2, 5)
    second = stacked.at((1,))
    assert second is not None
    assert second.shape == (4, 5)
    assert second.pieces == (Piece(Box((2, 0, 0), (2, 2, 5)), Strided(0, (10, 5, 1))),)


def test_views_that_lead_back_are_no_views() -> None:
    plain = lower(Layout(TP, (Shard("tp", 0),)), (4, 6))
    same = lower(Layout(TP, (View((8, 3)), View((4, 6)), Permute((0, 1)), Shard("tp", 0))), (4, 6))
    assert same.view == (4, 6)
    assert same.regions() == plain.regions()


def test_interleaved_heads_are_one_piece_however_many() -> None:
    # Query, key and value lie one after the other; the ranks hold them head by head.
    for heads in (4, 64, 4096):
        view, back = View((3, heads, 8, 16)), View((heads * 24, 16))
        steps = (view, Permute((1, 0, 2, 3)), back, Shard("tp", 0))
        lowering = lower(Layout(TP, steps), (heads * 24, 16))
        assert lowering.view == (3, heads, 8, 16)
        (region,) = lowering.regions()[1:]
        assert region.local_map.shape == (heads * 12, 16)
        assert region.local_map.pieces == (
            Piece(Box((0, heads // 2, 0, 0), (3, heads // 2, 8, 16)), Strided(0, (128, 384, 16, 1))),
        )


def test_empty_tensors_have_every_view_that_is_empty() -> None:
    lowering = lower(Layout(TP, (Permute((1, 0)), View((7, 0)), Shard("tp", 0))), (0, 3))
    held = lowering.at((0,))
    assert held is not None
    assert (held.shape, held.pieces, lowering.view) == ((4, 0), (), (0, 3))


@pytest.mark.parametrize(
    ("steps", "at"),
    [
        ((View((5,)),), "/steps/0/shape"),
        ((View((2, 0)),), "/steps/0/shape"),
        ((Permute((0,)),), "/steps/0/order"),
        ((View((4,)), View((2, 2)), Permute((0, 2, 1))), "/steps/2/order"),
        ((Permute((1, 0)), View((3, 4))), None),
        ((Permute((1, 0)), View((2, 6))), "/steps/1/shape"),
        ((Permute((1, 0)), View((4, 3))), "/steps/1/shape"),
        ((View((12,)), Shard("tp", 1)), "/steps/1/dim"),
    ],
)
def test_views_that_do_not_fit_are_refused(steps: tuple[Step, ...], at: str | None) -> None:
    """UCP-D-049, UCP-D-050."""
    shape = (4, 3) if steps[0] == Permute((1, 0)) or len(steps) == 2 else (2, 2)
    if at is None:
        assert lower(Layout(TP, steps), shape).view == shape
        return
    with pytest.raises(LayoutError) as caught:
        lower(Layout(TP, steps), shape)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", at)
