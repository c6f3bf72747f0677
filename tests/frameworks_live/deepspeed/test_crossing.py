"""A run that DeepSpeed begins under ZeRO-3 on 2 ranks goes on under torch's FSDP2 x TP on 4: the same losses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.frameworks_live.deepspeed.crossing_worker import MORE, STEPS
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint

pytestmark = pytest.mark.distributed

WORKER = "tests.frameworks_live.deepspeed.crossing_worker"


def test_zero_3_goes_on_under_fsdp_and_tensor_parallelism(tmp_path: Path) -> None:
    launch(WORKER, ["zero", str(tmp_path)], 2, timeout=200)
    convert_checkpoint(
        tmp_path / "zero3", tmp_path / "zero3.ucp", source_format="deepspeed", destination_format="ucp"
    )
    launch(WORKER, ["fsdp", str(tmp_path)], 4, timeout=200)
    first = torch.load(tmp_path / "zero-losses.pt", weights_only=True)
    resumed = torch.load(tmp_path / "fsdp-losses.pt", weights_only=True)
    assert len(first) == STEPS + MORE
    assert resumed == pytest.approx(first[STEPS:], rel=1e-5)
    # Without the moments, or from other weights, the losses would be others by far.
    assert abs(first[STEPS] - first[STEPS - 1]) > 1e-3
