"""Run tests in environments with other versions: ``python -m tests.versions [NAME ...]`` (`table.toml` says which).

Names may be globs (``'torch-*'``); without names everything runs, and ``--list`` says what there is. Each environment
is made by uv below ``.venv-versions``, and removed afterwards. Results are kept there, and ``--into PAGE`` writes those
of all that have run into a page. ``UV_TORCH_BACKEND=cpu`` has uv fetch torch's CPU builds, where their index can be
reached; otherwise they are what the registry serves.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".venv-versions"
RESULTS = PLACE / "results.json"
MARKS = ("<!-- versions: begin -->", "<!-- versions: end -->")
OLDEST, NEWEST_THOUGHT_OF = 11, 20
OF_PIP = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}
"""Where pip is told to look, uv looks too."""


@dataclass(frozen=True)
class Environment:
    """What is installed beside the package, and which tests run. ``subject`` are the packages that it is about."""

    name: str
    python: str
    requirements: tuple[str, ...]
    tests: tuple[str, ...]
    subject: tuple[str, ...]
    resolution: str = "highest"


@dataclass(frozen=True)
class Result:
    """What came of an environment; ``versions`` by package, ``failed`` are names of tests, or why there are none."""

    name: str
    python: str
    versions: dict[str, str]
    passed: int
    skipped: int
    failed: list[str]


def pythons() -> dict[str, str]:
    """Interpreters that start, by version, such as 3.12: on the path, or where pyenv puts them."""
    found: dict[str, str] = {}
    for minor in range(OLDEST, NEWEST_THOUGHT_OF):
        version = f"3.{minor}"
        own = [sys.executable] if sys.version_info[:2] == (3, minor) else []
        path = shutil.which(f"python{version}")
        kept = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
        for candidate in (*own, *([path] if path else []), *map(str, sorted(kept))):
            asked = subprocess.run(
                [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if asked.stdout.strip() == version:
                found[version] = candidate
                break
    return found


def dependencies() -> dict[str, str]:
    """The lowest version of each dependency that pyproject.toml declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = [
        *project["dependencies"],
        *(need for name in extras if name != "dev" for need in extras[name]),
    ]
    return dict(re.match(r"([\w-]+)>=([\d.]+)", need).groups() for need in declared)  # type: ignore[union-attr, misc]


def environments(versions: Iterable[str]) -> Iterator[Environment]:
    """All environments of the table, on the Pythons that there are."""
    table = tomllib.loads(Path(__file__).with_name("table.toml").read_text(encoding="utf-8"))
    tools = table["tools"]
    oldest = f"3.{OLDEST}"

    def tests(names: list[str]) -> tuple[str, ...]:
        return tuple(file for name in names for file in table["tests"][name])

    declared = dependencies()
    subject = tuple(name for name in declared if name not in ("torch", "tensorstore"))
    here = ".".join(map(str, sys.version_info[:2]))
    every = [(entry, f"-python-{python}", python) for entry in table["every-python"] for python in versions]
    for entry, suffix, python in [(entry, "", here) for entry in table["short"]] + every:
        yield Environment(
            entry["name"] + suffix,
            python,
            (*tools, *entry.get("with", ())),
            tests(entry["tests"]),
            subject,
            entry.get("resolution", "highest"),
        )
    entry = table["each-lowest"]
    for package in subject:
        exact = f"{package}=={declared[package]}"
        yield Environment(
            f"{package}-lowest", oldest, (*tools, *entry["with"], exact), tests(entry["tests"]), (package,)
        )
    for entry in table["release"]:
        package, python = entry["package"], entry.get("python", oldest)
        suffix = "" if python == oldest else f"-python-{python}"
        for version in entry["versions"]:
            exact = f"{package}=={version}"
            name = f"{package}-{version}{suffix}"
            with_what = (*tools, *entry.get("with", ()), exact)
            yield Environment(name, python, with_what, tests(entry["tests"]), (package,))


def make(environment: Environment, python: str) -> Path:
    """Make an environment, and return its folder."""
    folder = PLACE / environment.name
    cache = PLACE / f"{environment.name}-cache"
    settings = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    for of_pip, of_uv in OF_PIP.items():
        if of_pip in settings:
            settings.setdefault(of_uv, settings[of_pip])
    if "torch" in environment.subject:
        settings["UV_CACHE_DIR"] = str(cache)  # gigabytes, which no other environment shares

    def uv(*arguments: str) -> None:
        command = [sys.executable, "-m", "uv", "--quiet", "--no-config", *arguments]
        subprocess.run(command, check=True, cwd=ROOT, env=settings)

    try:
        uv("venv", "--clear", "--python", python, str(folder))
        install = ("pip", "install", "--python", str(folder), "--only-binary", ":all:", "--editable", ".")
        if environment.resolution == "highest":
            uv(*install, *environment.requirements)
        else:  # of the package alone: the lowest pytest is no subject of ours
            uv(*install, "--resolution", environment.resolution)
            uv(*install, *environment.requirements)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return folder


def run(environment: Environment, folder: Path) -> Result:
    """Run the tests of an environment that was made."""
    python = folder / "bin" / "python"
    if not python.exists():
        python = folder / "Scripts" / "python.exe"
    report = folder / "report.xml"
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    settings |= {"UCP_HYPOTHESIS_PROFILE": "quick", "PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(
        [*command, *environment.tests], cwd=ROOT, env=settings, capture_output=True, text=True, check=False
    )
    names = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    listed = subprocess.run([str(python), "-c", names], capture_output=True, text=True, check=True)
    installed = {
        name.lower().replace("_", "-"): version for name, version in json.loads(listed.stdout).items()
    }
    wanted = {name: installed[name.lower().replace("_", "-")] for name in environment.subject}
    if not report.exists():
        return Result(
            environment.name, environment.python, wanted, 0, 0, [(done.stdout + done.stderr)[-2000:]]
        )
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    if failed or done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:])
    named = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    if done.returncode and not named:
        named = [f"pytest ended with {done.returncode}"]
    passed = len(cases) - len(failed) - skipped
    return Result(environment.name, environment.python, wanted, passed, skipped, named)


def kept() -> dict[str, Any]:
    """Results of environments that have run, by name."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.exists() else {}


def table(results: Iterable[dict[str, Any]]) -> str:
    """Results as a table in Markdown."""
    lines = ["| environment | Python | versions | tests | |", "|---|---|---|---:|---|"]
    for result in results:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(result["versions"].items()))
        outcome = "passed" if not result["failed"] else f"**{len(result['failed'])} failed**"
        lines.append(
            f"| {result['name']} | {result['python']} | {versions} | {result['passed']} | {outcome} |"
        )
    return "\n".join(lines)


def write_into(page: Path, text: str) -> None:
    """Replace what is between the marks in a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> int:
    """Make and run what the command line asks for; 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("names", nargs="*", help="names or globs; all but the short form if there are none")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--make-only", action="store_true", help="make environments, and keep them")
    parser.add_argument(
        "--made", action="store_true", help="run in environments that were made, and keep them"
    )
    parser.add_argument("--into", type=Path, help="a page that gets the results of all that have run")
    options = parser.parse_args()
    found = pythons()
    every = list(environments(found))
    globs = options.names or [one.name for one in every if not one.name.startswith("short-")]
    chosen = [one for one in every if any(fnmatch.fnmatch(one.name, name) for name in globs)]
    if options.list:
        print("\n".join(one.name for one in chosen))
        return 0
    PLACE.mkdir(exist_ok=True)
    done = [visit(one, found, makes=not options.made, runs=not options.make_only) for one in chosen]
    if options.into is not None:
        results = kept()
        write_into(options.into, table(results[one.name] for one in every if one.name in results))
    return 0 if done and all(done) else 1


def visit(environment: Environment, found: dict[str, str], *, makes: bool, runs: bool) -> bool:
    """Make an environment, run its tests and remove it, or only one of these; whether all went well."""
    start = time.monotonic()
    if makes:
        if environment.python not in found:
            print(f"{environment.name}: there is no Python {environment.python} here", flush=True)
            return True
        try:
            make(environment, found[environment.python])
        except subprocess.CalledProcessError as problem:
            print(f"{environment.name}: not made: {problem}", flush=True)
            return False
    made = time.monotonic()
    if not runs:
        return True
    folder = PLACE / environment.name
    result = run(environment, folder)
    times = f"made in {made - start:.0f} s, {time.monotonic() - made:.0f} s of tests"
    outcome = f"{result.passed} passed, {result.skipped} skipped, {len(result.failed)} failed"
    print(f"{result.name}: {outcome}; {times}", *result.failed, sep="\n  ", flush=True)
    if makes:
        RESULTS.write_text(json.dumps(kept() | {result.name: asdict(result)}, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
    return result.passed > 0 and not result.failed


if __name__ == "__main__":
    sys.exit(main())
