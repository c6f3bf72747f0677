"""The ready-made patterns for Megatron-core's GPTModel against its own account of what each rank holds.

The elements of every rank are markers of their place in the whole model, put there by the offsets of Megatron-core's
`ShardedTensor`s (core/dist_checkpointing/mapping.py), with the factories of gated layers applied. Each case is merged
by our layouts, compared with the markers, and cut for every other case of its family.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.frameworks_live.transformers.conftest import MegatronHoldings
from tests.frameworks_live.transformers.holdings import Array, cut, merged
from tests.frameworks_live.transformers.megatron_cases import (
    MEGATRON_CASES,
    PADDED_NAMES,
    VOCABULARY,
    MegatronCase,
)
from tests.frameworks_live.transformers.megatron_worker import marker
from ucpformat.geometry import Layout
from ucpformat.patterns import load_patterns, resolve

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def whole(case: MegatronCase, holdings: MegatronHoldings) -> dict[str, Array]:
    """The model of markers, its vocabulary without padding."""
    model = {name: marker(name, shape).numpy() for name, shape in holdings.shapes(case).items()}
    for name in model.keys() & PADDED_NAMES:
        model[name] = model[name][:VOCABULARY]
    return model


def layouts(case: MegatronCase, model: dict[str, Array]) -> dict[str, Layout]:
    shapes = {name: {"value": array.shape} for name, array in model.items()}
    found = resolve(load_patterns("megatron-gpt"), shapes, case.parameters)
    return {name: layout for (name, _), layout in found.items()}


@pytest.mark.parametrize("case", MEGATRON_CASES, ids=lambda case: case.name)
def test_what_ranks_hold_is_merged_and_cut_for_other_degrees(
    case: MegatronCase, megatron: MegatronHoldings
) -> None:
    model = whole(case, megatron)
    parts, mine = megatron.parts(case), layouts(case, model)
    assert mine.keys() == parts.keys()
    for name, array in model.items():
        np.testing.assert_array_equal(merged(mine[name], array.shape, parts[name]), array, err_msg=name)
    others = [other for other in MEGATRON_CASES if other.family == case.family and other != case]
    assert len(others) > 3
    for other in others:
        theirs, held = layouts(other, model), megatron.parts(other)
        assert held.keys() == model.keys()
        for name, array in model.items():
            found = cut(theirs[name], merged(mine[name], array.shape, parts[name]))
            assert found.keys() == held[name].keys(), (name, other.name)
            for rank, part in found.items():
                np.testing.assert_array_equal(part, held[name][rank], err_msg=f"{name} of rank {rank}")
