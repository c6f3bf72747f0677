"""Exit codes, as docs/command-line.md lists them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import ucpformat
from tests.cli.conftest import Make, Ucp
from ucpformat.cli import inspect as inspect_module
from ucpformat.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def test_the_page_lists_codes_and_commands() -> None:
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == ["0", "1", "2", "130"]
    named = {
        name
        for row in re.findall(r"^\| (`ucp .*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"ucp (\w+)", row)
    }
    assert named == set(main.commands) | set(main.list_commands(None))  # type: ignore[arg-type]


IMAGE = ("--name", "one", "--producer", "test", "1")


def test_yes_is_0_no_is_1_usage_is_2(ucp: Ucp, make: Make, tmp_path: Path) -> None:
    good, other = make("run/step-1.ucp"), make("other.ucp", first=5)
    broken = make("broken.ucp")
    next((broken / "packs").iterdir()).unlink()
    for code, arguments in (
        (0, ("validate", good)),
        (1, ("validate", broken)),
        (0, ("diff", good, good)),
        (1, ("diff", good, other)),
        (0, ("repair", broken, "--from", good, "--dry-run")),
        (1, ("repair", broken, "--from", other, "--dry-run")),
        (0, ("repair", good, "--from", other)),
        (0, ("digest", good, other)),
        (0, ("digest", good, "--verify")),
        (1, ("digest", broken, "--verify")),
        (0, ("digest", broken)),
        (0, ("ls", tmp_path / "run")),
        (1, ("ls", tmp_path / "nowhere")),
        (0, ("gc", tmp_path / "run")),
        (1, ("gc", tmp_path / "nowhere")),
        (0, ("inspect", broken)),
        (1, ("inspect", tmp_path / "nowhere")),
        (0, ("cp", good, tmp_path / "copy.ucp")),
        (1, ("cp", broken, tmp_path / "copy-2.ucp")),
        (1, ("cp", good, tmp_path / "copy.ucp")),
        (0, ("attach", good, other / "ucp.json", "-o", tmp_path / "image.ucp", *IMAGE)),
        (1, ("attach", good, other / "ucp.json", "-o", tmp_path / "image.ucp", *IMAGE)),
        (2, ("attach", good, other / "ucp.json", "-o", tmp_path / "other.ucp")),
        (0, ("extract", tmp_path / "image.ucp", "one", "-o", tmp_path / "image")),
        (1, ("extract", tmp_path / "image.ucp", "two", "-o", tmp_path / "image-2")),
        (0, ("convert", good, tmp_path / "a.pt")),
        (1, ("convert", good, tmp_path / "a.pt")),
        (0, ("plan", "--from", good, "--to", good)),
        (0, ("formats",)),
        (2, ("inspect",)),
        (2, ("inspect", good, good)),
        (2, ("inspect", good, "--nothing")),
        (2, ("nothing",)),
    ):
        result = ucp(*arguments)
        assert result.exit_code == code, (arguments, result.output)
        told = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
        assert bool(told) == (code == 2 or (code == 1 and "error UCP-E-" in result.stderr))


def test_ctrl_c_is_130(ucp: Ucp, checkpoint: Path) -> None:
    with patch.object(inspect_module, "open_checkpoint", side_effect=KeyboardInterrupt):
        result = ucp("inspect", checkpoint)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("name", ["a.dcp", "a.ucp"])
def test_ctrl_c_in_a_conversion_leaves_nothing_visible(
    ucp: Ucp, checkpoint: Path, tmp_path: Path, name: str
) -> None:
    """And both ways that are named then work: to begin anew, and to go on."""
    where = "ucpformat.writer.CheckpointWriter.commit"
    if name == "a.dcp":
        where = "ucpformat.conversion.engine.out_directory.OutDirectory.finish"
    for options in ((), ("--resume",)):
        with patch(where, side_effect=KeyboardInterrupt):
            result = ucp("convert", checkpoint, tmp_path / name)
        assert result.exit_code == 130
        assert result.stderr == (
            f"interrupted: nothing is visible at {tmp_path / name}; run it again to begin anew, or with --resume to "
            "go on with what is finished\n"
        )
        assert ucp("inspect", tmp_path / name).exit_code == 1
        assert ucp("convert", checkpoint, tmp_path / name, *options).exit_code == 0
        ucp("convert", tmp_path / name, tmp_path / f"back{len(options)}.ucp")
        assert ucp("diff", checkpoint, tmp_path / f"back{len(options)}.ucp").exit_code in (0, 1)
        for path in sorted((tmp_path / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / name).rmdir()


def test_the_place_is_in_the_json_of_an_error(ucp: Ucp, tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "a.ucp", {"w": np.ones(2)})
    (tmp_path / "a.ucp" / "ucp.json").write_text("{")
    (problem,) = json.loads(ucp("inspect", tmp_path / "a.ucp", "--format", "json").stdout)["problems"]
    assert (problem["code"], problem["at"], problem["path"]) == (
        "UCP-E-JSON",
        "ucp.json",
        str(tmp_path / "a.ucp"),
    )
