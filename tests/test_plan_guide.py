"""The examples of docs/plan.md, run: files are written, commands and programs print what stands there."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ucpformat.cli import main
from ucpformat.model.dtype import dtype
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

GUIDE = Path(__file__).parents[1] / "docs" / "plan.md"
FENCE = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def save(path: str) -> None:
    """The checkpoint that the guide speaks of; keys and bytes are always the same."""
    spec = AtomSpec("wq.weight", {"value": SlotSpec("bfloat16", (4096, 512))})
    with CheckpointWriter(path, [spec], attempt="5f3a9c01") as writer:
        writer.write("wq.weight", "value", np.ones((4096, 512), dtype("bfloat16").numpy))


def run(command: str) -> str:
    words = shlex.split(command)
    assert words[0] == "ucp"
    result = CliRunner().invoke(main, words[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def program(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(compile(text, str(GUIDE), "exec"), {})
    return capsys.readouterr().out


def test_the_guide_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``UCP_REWRITE_GUIDE=1`` puts into the guide what the commands print now."""
    monkeypatch.chdir(tmp_path)
    save("saved.ucp")
    capsys.readouterr()
    printed = ""
    seen = {"console": 0, "json": 0, "python": 0, "text": 0}

    def replaced(match: re.Match[str]) -> str:
        nonlocal printed
        kind, info, text = match[1], match[2], match[3]
        seen[kind] += 1
        match kind:
            case "json":
                Path(info.removeprefix("file=")).write_text(text)
            case "console":
                command = text.splitlines()[0].removeprefix("$ ")
                text = f"$ {command}\n{run(command)}"
            case "python":
                printed = program(text, capsys)
            case _:
                text = printed
        return f"```{kind}{' ' + info if info else ''}\n{text}```"

    guide = GUIDE.read_text(encoding="utf-8")
    current = FENCE.sub(replaced, guide)
    assert min(seen.values()) >= 1
    if os.environ.get("UCP_REWRITE_GUIDE"):
        GUIDE.write_text(current, encoding="utf-8")
        print("rewritten", file=sys.stderr)
    else:
        assert current == guide
