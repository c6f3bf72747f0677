"""Cutting and merging tensors by layouts, with numpy: what the tests compare with what frameworks hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ucpformat.geometry import Layout, Strided, extract, invert, lower

Array = np.ndarray[Any, np.dtype[Any]]


def _place(array: Array, shape: tuple[int, ...], place: Strided) -> Array:
    return as_strided(
        array[place.offset :], shape, tuple(stride * array.itemsize for stride in place.strides)
    )


def cut(layout: Layout, whole: Array) -> dict[int, Array]:
    """What each rank holds of ``whole``; ranks that hold nothing are left out."""
    lowering = lower(layout, whole.shape)
    flat = np.ascontiguousarray(whole).reshape(-1)
    found: dict[int, Array] = {}
    for region in lowering.regions():
        local = np.zeros(region.local_map.size, whole.dtype)
        for move in extract(region.local_map, lowering.view):
            _place(local, move.shape, move.target)[...] = _place(flat, move.shape, move.source)
        found.update(dict.fromkeys(region.holders, local.reshape(region.local_map.shape)))
    return found


def merged(layout: Layout, shape: tuple[int, ...], parts: Mapping[int, Array]) -> Array:
    """The tensor of ``shape`` whose parts the ranks hold. Parts that overlap have to agree."""
    lowering = lower(layout, shape)
    dtype = next(iter(parts.values())).dtype
    whole = np.full(math.prod(shape), np.nan, dtype)
    for region in lowering.regions():
        for rank in region.holders:
            local = np.ascontiguousarray(parts[rank]).reshape(-1)
            assert parts[rank].shape == region.local_map.shape, (
                rank,
                parts[rank].shape,
                region.local_map.shape,
            )
            for move in invert(region.local_map, lowering.view):
                there = _place(whole, move.shape, move.target)
                mine = _place(local, move.shape, move.source)
                assert (np.isnan(there) | (there == mine)).all(), f"rank {rank} disagrees"
                there[...] = mine
    assert not np.isnan(whole).any(), "not every element was held"
    return whole.reshape(shape)
