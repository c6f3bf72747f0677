from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.builders import Forgery
from tests.cli.conftest import Ucp
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

NOTHING = {"tensors": [], "parts": [], "blobs": [], "state": False}
WHOLE = {
    "tensors": {"whole": 3, "unchecked": 0, "partly": 0, "lost": 0},
    "bytes": {"whole": 16388, "lost": 0},
}


def flip_data(path: Path) -> None:
    """Change one byte that only the level integrity looks at."""
    pack = max((path / "packs").iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[0] ^= 1
    pack.write_bytes(data)


@pytest.mark.parametrize("level", ["structure", "semantics", "integrity"])
def test_a_good_checkpoint(ucp: Ucp, checkpoint: Path, level: str) -> None:
    result = ucp("validate", checkpoint, "--level", level)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{checkpoint}: valid (level {level})\n"
    report = json.loads(ucp("validate", checkpoint, "--level", level, "--format", "json").stdout)
    survey = {} if level != "integrity" else {"lost": NOTHING, "survives": WHOLE}
    expected = {"checkpoint": str(checkpoint), "level": level, "valid": True, "problems": []}
    assert report == {**expected, **survey}


@pytest.mark.parametrize(("level", "found"), [("structure", 0), ("semantics", 0), ("integrity", 1)])
def test_damage_is_seen_at_the_level_that_looks(ucp: Ucp, checkpoint: Path, level: str, found: int) -> None:
    """UCP-V-004: every problem with code and place."""
    flip_data(checkpoint)
    result = ucp("validate", checkpoint, "--level", level)
    assert result.exit_code == found
    assert ("error UCP-E-CHECKSUM at packs/" in result.stdout) == bool(found)
    report = json.loads(ucp("validate", checkpoint, "--level", level, "--format", "json").stdout)
    assert report["valid"] == (not found)
    codes = {problem["code"] for problem in report["problems"] if problem["severity"] == "error"}
    assert codes <= {"UCP-E-CHECKSUM", "UCP-E-CONTENT"}
    assert bool(codes) == bool(found)


def test_a_loss_is_named_by_tensor_and_rows(ucp: Ucp, checkpoint: Path) -> None:
    flip_data(checkpoint)
    result = ucp("validate", checkpoint)
    lines = result.stdout.splitlines()
    assert "block 0 of chunk c/0/0 of layer.[bold]w[/bold]/value has CRC-32C" in lines[0]
    assert lines[1:3] == [
        "lost: layer.[bold]w[/bold] value [:16, :] of [64, 64]",
        "survives: 12.00 KiB of 16.00 KiB; 2 tensors whole, 1 in part, 0 not at all",
    ]
    report = json.loads(ucp("validate", checkpoint, "--format", "json").stdout)
    assert report["survives"]["bytes"] == {"whole": 12292, "lost": 4096}
    (loss,) = report["lost"]["tensors"]
    assert loss["boxes"] == [{"offset": [0, 0], "shape": [16, 64]}]


def test_a_lost_pack_of_many_tensors_stays_readable(ucp: Ucp, tmp_path: Path) -> None:
    slots = {"value": SlotSpec("float32", (4,)), "exp_avg": SlotSpec("float32", (4,))}
    atoms = [AtomSpec(f"layers.{layer}.{name}", slots) for layer in range(300) for name in ("w", "b")]
    with CheckpointWriter(tmp_path / "c", [AtomSpec("head", slots), *atoms], attempt="x") as writer:
        for atom in ("head", *(spec.name for spec in atoms)):
            for slot in slots:
                writer.write(atom, slot, np.ones(4, np.float32))
    for pack in (tmp_path / "c/packs").iterdir():
        pack.unlink()
    result = ucp("validate", tmp_path / "c")
    assert result.stdout.splitlines() == [
        "error UCP-E-MISSING at packs/x-0-0.pack: the pack is missing",
        "lost: head exp_avg, value: all of 2 tensors, 32 B",
        "lost: layers.{0-299}.b exp_avg, value: all of 600 tensors, 9.38 KiB",
        "lost: layers.{0-299}.w exp_avg, value: all of 600 tensors, 9.38 KiB",
        "survives: 0 B of 18.78 KiB; 0 tensors whole, 0 in part, 1,202 not at all",
        f"{tmp_path / 'c'}: not valid, 1 error (level integrity)",
    ]


def test_levels_see_different_faults(ucp: Ucp, checkpoint: Path) -> None:
    def misspell(index: object) -> None:
        assert isinstance(index, dict)
        index["atoms"][0]["colour"] = "red"

    forgery = Forgery(checkpoint).edit("index", misspell)
    forgery.edit("root", lambda root: root.update(read_features=["zstd"])).sealed()
    structure = ucp("validate", checkpoint, "--level", "structure")
    assert "UCP-E-SCHEMA" in structure.stdout
    assert structure.exit_code == 1


def test_features_are_a_matter_of_semantics(ucp: Ucp, checkpoint: Path) -> None:
    """UCP-D-009."""
    Forgery(checkpoint).edit("root", lambda root: root.update(read_features=["zstd"])).sealed()
    assert ucp("validate", checkpoint, "--level", "structure").exit_code == 0
    result = ucp("validate", checkpoint, "--level", "semantics")
    assert result.exit_code == 1
    assert "error UCP-E-FEATURE-SET at ucp.json" in result.stdout


def test_warnings_do_not_fail(ucp: Ucp, checkpoint: Path) -> None:
    """UCP-V-002."""
    (checkpoint / "blobs" / "debris").write_bytes(b"x")
    result = ucp("validate", checkpoint)
    assert result.exit_code == 0
    assert "warning UCP-W-UNREFERENCED at blobs/debris" in result.stdout
    assert result.stdout.endswith(": valid, 1 warning (level integrity)\n")


def test_nothing_there(ucp: Ucp, tmp_path: Path) -> None:
    result = ucp("validate", tmp_path / "none")
    assert result.exit_code == 1
    assert "UCP-E-NOT-FOUND" in result.stdout
    assert "not valid, 1 error" in result.stdout


@pytest.mark.parametrize("command", ["validate", "inspect", "diff"])
def test_torch_is_never_imported(checkpoint: Path, command: str) -> None:
    """Neither torch nor a framework is loaded to look at a checkpoint, nor by ``import ucpformat``."""
    arguments = [command, str(checkpoint), *([str(checkpoint)] if command == "diff" else [])]
    program = (
        "import sys, ucpformat; assert 'torch' not in sys.modules\n"
        "from ucpformat.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "print(sorted({'torch', 'tensorstore', 'jax', 'safetensors'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == ""
