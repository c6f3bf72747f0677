"""The package as users get it: built by way of the source archive, installed alone, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

import ucpformat

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.wheel, pytest.mark.xdist_group("wheel")]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the source archive and the wheel built from it."""
    folder = tmp_path_factory.mktemp("archives")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(archives: Path) -> Path:
    (found,) = archives.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def fresh_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel and what it requires, no extras."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", str(wheel)]
    subprocess.run(command, check=True, cwd=folder)
    return python


def run(python: Path, *arguments: str) -> str:
    """Run in the environment's own folder, where the checkout is not importable."""
    command = [str(python), "-I", *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=python.parent
    ).stdout.strip()


def test_wheel_holds_the_package_its_schemas_and_licence_only(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    schemas = {
        f"ucpformat/_schema/{path.relative_to(ROOT / 'schema')}"
        for path in (ROOT / "schema").rglob("*.schema.json")
    }
    assert schemas
    assert schemas <= names
    assert "ucpformat/py.typed" in names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"ucpformat"}


def test_source_archive_holds_specification_and_tests(archives: Path) -> None:
    (archive,) = archives.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {name.partition("/")[2] for name in members.getnames()}
    assert {
        "SPEC.md",
        "SPEC-PATTERNS.md",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "tests/test_wheel.py",
    } <= names


def test_installed_alone_it_imports_from_its_own_environment(fresh_python: Path) -> None:
    place = run(fresh_python, "-c", "import ucpformat; print(ucpformat.__file__)")
    assert Path(place).is_relative_to(fresh_python.parent.parent)


def test_torch_is_not_required(fresh_python: Path) -> None:
    seen = run(fresh_python, "-c", "import importlib.util as u; print(u.find_spec('torch'))")
    assert seen == "None"


def test_commands_start_without_torch(fresh_python: Path) -> None:
    listed = run(fresh_python, "-m", "ucpformat", "--help")
    assert all(command in listed for command in ("convert", "inspect", "validate"))


def test_saved_checkpoint_validates_by_the_packaged_schemas(fresh_python: Path, tmp_path: Path) -> None:
    path = tmp_path / "step.ucp"
    program = "import sys, numpy, ucpformat; ucpformat.save(sys.argv[1], {'w': numpy.arange(6.0)})"
    run(fresh_python, "-c", program, str(path))
    assert "valid" in run(fresh_python, "-m", "ucpformat", "validate", str(path), "--level", "integrity")


def test_the_page_is_made_of_the_packaged_modules(fresh_python: Path, tmp_path: Path) -> None:
    program = "import sys, numpy, ucpformat; ucpformat.save(sys.argv[1], {'w': numpy.arange(6.0)})"
    run(fresh_python, "-c", program, str(tmp_path / "step.ucp"))
    page = tmp_path / "page.html"
    run(fresh_python, "-m", "ucpformat", "view", str(tmp_path / "step.ucp"), "-o", str(page))
    assert "Content-Security-Policy" in page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def direct_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the checkout itself, as continuous integration and `pip install .` do."""
    folder = tmp_path_factory.mktemp("direct")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


# Runs with the requirements of this environment and a package from elsewhere, and without a network.
OFFLINE = """
import pathlib, socket, sys
folder, good, bad = sys.argv[1:]
sys.path.insert(0, folder)
def refuse(*arguments, **options):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import ucpformat, ucpformat.schema
assert pathlib.Path(ucpformat.__file__).is_relative_to(folder), ucpformat.__file__
assert "packs" in ucpformat.schema.schema_names()
print([problem.code for path in (good, bad) for problem in ucpformat.validate(path)])
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("kind", ["wheel", "direct_wheel"])
def test_either_wheel_validates_offline_and_without_torch(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    zipfile.ZipFile(request.getfixturevalue(kind)).extractall(installed)
    good, bad = tmp_path / "good.ucp", tmp_path / "bad.ucp"
    for path in (good, bad):
        ucpformat.save(path, {"w": np.arange(6.0)})
    root = json.loads((bad / "ucp.json").read_bytes())
    (bad / "ucp.json").write_bytes(json.dumps({**root, "storage": "zip"}).encode())
    command = [sys.executable, "-c", OFFLINE, str(installed), str(good), str(bad)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["['UCP-E-SCHEMA']", "False"]


def test_either_wheel_is_the_same(wheel: Path, direct_wheel: Path) -> None:
    names = [set(zipfile.ZipFile(path).namelist()) for path in (wheel, direct_wheel)]
    assert names[0] == names[1]
