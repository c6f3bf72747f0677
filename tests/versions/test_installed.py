"""The run on the installed wheel: its copy of the repository lacks the package, and it counts by room."""

from __future__ import annotations

from pathlib import Path

from tests.versions.__main__ import ROOT
from tests.versions.installed import copy_tree, counted

REPORT = """<testsuites><testsuite>
<testcase classname="tests.cli.test_cp" name="one"/>
<testcase classname="tests.cli.test_cp.TestMore" name="two"><failure message="no"/></testcase>
<testcase classname="tests.cli.test_ls" name="three"><error message="no"/></testcase>
<testcase classname="tests.test_cost" name="four"><skipped message="why"/></testcase>
</testsuite></testsuites>"""


def test_the_copy_has_all_but_the_package(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    for name in ("ucpformat/a.py", "tests/ucpformat/b.py", "dist/c", ".venv/d", "tests/.hidden", "e.md"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    copy.mkdir()
    (copy / "of before").write_text("")
    copy_tree(source, copy)
    found = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert found == {"tests/ucpformat/b.py", "tests/.hidden", "e.md"}


def test_outcomes_are_counted_by_room(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert counted(report) == {"cli": {"passed": 1, "failed": 2}, "test_cost": {"skipped": 1}}


def test_the_makefile_runs_it() -> None:
    assert "-m tests.versions.installed\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
