"""docs/support.md says what works where, and this compares it with the tests, the pins and the classifiers."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
PINNED = sorted(
    {
        f"{name.partition('[')[0]} {version}"
        for path in (ROOT / "requirements").glob("*.txt")
        for name, version in re.findall(
            r"^([\w\[-]+\]?)==([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
)
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


def rows(section: str) -> list[list[str]]:
    """The cells of the lines of a section's tables, heads left out."""
    lines = re.findall(r"^\| (.*) \|$", SECTIONS[section].replace("| |", "|  |"), re.MULTILINE)
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [line for line in cells if not set("".join(line)) <= set("-: |")][1:]


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("file", "function"), NAMED, ids="::".join)
def test_a_test_that_is_named_exists(file: str, function: str) -> None:
    assert (ROOT / file).is_file()
    assert not function or function in functions(file)


def test_all_lines_name_a_test_or_say_that_there_is_none() -> None:
    found = [
        row
        for section in (
            "Stores",
            "Operating systems and file systems",
            "Frameworks",
            "Devices",
        )
        for row in rows(section)
    ]
    assert len(found) > 30
    assert len(NAMED) > 30
    assert not [row[0] for row in found if "*untested*" not in " ".join(row) and "`tests/" not in row[-1]]


@pytest.mark.parametrize("pin", PINNED)
def test_every_pinned_framework_stands_there(pin: str) -> None:
    assert any(pin in re.split(r", ", row[0]) for row in rows("Frameworks"))


def test_no_other_versions_of_frameworks_stand_there() -> None:
    versions = {cell for row in rows("Frameworks") for cell in row[0].split(", ") if re.search(r" \d", cell)}
    assert versions == set(PINNED)


def project() -> dict[str, object]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def test_classifiers_are_what_was_run() -> None:
    """The Pythons on which everything lowest and everything newest passed, and the one operating system."""
    runs = {row[0]: row for row in rows("Versions")}
    passed = {
        row[1] for name, row in runs.items() if name.startswith("newest-python-") and row[-1] == "passed"
    }
    assert passed == {
        name.removeprefix("lowest-python-") for name in runs if name.startswith("lowest-python-")
    }
    classifiers = project()["classifiers"]
    assert isinstance(classifiers, list)
    prefix = "Programming Language :: Python :: "
    assert {name.removeprefix(prefix) for name in classifiers if name.startswith(prefix)} == passed
    assert [name for name in classifiers if name.startswith("Operating System")] == [
        "Operating System :: POSIX :: Linux"
    ]
    assert project()["requires-python"] == f">={min(passed, key=lambda name: int(name.split('.')[1]))}"


def test_all_that_was_run_passed_and_every_dependency_was_lowest_and_newest() -> None:
    found = {row[0]: row for row in rows("Versions")}
    assert {row[-1] for row in found.values()} == {"passed"}
    declared = project()["dependencies"]
    assert isinstance(declared, list)
    lowest = dict(re.findall(r"([\w-]+)>=([\d.]+)", " ".join(declared)))
    assert len(lowest) > 10
    for package, version in lowest.items():
        assert found[f"{package}-lowest"][2].startswith(f"{package} {version}"), package
        assert f"{package} " in found["newest-python-3.11"][2]
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    for package in ("torch", "orbax"):
        (need,) = extras[package]
        assert need.replace(">=", "-") in {
            name.removesuffix(".0") if package == "torch" else name for name in found
        }
