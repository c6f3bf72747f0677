"""One model through three frameworks: trained under FSDP2, run by Megatron under TP 2 x PP 2, and by transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.frameworks_live.transformers.equivalence_worker import TOKENS
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint

pytestmark = pytest.mark.distributed

WORKER = "tests.frameworks_live.transformers.crossing_worker"
PARAMETERS = {"map": "llama-megatron", "map_parameters": "hidden=32,heads=8,kv_heads=4,ffn=48"}


def test_fsdp_to_megatron_to_hugging_face(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    launch(WORKER, ["train", str(tmp_path)], 2, timeout=200)
    convert_checkpoint(
        tmp_path / "fsdp.ucp",
        tmp_path / "torch_dist",
        source_format="ucp",
        destination_format="megatron",
        settings=PARAMETERS,
    )
    launch(WORKER, ["megatron", str(tmp_path)], 4, timeout=200)
    trained = torch.load(tmp_path / "fsdp-logits.pt", weights_only=True)
    before, after = torch.load(tmp_path / "megatron-logits.pt", weights_only=True)
    assert trained.std() > 0.5
    torch.testing.assert_close(before, trained, atol=2e-5, rtol=1e-4)
    assert (after - before).abs().max() > 0.1
    convert_checkpoint(
        tmp_path / "again",
        tmp_path / "hub",
        source_format="megatron",
        destination_format="safetensors",
        settings={"map": "llama-megatron:left", "map_parameters": PARAMETERS["map_parameters"]},
        drop=["values/*"],
    )
    (tmp_path / "hub" / "config.json").write_bytes((tmp_path / "config" / "config.json").read_bytes())
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hub", attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, after, atol=2e-5, rtol=1e-4)
