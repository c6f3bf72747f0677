"""How the commands fail: usage, refusals, bugs; and what they show while they run."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.cli.conftest import Ucp
from ucpformat.cli import inspect as inspect_module
from ucpformat.cli import main
from ucpformat.cli.report import progress_bar
from ucpformat.errors import error


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert"],
        ["convert", "a"],
        ["inspect"],
        ["nothing"],
        ["validate", "a", "--level", "deep"],
        ["convert", "a", "b", "--from", "nothing"],
        ["convert", "a", "b", "--compressor", "lz4"],
        ["convert", "a", "b", "--set", "stage"],
        ["diff", "a"],
        ["inspect", "a", "--format", "xml"],
    ],
)
def test_wrong_usage_is_exit_code_2(ucp: Ucp, arguments: list[str]) -> None:
    result = ucp(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help(ucp: Ucp, word: str) -> None:
    for command in ([], ["convert"], ["inspect"], ["validate"], ["diff"]):
        result = ucp(*command, word)
        assert result.exit_code == 0
        assert "Usage:" in result.stdout


def test_version(ucp: Ucp) -> None:
    from ucpformat import __version__

    assert ucp("--version").stdout == f"ucp, version {__version__}\n"


@pytest.mark.parametrize("arguments", [("inspect", "{}"), ("diff", "{}", "{}")])
def test_a_refusal_is_one_line_with_code_and_place(
    ucp: Ucp, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """SPEC 18: every refusal carries a code, a place, and a sentence."""
    words = [word.format(tmp_path) for word in arguments]
    result = ucp(*words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error UCP-E-NOT-FOUND at {tmp_path}: ")
    assert result.stderr.count("\n") == 1
    for place in (1, len(words)):
        told = ucp(*words[:place], "--format", "json", *words[place:])
        assert told.exit_code == 1
        (problem,) = json.loads(told.stdout)["problems"]
        assert (problem["code"], problem["at"], problem["severity"]) == (
            "UCP-E-NOT-FOUND",
            str(tmp_path),
            "error",
        )
        assert told.stderr == result.stderr


def test_a_name_that_is_json_asks_for_nothing(
    ucp: Ucp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = ucp("inspect", "json")
    assert (result.exit_code, result.stdout) == (1, "")


def test_messages_stay_on_one_line(ucp: Ucp, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error("UCP-E-STORE", "first\n\x1b[31msecond \u202e\ud800")

    monkeypatch.setattr(inspect_module, "open_checkpoint", refuse)
    assert ucp("inspect", "x").stderr == "error UCP-E-STORE: first\\n\\x1b[31msecond \\u202e\\ud800\n"


def test_bugs_are_not_disguised_as_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(inspect_module, "open_checkpoint", break_down)
    result = CliRunner().invoke(main, ["inspect", "x"])
    assert isinstance(result.exception, ZeroDivisionError)
    assert "error UCP" not in result.stderr


def test_the_module_runs(checkpoint: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ucpformat", *map(str, arguments)]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    done = run("validate", checkpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{checkpoint}: valid (level integrity)\n", "")
    done = run("inspect", tmp_path / "none")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error UCP-E-NOT-FOUND at ")
    done = run("nothing")
    assert done.returncode == 2
    assert "Usage: ucp " in done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def total() -> int:
        asked.append(1)
        return 1 << 20

    asked: list[int] = []
    monkeypatch.setattr(sys, "stderr", silent := io.StringIO())
    with progress_bar("working", total) as advance:
        advance.expect(5)
        advance(5)
    assert (silent.getvalue(), asked) == ("", [])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress_bar("working", total) as advance:
        advance(1 << 19)
    assert "working" in terminal.getvalue()
    assert asked == [1]
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress_bar("converting") as advance:
        advance.expect(1 << 20)
        advance(1 << 19)
    assert "converting" in terminal.getvalue()
    assert "1.0 MiB" in terminal.getvalue()


def test_validate_counts_what_it_reads(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar's total is that of the checkpoint; a broken one has a bar without an end."""
    for path in (checkpoint, tmp_path / "none"):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        try:
            main(["validate", str(path)], standalone_mode=False)
        except click.exceptions.Exit as finished:
            assert finished.exit_code == 1  # noqa: PT017
        assert "validating" in terminal.getvalue()
