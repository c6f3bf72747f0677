"""Stages and chunks against Megatron's own offsets and counts, and stacked layers against what stages build."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from tests.conversion.formats.megatron.meshes import dense_mesh
from tests.conversion.formats.megatron.pipeline import chunk_sizes, layer_steps, stage_layers
from tests.frameworks_live.megatron.worlds import configuration, world
from tests.geometry import model
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, lower

# layers, stages, chunks, and Megatron's settings
CASES: list[tuple[int, int, int | None, dict[str, Any]]] = [
    (8, 1, None, {}),
    (8, 2, None, {}),
    (8, 4, None, {}),
    (8, 2, 2, {}),
    (8, 2, 4, {}),
    (12, 3, 2, {}),
    (9, 4, None, {"num_layers_in_first_pipeline_stage": 2, "num_layers_in_last_pipeline_stage": 1}),
    (7, 3, None, {"num_layers_in_first_pipeline_stage": 1}),
    (5, 2, None, {"num_layers_in_first_pipeline_stage": 2, "num_layers_in_last_pipeline_stage": 3}),
    (12, 3, 2, {"num_layers_in_first_pipeline_stage": 2, "num_layers_in_last_pipeline_stage": 2}),
    (7, 2, None, {"account_for_embedding_in_pipeline_split": True}),
    (
        6,
        4,
        None,
        {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
    ),
    (7, 2, 2, {"account_for_loss_in_pipeline_split": True}),
    (6, 2, 2, {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}),
    (7, 2, 4, {"account_for_embedding_in_pipeline_split": True}),
]
OURS = {
    "num_layers_in_first_pipeline_stage": "first",
    "num_layers_in_last_pipeline_stage": "last",
    "account_for_embedding_in_pipeline_split": "embedding_counts",
    "account_for_loss_in_pipeline_split": "loss_counts",
}


def megatron_layers(
    layers: int, stages: int, chunks: int | None, settings: dict[str, Any]
) -> list[list[range]]:
    config = configuration(
        num_layers=layers,
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=chunks,
        pipeline_dtype=torch.float32,
        **settings,
    )
    found: list[list[range]] = []
    for stage in range(stages):
        found.append([])
        for chunk in range(chunks or 1):
            place = {"vp_stage": None if chunks is None else chunk, "pp_rank": stage}
            first = get_transformer_layer_offset(config, **place)
            found[-1].append(range(first, first + get_num_layers_to_build(config, **place)))
    return found


def check_stacked(sizes: tuple[tuple[int, ...], ...], theirs: list[list[range]]) -> None:
    layers = sum(map(sum, sizes))
    lowering = lower(Layout(dense_mesh(tp=2, pp=len(theirs)), layer_steps(sizes)), (layers, 3))
    for stage, chunks in enumerate(theirs):
        expected = np.concatenate([model.counter((layers, 3))[list(chunk)] for chunk in chunks])
        for tp in range(2):
            np.testing.assert_array_equal(model.local_of(lowering, (stage, 0, 0, tp)), expected)


@pytest.mark.parametrize(("layers", "stages", "chunks", "settings"), CASES)
def test_stages(layers: int, stages: int, chunks: int | None, settings: dict[str, Any]) -> None:
    theirs = megatron_layers(layers, stages, chunks, settings)
    sizes = chunk_sizes(layers, stages, chunks=chunks or 1, **{OURS[name]: v for name, v in settings.items()})
    assert [list(stage_layers(sizes, stage)) for stage in range(stages)] == theirs
    assert sorted(layer for stage in theirs for chunk in stage for layer in chunk) == list(range(layers))
    check_stacked(sizes, theirs)


@pytest.mark.parametrize(
    ("layers", "stages", "settings"),
    [
        (7, 2, {}),
        (8, 3, {"num_layers_in_first_pipeline_stage": 1}),
    ],
)
def test_what_megatron_refuses(layers: int, stages: int, settings: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        megatron_layers(layers, stages, None, settings)
    with pytest.raises(UcpError):
        chunk_sizes(layers, stages, **{OURS[name]: value for name, value in settings.items()})


@pytest.mark.parametrize(("text", "stages"), [("Ett|t|tt|tL", 4), ("Et|tt|t|ttL", 2), ("E|t*3|t|tL", 2)])
def test_a_layout_of_the_user(text: str, stages: int) -> None:
    theirs: list[list[range]] = []
    for stage in range(stages):
        layout = PipelineParallelLayerLayout.from_str(text, stages)
        chunks = layout.virtual_pipeline_model_parallel_size
        degrees = {
            "pipeline_model_parallel_size": stages,
            "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
        }
        with world(stage, stages, **degrees):
            ids = [layout.get_layer_id_list(LayerType.decoder, vp_stage=chunk) for chunk in range(chunks)]
            first = [layout.get_layer_offset(LayerType.decoder, vp_stage=chunk) for chunk in range(chunks)]
        theirs.append([range(start, start + len(chunk)) for start, chunk in zip(first, ids, strict=True)])
        assert [list(chunk) for chunk in theirs[-1]] == ids
    sizes = tuple(tuple(len(stage[chunk]) for stage in theirs) for chunk in range(len(theirs[0])))
    assert [list(stage_layers(sizes, stage)) for stage in range(stages)] == theirs
    check_stacked(sizes, theirs)
