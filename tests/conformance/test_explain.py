"""`ucp-conformance explain`, and what is said of drivers that die before they have said anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ucp_conformance.cli import main
from ucp_conformance.connection import Connection, DriverError
from ucp_conformance.explain import explained
from ucp_conformance.vectors import all_vectors


def test_every_case_can_be_explained() -> None:
    for vector in all_vectors():
        case = vector.case
        text = explained(case["id"])
        assert text.startswith(f"{case['id']}: {case['title']}\n")
        for check in case["checks"]:
            assert f"Check {check['name']}: {check['op']}" in text
        assert "is no requirement any more" not in text


def test_an_explanation_says_what_is_held_asked_and_expected() -> None:
    done = CliRunner().invoke(main, ["explain", "bad/write/bool-two:write-plain"])
    assert done.exit_code == 0
    assert "UCP-W-026  A writer MUST refuse a byte of a `bool`" in done.output
    assert "expected: a refusal with UCP-E-PADDING" in done.output
    assert "bools.bin" in done.output
    assert "ucp-conformance run --only bad/write/bool-two --driver" in done.output


@pytest.mark.parametrize(
    ("name", "near"), [("bad/write/bool", "bad/write/bool-two"), ("bad/wrte/hole", "bad/write/hole")]
)
def test_a_case_that_is_not_there_is_said_with_those_that_are_near(name: str, near: str) -> None:
    done = CliRunner().invoke(main, ["explain", name])
    assert done.exit_code == 2
    assert near in done.output


def dying(folder: Path, program: str) -> str:
    """What is said of a driver that is this program."""
    file = folder / "driver.py"
    file.write_text(program, encoding="utf-8")
    connection = Connection(f"{sys.executable} {file}", label="mine", timeout=30.0)
    try:
        with pytest.raises(DriverError) as caught:
            connection.hello()
    finally:
        connection.kill()
    return str(caught.value)


def test_a_driver_that_dies_before_hello_is_said_to_have_died_with_its_last_words(tmp_path: Path) -> None:
    said = dying(tmp_path, "import sys; sys.exit('cannot find libucp.so')")
    assert said == "mine died before it said hello: exit code 1; its last words:\ncannot find libucp.so"


def test_a_driver_that_dies_without_a_word_is_said_to_have_said_nothing(tmp_path: Path) -> None:
    said = dying(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert said == "mine died before it said hello: signal SIGTERM; it wrote nothing to standard error"


def test_a_driver_that_prints_something_else_is_told_what_it_printed(tmp_path: Path) -> None:
    said = dying(tmp_path, "print('ready \\u00e9', flush=True); input()")
    assert said.startswith('mine did not say hello, but: "ready é"')
