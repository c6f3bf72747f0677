"""Indices of a slot select what they select from a numpy array, and no more is read than lies close to that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices, integer_array_indices

import ucpformat
from ucpformat.storage.reading.indexing import select


def taken(data: Any, index: Any) -> Any:
    """What `select` reads of an array, and what numpy makes of it."""
    selection = select(index, data.shape, data.itemsize)
    found = np.full(selection.shape, -1, data.dtype)
    for box, place in selection.boxes():
        found[place] = data[
            tuple(slice(low, low + extent) for low, extent in zip(box.offset, box.shape, strict=True))
        ]
    return found[(*selection.index, ...)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(array_shapes(max_dims=4, max_side=5))
    masks = st.lists(st.booleans(), min_size=shape[0], max_size=shape[0]).map(np.array)
    some = draw(st.integers(1, len(shape)))
    arrays = integer_array_indices(shape[:some])
    return shape, draw(basic_indices(shape, allow_newaxis=True) | arrays | masks)


@settings(max_examples=200)
@given(cases())
def test_an_index_selects_as_in_numpy(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    data = np.arange(np.prod(shape)).reshape(shape)
    assert np.array_equal(taken(data, index), data[index])


@pytest.mark.parametrize(
    "index",
    [
        np.s_[[0, 9999, 5000], :, 2],
        np.s_[[9, 0, 9], [1, 2, 3], ::-1],
        np.s_[:, [3], [[4], [0]]],
        np.s_[None, [1, 2], None, 3],
        np.s_[0, ..., [True, False, True, False, True]],
        np.s_[np.zeros((10_000, 4), bool)],
        np.s_[np.arange(0, 10_000, 999) - 10_000],
    ],
    ids=str,
)
def test_arrays_beside_other_items(index: Any) -> None:
    data = np.arange(10_000 * 4 * 5).reshape(10_000, 4, 5)
    assert np.array_equal(taken(data, index), data[index])


def test_rows_that_are_selected_are_read_and_few_others(tmp_path: Path) -> None:
    data = np.arange(1 << 22, dtype=np.float32).reshape(1 << 12, 1 << 10)
    ucpformat.save(tmp_path / "a", {"w": data})
    with ucpformat.open(tmp_path / "a") as ckpt:
        assert np.array_equal(ckpt["w"]["value"][[4000, 3, 4000]], data[[4000, 3, 4000]])
        assert ckpt.fetched <= 2 << 20  # two checksum blocks of 16


@pytest.mark.parametrize("index", [(), ..., None], ids=str)
def test_a_tensor_without_dimensions_is_read(tmp_path: Path, index: Any) -> None:
    data = np.array(3.5)
    ucpformat.save(tmp_path / "a", {"w": data})
    assert np.array_equal(ucpformat.open(tmp_path / "a")["w"]["value"][index], data[index])
