"""Models that transformers saved, through a checkpoint: loaded by transformers again they compute the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.frameworks_live.transformers.cases import model
from ucpformat.conversion.convert import convert_checkpoint, detect_format

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
FAMILIES = ["llama", "mixtral", "gpt-neox", "bloom", "starcoder"]


def convert(source: Path, destination: Path, to: str, **settings: str) -> Any:
    return convert_checkpoint(
        source,
        destination,
        source_format=detect_format(source),
        destination_format=to,
        source_settings=settings if to == "ucp" else None,
        settings=settings if to != "ucp" else None,
    )


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = AutoModelForCausalLM.from_pretrained(folder).eval()(TOKENS).logits
    return found


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_through_a_checkpoint_and_back(tmp_path: Path, family: str) -> None:
    """Saved in several files, carried, written in several others: bit-equal tensors, files and logits."""
    original = model(family)
    original.save_pretrained(tmp_path / "hf", max_shard_size="40KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    convert(tmp_path / "hf", tmp_path / "c.ucp", "ucp")
    convert(tmp_path / "c.ucp", tmp_path / "back", "safetensors", max_shard_size="70KB")
    before, after = tensors(tmp_path / "hf"), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    for path in (tmp_path / "hf").glob("*.json"):
        if "index" not in path.name:
            assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()
    with torch.no_grad():
        wanted = original(TOKENS).logits
    assert torch.equal(logits(tmp_path / "hf"), logits(tmp_path / "back"))
    torch.testing.assert_close(logits(tmp_path / "back"), wanted)


@pytest.mark.parametrize(
    ("family", "maps"),
    [
        ("llama", ["llama-megatron"]),
        ("gpt-neox", ["gpt-neox-hub", "gpt-neox-megatron"]),
        ("mixtral", ["mixtral-hub"]),
        ("mixtral", ["mixtral-hub", "mixtral-megatron"]),
    ],
)
def test_through_other_names_and_tensors_and_back(tmp_path: Path, family: str, maps: list[str]) -> None:
    """Stored as Megatron-core has it, or with stacked experts: fused and split on the way, and equal at the end."""
    model(family).save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "c.ucp", "ucp", map=",".join(maps))
    convert(
        tmp_path / "c.ucp",
        tmp_path / "back",
        "safetensors",
        map=",".join(reversed(maps)),
        max_shard_size="100KB",
    )
    before, after = tensors(tmp_path / "hf"), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key]), key
    assert torch.equal(logits(tmp_path / "hf"), logits(tmp_path / "back"))


def test_cast_as_transformers_casts(tmp_path: Path) -> None:
    """``dtype=bfloat16`` gives the tensors that transformers gives when it loads in bfloat16."""
    model("llama").save_pretrained(tmp_path / "hf")
    report = convert(tmp_path / "hf", tmp_path / "half", "safetensors", dtype="bfloat16")
    assert set(report.cast.values()) == {"bfloat16"}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
    for name, tensor in tensors(tmp_path / "half").items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert json.loads((tmp_path / "half" / "config.json").read_bytes())["model_type"] == "llama"
