"""Run what `make test` runs on the wheel and the newest of everything: ``python -m tests.versions.installed``.

The wheel is built and installed by uv below ``.venv-newest`` with every extra, ``dev`` but for the torch that it pins,
on the newest Python that is found. Tests run in a copy of the repository that lacks ``ucpformat/``, so that they cannot
import what was not packed. ``--made`` takes the environment of the run before. Other arguments are pytest's, such as
``tests/cli``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from tests.versions.__main__ import OF_PIP, ROOT, pythons

PLACE = ROOT / ".venv-newest"
PYTHON = PLACE / "env" / "bin" / "python"
TREE = PLACE / "tree"
EXTRAS = "torch,orbax,dev"
NOT_COPIED = ("ucpformat", "build", "dist", "out")
WHOLE = ("-n", "2", "--dist", "loadgroup", "-m", "not wheel")
OUTCOMES = ("passed", "failed", "skipped")


def make(python: str) -> None:
    """Build the wheel, and install it with the newest of all that it and its tests need."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(PLACE)]
    subprocess.run(build, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    (wheel,) = PLACE.glob("*.whl")
    overrides = PLACE / "overrides.txt"
    overrides.write_text("torch\n", encoding="utf-8")  # any, where `dev` pins one
    settings = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_CACHE_DIR": str(PLACE / "cache")}
    for of_pip, of_uv in OF_PIP.items():
        if of_pip in settings:
            settings.setdefault(of_uv, settings[of_pip])

    def uv(*arguments: str) -> None:
        command = [sys.executable, "-m", "uv", "--quiet", "--no-config", *arguments]
        subprocess.run(command, check=True, cwd=PLACE, env=settings)

    try:
        uv("venv", "--python", python, str(PLACE / "env"))
        install = ("pip", "install", "--python", str(PYTHON), "--only-binary", ":all:")
        uv(*install, "--overrides", str(overrides), f"ucpformat[{EXTRAS}] @ {wheel.as_uri()}")
    finally:
        shutil.rmtree(PLACE / "cache", ignore_errors=True)


def copy_tree(source: Path, destination: Path) -> None:
    """Copy a repository without its package, what was built and what is hidden."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        found = {name for name in names if name == "__pycache__"}
        if Path(folder) == source:
            found |= {name for name in names if name.startswith(".") or name in NOT_COPIED}
        return found

    shutil.rmtree(destination, ignore_errors=True)
    shutil.copytree(source, destination, ignore=ignored)


def counted(report: Path) -> dict[str, Counter[str]]:
    """Outcomes of a JUnit report, by the folder or file below ``tests``."""
    rooms: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        room = case.get("classname", "").split(".")[1:2] or ["?"]
        broken = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if broken else "skipped" if case.find("skipped") is not None else "passed"
        rooms.setdefault(room[0], Counter())[outcome] += 1
    return dict(sorted(rooms.items()))


def run(arguments: list[str]) -> int:
    """Run tests in the copy and print what came of each room; the exit status of pytest."""
    report = PLACE / "report.xml"
    report.unlink(missing_ok=True)
    settings = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "COV_")) and name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    settings["PATH"] = os.pathsep.join([str(PYTHON.parent), os.environ.get("PATH", os.defpath)])
    asked = (
        "import sys, ucpformat, torch; print(ucpformat.__file__, torch.__version__, sys.version.split()[0])"
    )
    told = subprocess.run(
        [str(PYTHON), "-c", asked], check=True, cwd=TREE, env=settings, capture_output=True, text=True
    ).stdout.split()
    if not Path(told[0]).is_relative_to(PYTHON.parent.parent):
        raise SystemExit(f"the tests would import {told[0]}, which is not the wheel's")
    command = [
        str(PYTHON),
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        *WHOLE,
        f"--junitxml={report}",
        *arguments,
    ]
    status = subprocess.run(command, cwd=TREE, env=settings, check=False).returncode
    print(f"\nPython {told[2]}, torch {told[1]}")
    if report.exists():
        for room, outcomes in counted(report).items():
            print(f"{room}:", ", ".join(f"{outcomes[name]} {name}" for name in OUTCOMES))
    return status


def main() -> int:
    """Make the environment and run the tests; pytest's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions.installed", description=__doc__)
    parser.add_argument("--made", action="store_true", help="take the environment of the run before")
    options, arguments = parser.parse_known_args()
    if not options.made:
        found = pythons()
        make(found[max(found, key=lambda version: int(version.split(".")[1]))])
    copy_tree(ROOT, TREE)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
