from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import Forgery
from tests.cli.conftest import Ucp


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
    assert report == {"checkpoint": str(checkpoint), "level": level, "valid": True, "problems": []}


@pytest.mark.parametrize(("level", "found"), [("structure", 0), ("semantics", 0), ("integrity", 1)])
def test_damage_is_seen_at_the_level_that_looks(ucp: Ucp, checkpoint: Path, level: str, found: int) -> None:
    """UCP-V-005: every problem with code and place."""
    flip_data(checkpoint)
    result = ucp("validate", checkpoint, "--level", level)
    assert result.exit_code == found
    assert ("error UCP-E-CHECKSUM at packs/" in result.stdout) == bool(found)
    report = json.loads(ucp("validate", checkpoint, "--level", level, "--format", "json").stdout)
    assert report["valid"] == (not found)
    codes = {problem["code"] for problem in report["problems"] if problem["severity"] == "error"}
    assert codes <= {"UCP-E-CHECKSUM", "UCP-E-CONTENT"}
    assert bool(codes) == bool(found)


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
    """UCP-V-001."""
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
    assert result.stdout.endswith(": valid, 1 warnings (level integrity)\n")


def test_nothing_there(ucp: Ucp, tmp_path: Path) -> None:
    result = ucp("validate", tmp_path / "none")
    assert result.exit_code == 1
    assert "UCP-E-NOT-FOUND" in result.stdout
    assert "not valid, 1 errors" in result.stdout


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
