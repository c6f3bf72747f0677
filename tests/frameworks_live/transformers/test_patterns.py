"""The ready-made patterns against what transformers and DeepSpeed's AutoTP do with real models of each family.

Every case is merged by its layouts and cut for every other case of its family: a wrong map that undoes itself at
one degree does not survive another.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.frameworks_live.transformers.cases import CASES, Case
from tests.frameworks_live.transformers.conftest import Holdings
from tests.frameworks_live.transformers.holdings import Array, cut, merged
from ucpformat.geometry import Layout
from ucpformat.patterns import load_patterns, resolve

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


def layouts(case: Case, whole: dict[str, Array]) -> dict[str, Layout]:
    shapes = {name: {"value": array.shape} for name, array in whole.items()}
    found = resolve(load_patterns(case.patterns), shapes, case.parameters)
    return {name: layout for (name, _), layout in found.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_ranks_hold_is_merged_and_cut_for_other_degrees(case: Case, holdings: Holdings) -> None:
    whole = dict(holdings.whole[case.family])
    parts = holdings.parts(case)
    mine = layouts(case, whole)
    assert mine.keys() == whole.keys() == parts.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(merged(mine[name], array.shape, parts[name]), array, err_msg=name)
    others = [other for other in CASES if other.family == case.family and other != case]
    assert others
    for other in others:
        theirs, held = layouts(other, whole), holdings.parts(other)
        for name, array in whole.items():
            found = cut(theirs[name], merged(mine[name], array.shape, parts[name]))
            assert found.keys() == held[name].keys(), (name, other.name)
            for rank, part in found.items():
                np.testing.assert_array_equal(part, held[name][rank], err_msg=f"{name} of rank {rank}")


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_starcoder_is_fused_as_autotp_fuses_it_for_any_number_of_heads(
    groups: int, holdings: Holdings
) -> None:
    """`prepare_tp_fused_qkvw` (deepspeed/module_inject/fusedqkv_utils.py), from 4 ranks to 3."""
    from deepspeed.module_inject.fusedqkv_utils import prepare_tp_fused_qkvw
    from deepspeed.module_inject.tp_shard import AutoTPMeta

    name = "transformer.h.1.attn.c_attn.weight"
    whole = holdings.whole["starcoder"][name]
    meta = AutoTPMeta(num_kv_heads=groups, num_attention_heads=6, n_embd=48)
    held = {
        size: {
            rank: prepare_tp_fused_qkvw("GPTBigCodeBlock", torch.from_numpy(whole), size, rank, meta).numpy()
            for rank in range(size)
        }
        for size in (3, 4)
    }
    found = {
        size: resolve(
            load_patterns("starcoder-autotp"),
            {name: {"value": whole.shape}},
            {"tp": size, "hidden": 48, "head_groups": groups},
        )[name, "value"]
        for size in (3, 4)
    }
    again = cut(found[3], merged(found[4], whole.shape, held[4]))
    for rank, part in again.items():
        np.testing.assert_array_equal(part, held[3][rank])
