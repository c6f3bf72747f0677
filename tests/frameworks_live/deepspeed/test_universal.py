"""What DeepSpeed's own converter and ours make as universal checkpoints comes in as it was saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ucpformat
from tests.frameworks_live.deepspeed.conftest import Library, Saved
from tests.frameworks_live.deepspeed.test_import import array_of
from ucpformat.conversion.convert import convert_checkpoint, detect_format

pytestmark = pytest.mark.distributed


def stock_universal(saved: Path, folder: Path, *options: str) -> Path:
    """What DeepSpeed's converter makes, which needs DeepSpeed and runs the pickles."""
    (tag,) = (entry for entry in saved.iterdir() if entry.is_dir())
    out = folder / "universal"
    script = "from deepspeed.checkpoint.ds_to_universal import main, parse_arguments; main(parse_arguments())"
    command = [sys.executable, "-c", script, "--input_folder", str(tag), "--output_folder", str(out)]
    command += ["--num_extract_workers", "1", "--num_merge_workers", "1", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, timeout=240, env=environment)
    return folder


def by_deepspeed(saved: Saved, folder: Path) -> Path:
    return stock_universal(saved.path, folder / "stock", "--inject_missing_state")


def by_us(saved: Saved, folder: Path) -> Path:
    convert_checkpoint(saved.path, folder / "middle.ucp", source_format="deepspeed", destination_format="ucp")
    out = folder / "ours"
    convert_checkpoint(folder / "middle.ucp", out, source_format="ucp", destination_format="ds-universal")
    return out


@pytest.mark.parametrize("make", [by_deepspeed, by_us])
@pytest.mark.parametrize(
    ("name", "degree"), [("z1-bf16", 2), ("z2-fp32", 3), ("z3-bf16", 2), ("z3-sub-groups", 3)]
)
def test_universal_checkpoints_come_in(
    library: Library, name: str, degree: int, make: object, tmp_path: Path
) -> None:
    saved = library.get(name, degree)
    source = by_us(saved, tmp_path) if make is by_us else by_deepspeed(saved, tmp_path)
    assert detect_format(source) == "ds-universal"
    path = tmp_path / "out.ucp"
    convert_checkpoint(source, path, source_format="ds-universal", destination_format="ucp")
    assert ucpformat.validate(path) == []
    reference = saved.reference
    with ucpformat.open(path) as checkpoint:
        assert set(checkpoint) == set(reference["tensors"])
        for name, held in reference["tensors"].items():
            wanted = dict(held)
            if "master" in wanted and wanted["master"].dtype == wanted["value"].dtype:
                del wanted["master"]
            assert set(checkpoint[name]) - {"step"} == set(wanted), name
            for slot, tensor in wanted.items():
                assert checkpoint[name][slot].read().tobytes() == array_of(tensor).tobytes(), (name, slot)
            if "exp_avg" in wanted:
                assert float(checkpoint[name]["step"].read()) == 3
        (optimizer,) = checkpoint.state.optimizers.values()
        named = [[name for name, _ in group] for group in reference["shapes"]]
        assert [name for group in optimizer.groups for name in group.atoms] == [
            n for group in named for n in group
        ]
        assert [decoded["lr"] for decoded in reference["options"]] == [
            group.options["lr"] for group in optimizer.groups
        ]
        assert checkpoint.objects["epoch"] == 3
        assert torch.equal(
            torch.tensor(bytearray(checkpoint.objects["rng"].data)),  # type: ignore[attr-defined]
            reference["rng"],
        )
