"""The wheel in an environment of its own, and the composite action: what its steps run, one after the other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.suite import CONFORMANCE

ACTION = CONFORMANCE / "action.yml"
TEMPLATE = CONFORMANCE / "drivers" / "template" / "driver.py"

pytestmark = [pytest.mark.wheel, pytest.mark.xdist_group("wheel")]


@dataclass(frozen=True)
class Step:
    """A step of the action that runs a script."""

    script: str
    environment: dict[str, str]
    always: bool


def steps() -> list[Step]:
    """The scripts of the action, in order. Steps that use other actions are left out."""
    text = ACTION.read_text(encoding="utf-8").partition("  steps:\n")[2]
    found = []
    for block in re.split(r"^    - ", text, flags=re.MULTILINE)[1:]:
        script = re.search(r"^      run: (?:\|\n((?:        .*\n|\n)+)|(.*)\n)", block, re.MULTILINE)
        if script is None:
            assert "uses: actions/" in block
            continue
        environment = dict(re.findall(r"^        ([A-Z]+): (\$\{\{ .* \}\})$", block, re.MULTILINE))
        lines = textwrap.dedent(script[1]) if script[1] else script[2]
        found.append(Step(lines, environment, "if: always()" in block))
    return found


@dataclass
class Job:
    """What a runner gives to steps."""

    folder: Path
    inputs: dict[str, str]

    def run(self) -> int:
        """Run the steps as a runner does; returns the exit code of the first that failed, or 0."""
        code = 0
        for step in steps():
            if code and not step.always:
                continue
            values = {name: self.filled(value) for name, value in step.environment.items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.script],
                cwd=self.folder,
                env=self.environment() | values,
                capture_output=True,
                text=True,
                check=False,
            )
            with (self.folder / "log").open("a", encoding="utf-8") as log:
                log.write(done.stdout + done.stderr)
            code = code or done.returncode
        return code

    def filled(self, value: str) -> str:
        name = re.fullmatch(r"\$\{\{ inputs\.([a-z]+) \}\}", value)
        assert name is not None
        return self.inputs[name[1]]

    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        return kept | {
            "RUNNER_TEMP": str(self.folder),
            "GITHUB_ACTION_PATH": str(CONFORMANCE),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "job-summary"),
        }


def inputs(**given: str) -> dict[str, str]:
    """Inputs with the action's defaults."""
    text = ACTION.read_text(encoding="utf-8").partition("outputs:")[0]
    defaults = re.findall(r"^  ([a-z]+):\n(?:    .*\n)*?    default: (.*)$", text, re.MULTILINE)
    return {name: value.strip('"') for name, value in defaults} | given


def test_the_action_runs_the_suite_from_its_wheel_without_the_reference(tmp_path: Path) -> None:
    """One environment for the green and the red run: installing takes most of the time."""
    drivers = [f"template={sys.executable} {TEMPLATE}"]
    if shutil.which("node"):
        drivers.append(f"node=node {CONFORMANCE / 'drivers' / 'node' / 'driver.mjs'}")
    job = Job(tmp_path, inputs(driver="\n".join(drivers), profile="quick"))
    assert job.run() == 0, (tmp_path / "log").read_text()[-3000:]

    python = tmp_path / "ucp-conformance" / "bin" / "python"
    command = "import importlib.util as u, ucp_conformance as c; print(u.find_spec('ucpformat'), c.__file__)"
    found = subprocess.run([python, "-I", "-c", command], check=True, capture_output=True, text=True).stdout
    assert found.startswith("None ")
    assert str(tmp_path) in found

    assert (tmp_path / "output").read_text() == f"report={tmp_path}/ucp-conformance-report\n"
    report = tmp_path / "ucp-conformance-report"
    names = {path.name for path in report.iterdir()}
    assert {"report.json", "index.html", "summary.md", "results.ndjson", "badge-template.json"} <= names
    assert (tmp_path / "job-summary").read_text() == (report / "summary.md").read_text()
    messages = {
        path.stem[6:]: json.loads(path.read_bytes())["message"] for path in report.glob("badge-*.json")
    }
    assert messages.pop("template") == "no class"
    # The drivers that need nothing installed.
    features = {"+incremental", "+row-overwrite", "+weight-versions", "+process-images", "+update-log"}
    for message in messages.values():
        assert message.startswith("Full validator/reader/writer/rewriter "), message
        assert features <= set(message.split()), message

    red = Job(tmp_path, inputs(driver="none=/nowhere/driver", profile="quick", arguments="--timeout 2"))
    assert red.run() == 1
    assert "protocol/hello" in (tmp_path / "job-summary").read_text()


def test_expected_failures_and_arguments_reach_the_suite() -> None:
    scripts = "\n".join(step.script for step in steps())
    assert set(re.findall(r"\$\{\{ inputs\.([a-z]+) \}\}", ACTION.read_text(encoding="utf-8"))) == set(
        inputs(driver="")
    )
    assert all(word in scripts for word in ("--xfail", "--profile", "--driver", "$ARGUMENTS"))
