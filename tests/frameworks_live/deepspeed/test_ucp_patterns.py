"""UCP's patterns: DeepSpeed's own converter merges what our steps spread, and its loader cuts as they do elsewhere.

Slices of a counter are written as fragments by ``dump_param_fragment``, merged by ``merge_tp_slices``, and read back
for another degree by ``load_hp_checkpoint_state``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.checkpoint.universal_checkpoint import load_hp_checkpoint_state

from ucpformat.geometry import Layout, Lowering, Mesh, MeshAxis, Step, invert, lower, sub_parameter_steps
from ucpformat.geometry.vocabulary.universal import (
    averaged_steps,
    fragment_steps,
    fused_expert_steps,
    replicated_steps,
    vocabulary_steps,
)

NAME = "layer.weight"


@dataclass(frozen=True)
class Row:
    """A pattern: our steps by degree, and what DeepSpeed is told of a parameter of ``shape`` at a degree."""

    shape: tuple[int, ...]
    steps: Callable[[int], tuple[Step, ...]]
    info: Callable[[int], Mapping[str, Any]]
    degrees: tuple[tuple[int, int], ...] = ((2, 4), (4, 2), (3, 1), (1, 3))
    differs: bool = field(default=False)


def listed(key: str) -> Callable[[int], Mapping[str, Any]]:
    return lambda degree: {key: [NAME]}


def sub_params(
    shape: tuple[Any, ...], dim: int, version: float, widths: Callable[[int], Any] | None = None
) -> Callable[[int], Mapping[str, Any]]:
    def told(degree: int) -> Mapping[str, Any]:
        entry = {"patterns": [NAME], "shape": shape, "partition_dim": dim}
        found: dict[str, Any] = {
            "parameter_with_sub_params": [entry],
            "universal_checkpoint_version": version,
        }
        return found | ({} if widths is None else {"sub_param_shard_widths": {NAME: widths(degree)}})

    return told


EVEN = ((2, 4), (4, 2), (1, 2))
GQA = (8, 4, 4)
ROWS = {
    "replicate": Row((5, 3), lambda degree: replicated_steps(), listed("tp_replicated_parameter_patterns")),
    "partial": Row(
        (5, 3), lambda degree: averaged_steps(["tp"]), listed("parameter_to_average_patterns"), differs=True
    ),
    "fragment-rows": Row((12, 5), lambda degree: fragment_steps([("tp", 0)]), lambda degree: {}),
    "fragment-columns": Row(
        (5, 12),
        lambda degree: fragment_steps([("tp", 1)]),
        listed("parameter_with_row_parallelism_patterns"),
    ),
    "halves": Row(
        (24, 5),
        lambda degree: sub_parameter_steps("tp", 0, (12, 12)),
        listed("parameter_with_2_sub_params_cat_dim_0"),
    ),
    "grouped-query-attention": Row(
        (16, 5), lambda degree: sub_parameter_steps("tp", 0, GQA), sub_params((GQA, 5), 0, 0.3), EVEN
    ),
    "grouped-query-attention-by-widths": Row(
        (16, 5),
        lambda degree: sub_parameter_steps("tp", 0, GQA),
        sub_params((GQA, 5), 0, 0.4, lambda degree: [[size // degree] * degree for size in GQA]),
        EVEN,
    ),
    "fused-experts-rows": Row(
        (24, 5),
        lambda degree: fused_expert_steps("tp", 2, (12, 5), 0),
        sub_params((2, (12,), 5), 1, 0.3),
        EVEN,
    ),
    "fused-experts-columns": Row(
        (6, 8),
        lambda degree: fused_expert_steps("tp", 2, (3, 8), 1),
        sub_params((2, 3, (8,)), 2, 0.3),
        EVEN,
    ),
    "vocabulary": Row(
        (10, 3),
        lambda degree: vocabulary_steps("tp", 4 * degree),
        lambda degree: {"vocabulary_parameter_patterns": [NAME], "original_vocab_size": 10},
    ),
}


def lowered(row: Row, degree: int) -> Lowering:
    return lower(Layout(Mesh((MeshAxis("tp", degree),)), row.steps(degree)), row.shape)


def slices(row: Row, logical: torch.Tensor, degree: int) -> list[torch.Tensor]:
    """What our lowering gives every rank."""
    lowering = lowered(row, degree)
    found = []
    for rank in range(degree):
        local = lowering.at((rank,))
        assert local is not None
        memory = torch.zeros(local.size)
        for move in invert(local, lowering.view):
            part = logical.reshape(-1).as_strided(move.shape, move.target.strides, move.target.offset)
            memory.as_strided(move.shape, move.source.strides, move.source.offset).copy_(part)
        found.append(memory.reshape(local.shape))
    return found


def merged(row: Row, parts: list[torch.Tensor], folder: Path) -> torch.Tensor:
    """What DeepSpeed's converter makes of slices; every slice is in two data-parallel fragments."""
    degree, state = len(parts), {"fp32": 1.0, "exp_avg": 0.5, "exp_avg_sq": 0.25}
    ds_to_universal.cnt = 0  # a global that the script's own main sets
    for rank, part in enumerate(parts):
        half = part.numel() // 2
        for index, (start, count) in enumerate(((0, half), (half, part.numel() - half))):
            for name, factor in state.items():
                flat = part.reshape(-1) * factor
                ds_to_universal.dump_param_fragment(
                    str(folder / "tmp"), rank, index, name, flat, NAME, start, count
                )
    flat_shapes = [part.reshape(-1, part.shape[-1]).shape for part in parts]
    shapes = flat_shapes if len(row.shape) == 2 and parts[0].ndim == 3 else [part.shape for part in parts]
    info = {"universal_checkpoint_version": 0.3, **row.info(degree)}
    unmatched = ds_to_universal.merge_tp_slices(
        info, str(folder / "out"), str(folder / "tmp"), degree, (NAME, shapes)
    )
    assert unmatched == set()
    found: torch.Tensor = torch.load(folder / "out" / NAME / "fp32.pt", weights_only=False)["param"]
    half_found = torch.load(folder / "out" / NAME / "exp_avg.pt", weights_only=False)["param"]
    assert torch.equal(half_found, found / 2)
    return found


def loaded(folder: Path, local: torch.Tensor, rank: int, degree: int) -> torch.Tensor:
    """What DeepSpeed's loader puts into the memory of a rank that holds a tensor of the shape of ``local``."""
    memory = torch.full((local.numel(),), -1.0)
    parameter: Any = torch.nn.Parameter(torch.zeros(local.shape))
    parameter._hp_mapping = SimpleNamespace(
        optim_fragment={},
        lp_fragment_address=SimpleNamespace(start=0, numel=local.numel()),
        get_hp_fragment=lambda: memory,
    )
    load_hp_checkpoint_state(parameter, str(folder / "out" / NAME), rank, degree)
    assert torch.equal(parameter._hp_mapping.optim_fragment["exp_avg"], memory / 2)
    return memory


@pytest.mark.parametrize(
    ("name", "before", "after"), [(n, *d) for n, row in ROWS.items() for d in row.degrees]
)
def test_deepspeed_merges_and_cuts_as_our_steps_do(
    name: str, before: int, after: int, tmp_path: Path
) -> None:
    row = ROWS[name]
    logical = torch.arange(1.0, 1 + math.prod(row.shape)).reshape(row.shape)
    parts = slices(row, logical, before)
    if row.differs:
        # The copies differ, and their mean is the counter.
        parts = [part + 2 * rank - (before - 1) for rank, part in enumerate(parts)]
    found = merged(row, parts, tmp_path)
    assert torch.equal(found.reshape(row.shape), logical)
    for rank, local in enumerate(slices(row, logical, after)):
        assert torch.equal(loaded(tmp_path, local, rank, after), local.reshape(-1))
