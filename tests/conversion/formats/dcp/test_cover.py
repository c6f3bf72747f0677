from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from tests.conversion.formats.dcp.strategies import boxes_of, index_of, shapes, tilings
from ucpformat.conversion.dcp_files.items import cover_problem
from ucpformat.geometry import Box


@given(st.data())
def test_exact_covers_are_accepted_and_others_are_not(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    boxes = [Box(*box) for box in data.draw(tilings(shape))]
    assert cover_problem(shape, boxes) is None
    full = [index for index, box in enumerate(boxes) if box.size]
    if full:
        index = data.draw(st.sampled_from(full))
        assert "overlap" in (cover_problem(shape, [*boxes, boxes[index]]) or "") or not shape
        assert cover_problem(shape, boxes[:index] + boxes[index + 1 :]) is not None


@given(st.data())
def test_any_boxes_against_counting(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    boxes = [Box(*box) for box in data.draw(st.lists(boxes_of(shape), max_size=6))]
    counts = np.zeros(shape, dtype=int)
    for box in boxes:
        counts[index_of(box.offset, box.shape)] += 1
    assert (cover_problem(shape, boxes) is None) == bool((counts == 1).all())


def test_an_overlap_is_not_made_good_by_a_gap() -> None:
    assert "overlap" in (cover_problem((4,), [Box((0,), (2,)), Box((1,), (2,))]) or "")
    assert "overlap" in (cover_problem((2, 3), [Box((0, 0), (2, 2)), Box((0, 1), (1, 2))]) or "")


def test_outside() -> None:
    assert "leaves" in (cover_problem((4,), [Box((2,), (3,))]) or "")
    assert cover_problem((4,), [Box((0, 0), (4, 1))]) is not None
