"""Megatron-core to Hugging Face: what two tensor-parallel ranks saved has the same logits in transformers."""

from __future__ import annotations

import re
import shlex
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from tests.documentation.markdown import run_by
from tests.documentation.running import commands_of
from tests.frameworks_live.transformers.equivalence_cases import EQUIVALENTS
from tests.frameworks_live.transformers.equivalence_worker import TOKENS
from tests.processes import launch
from ucpformat.cli import main
from ucpformat.conversion.convert import convert_checkpoint, detect_format

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


def test_transformers_computes_what_megatron_computed(tmp_path: Path) -> None:
    launch("tests.frameworks_live.transformers.torch_dist_worker", [str(tmp_path)], 2)
    found = sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and (path / "ckpt").is_dir())
    assert found == ["gpt-neox", "gpt2", "llama", "mixtral"]
    for case in EQUIVALENTS:
        folder = tmp_path / case.name
        assert detect_format(folder / "ckpt") == "megatron"
        if case.name == "llama":
            run_the_page(folder, case.parameters)
        hub = f",{case.name}-hub:left" if case.name in ("gpt-neox", "mixtral") else ""
        stacked = "megatron-stacked-moe" if case.name == "mixtral" else "megatron-stacked"
        parameters = {"layers": 3, **case.parameters, **({"ffn": 48} if case.name == "mixtral" else {})}
        convert_checkpoint(
            folder / "ckpt",
            folder / "hf",
            source_format="megatron",
            destination_format="safetensors",
            settings={
                "map": f"{stacked}:left,{case.name}-megatron:left{hub}",
                "map_parameters": ",".join(f"{name}={value}" for name, value in parameters.items()),
            },
            drop=["values/*"],
        )
        case.config.save_pretrained(folder / "hf")
        loaded = AutoModelForCausalLM.from_pretrained(folder / "hf", attn_implementation="eager").eval()
        with torch.no_grad():
            logits = loaded(TOKENS).logits
        wanted = torch.load(folder / "logits.pt", weights_only=True)
        torch.testing.assert_close(logits, wanted, atol=2e-5, rtol=1e-4)
        assert wanted.std() > 0.5


def run_the_page(folder: Path, parameters: dict[str, int]) -> None:
    """The command of the page, with the sizes of this model."""
    (block,) = run_by(
        "tests/frameworks_live/transformers/test_megatron_to_hub.py", "docs/frameworks/safetensors.md"
    )
    (command,) = commands_of(block.text)
    sizes = ",".join(f"{name}={value}" for name, value in {"layers": 3, **parameters}.items())
    command = re.sub("map_parameters=[^ ]+", f"map_parameters={sizes}", command)
    with chdir(folder):
        Path("run").mkdir()
        Path("run/iter_0001000").symlink_to(folder / "ckpt")
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        assert Path("hub/model.safetensors").exists()
