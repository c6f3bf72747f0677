"""ShardedTensors as pieces; what 0.16.1 no longer makes is recorded from megatron-core 0.13.1 itself."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conversion.formats.megatron.sharded_tensor import (
    ShardedTensorFacts,
    facts_of,
    fused_map,
    is_main_replica,
    sharded_holdings,
    sharded_map,
)
from tests.geometry import model
from ucpformat.errors import UcpError
from ucpformat.geometry import distinct_boxes, exact_cover

RECORDED = json.loads(Path(__file__).with_name("flattened_ranges.json").read_text())["tensors"]


def recorded_facts(entry: dict[str, Any]) -> ShardedTensorFacts:
    start, stop = entry["flattened_range"]
    return facts_of(
        SimpleNamespace(
            key="k",
            replica_id=(0, 1),
            prepend_axis_num=entry["prepend_axis_num"],
            flattened_range=slice(start, stop),
            **{
                name: entry[name]
                for name in ("local_shape", "global_shape", "global_offset", "axis_fragmentations")
            },
        )
    )


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: str(entry["global_shape"]))
def test_flattened_ranges_that_megatron_made(entry: dict[str, Any]) -> None:
    facts = recorded_facts(entry)
    local_map = sharded_map(facts)
    start, stop = entry["flattened_range"]
    assert local_map.shape == (stop - start,)
    logical = model.counter(facts.global_shape)
    expected = [int(logical[tuple(cell)]) for cell in entry["coordinates"]]
    np.testing.assert_array_equal(model.local_array(local_map, logical), expected)


@given(st.data())
def test_flat_ranges_of_all_ranks_are_the_whole(data: st.DataObject) -> None:
    local = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    parts = data.draw(st.tuples(*(st.integers(1, 3) for _ in local)))
    ranks = data.draw(st.integers(1, 4))
    shape = tuple(map(int.__mul__, local, parts))
    size = int(np.prod(local))
    shards: list[tuple[int, ShardedTensorFacts]] = []
    for cell in np.ndindex(*parts):
        for rank in range(ranks):
            span = (size * rank // ranks, size * (rank + 1) // ranks)
            offset = tuple(map(int.__mul__, cell, local))
            shards.append((len(shards), ShardedTensorFacts("k", local, shape, offset, parts, 0, 0, span)))
    assert exact_cover(distinct_boxes(sharded_holdings(shards)), shape) is None


def test_replicas() -> None:
    assert is_main_replica(ShardedTensorFacts("k", (), (), ()))
    assert is_main_replica(ShardedTensorFacts("k", (), (), (), replica_id=(0, 0, 0)))
    assert not is_main_replica(ShardedTensorFacts("k", (), (), (), replica_id=1))
    assert not is_main_replica(ShardedTensorFacts("k", (), (), (), replica_id=(0, 0, 2)))


WHOLE = ShardedTensorFacts("k", (4, 3), (8, 3), (4, 0), (2, 1))


@pytest.mark.parametrize(
    "facts",
    [
        ShardedTensorFacts("k", (4, 3), (8, 3), (5, 0)),
        ShardedTensorFacts("k", (4, 3), (8, 3), (4,)),
        ShardedTensorFacts("k", (4, 3), (8, 3), (4, 0), prepend_axis_num=1),
        ShardedTensorFacts("k", (4, 3), (8, 3), (4, 0), (3, 1)),
        ShardedTensorFacts("k", (4, 3), (8, 3), (4, 0), (2, 1), flattened_range=(3, 13)),
    ],
)
def test_numbers_that_do_not_fit(facts: ShardedTensorFacts) -> None:
    with pytest.raises(UcpError) as caught:
        sharded_map(facts)
    assert caught.value.code == "UCP-E-SHAPE"


@pytest.mark.parametrize(
    ("parts", "shape"),
    [
        ([WHOLE], (5, 3)),
        ([WHOLE], (4, 2)),
        ([WHOLE, ShardedTensorFacts("k", (4, 3), (4, 3), (0, 0))], (8, 3)),
        ([ShardedTensorFacts("k", (4, 3), (8, 3), (4, 0), flattened_range=(0, 12))], (4, 3)),
    ],
)
def test_parts_that_do_not_fit(parts: list[ShardedTensorFacts], shape: tuple[int, ...]) -> None:
    with pytest.raises(UcpError) as caught:
        fused_map(parts, shape, 0)
    assert caught.value.code == "UCP-E-SHAPE"


def test_shards_of_two_tensors() -> None:
    with pytest.raises(UcpError, match="one global shape"):
        sharded_holdings([(0, WHOLE), (1, ShardedTensorFacts("k", (4, 3), (4, 3), (0, 0)))])
    with pytest.raises(UcpError, match="one global shape"):
        sharded_holdings([])
