"""What the repository says of itself is true: README, Makefile, CI entry, changelog, size of modules."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections import Counter
from functools import cache

import pytest

from tests.documentation.markdown import ROOT, page

LINES_AT_MOST = 450
LINES_OF_THE_PACKAGE = 400

pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="these look at a git checkout"
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def tracked() -> tuple[str, ...]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return tuple(name for name in listing.split("\0") if name and (ROOT / name).is_file())


def tracked_text() -> dict[str, str]:
    texts = {}
    for name in tracked():
        content = (ROOT / name).read_bytes()
        if b"\0" not in content:
            texts[name] = content.decode("utf-8", errors="replace")
    return texts


def makefile_targets() -> dict[str, str]:
    """Target to the help text behind it, empty where there is none."""
    found = re.findall(r"^([a-z][a-z-]*):[^=\n]*?(?:##\s*(.*))?$", read("Makefile"), re.MULTILINE)
    return dict(found)


def test_ci_calls_the_test_command_of_the_readme() -> None:
    (commands,) = [block.text for block in page("README.md").blocks if block.text.startswith("make ")]
    words = [line.split("#")[0].strip() for line in commands.splitlines()]
    assert words == ["make demo", "make test"]
    assert read(".ci/run").rstrip().splitlines()[-1].endswith(f" {words[1]} </dev/null")
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_every_target_is_phony_and_explained() -> None:
    targets = makefile_targets()
    declared = re.search(r"^\.PHONY: (.*)$", read("Makefile"), re.MULTILINE)
    assert declared is not None
    assert set(declared[1].split()) == targets.keys()
    assert all(targets.values())


def test_torch_is_pinned_in_the_environment_of_the_makefile() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    assert ".[dev]" in read("Makefile")
    assert [need for need in extras["dev"] if re.fullmatch(r"torch==\d+\.\d+\.\d+", need)]


def test_readme_describes_places_that_exist_and_are_tracked() -> None:
    places = re.findall(r"^\| `([^`]+/)` \|", read("README.md"), re.MULTILINE)
    assert len(places) > 5
    assert not [place for place in places if not any(name.startswith(place) for name in tracked())]


def test_changelog_keeps_format_and_library_apart_and_names_this_version() -> None:
    sections = re.split(r"^## ", read("CHANGELOG.md"), flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections] == ["Format", "Library"]
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    assert f"### {version}" in sections[1]


def test_changelog_is_short_and_has_what_users_of_drafts_must_know() -> None:
    text = read("CHANGELOG.md")
    assert "### For users of drafts" in text
    assert len(text) < 12_000, "say what there is, not what was done day by day"


def test_no_module_outgrows_its_purpose() -> None:
    # Examples at the end of a docstring explain and do not add to what a module does.
    example = re.compile(r'^ *>>> .*?(?=^ *""")', re.MULTILINE | re.DOTALL)
    sizes = {
        name: example.sub("", text).count("\n")
        for name, text in tracked_text().items()
        if name.endswith(".py")
    }
    assert len(sizes) > 20
    assert not {name: size for name, size in sizes.items() if size > LINES_AT_MOST}
    of_package = {name for name in sizes if name.startswith("ucpformat/")}
    assert not {name: sizes[name] for name in of_package if sizes[name] > LINES_OF_THE_PACKAGE}


def test_no_folder_is_a_drawer() -> None:
    folders = Counter(
        name.rpartition("/")[0] for name in tracked() if re.match(r"ucpformat/.*(?<!__init__)\.py", name)
    )
    # These two read well as lists: a module for a notion of geometry, or for a command.
    assert {name for name, modules in folders.items() if modules > 20} == {
        "ucpformat/geometry",
        "ucpformat/cli",
    }


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert not [
        name for name in tracked() if drawers & {part.removesuffix(".py") for part in name.split("/")}
    ]


# Written so that neither pattern finds itself, here.
MACHINE_PATH = re.compile(r"(?<![\w.$~/-])/(?:root|home|work|Users|opt)/")
REGISTRY = re.compile(r"index[-]url|find[-]links|pypi[.]org|python[h]osted")


@pytest.mark.parametrize("forbidden", [MACHINE_PATH, REGISTRY], ids=["machine path", "registry"])
def test_tracked_files_speak_of_no_machine(forbidden: re.Pattern[str]) -> None:
    texts = tracked_text()
    assert "README.md" in texts
    assert not {name: found[0] for name, text in texts.items() if (found := forbidden.search(text))}


@pytest.mark.parametrize("before", ["", "cd ", "open('", "see\n", "file:"])
def test_the_search_for_machine_paths_finds_them(before: str) -> None:
    assert MACHINE_PATH.search(before + "/home" + "/me/a")


@pytest.mark.parametrize("innocent", ["https://example.org/home/a", "../work/a", "~/work/a", "$ROOT/opt/a"])
def test_the_search_for_machine_paths_finds_nothing_else(innocent: str) -> None:
    assert not MACHINE_PATH.search(innocent)
