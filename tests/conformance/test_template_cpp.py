"""The driver in C++ builds as its page says, answers, and talks to the suite."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conformance.suite import CONFORMANCE, ucp_conformance
from tests.documentation.markdown import run_by

FOLDER = CONFORMANCE / "drivers" / "template" / "cpp"
HEADERS = find_spec("nlohmann_json")

pytestmark = [
    pytest.mark.skipif(
        HEADERS is None, reason="this environment has no nlohmann-json, and fetches nothing here"
    ),
    pytest.mark.skipif(
        not all(map(shutil.which, ("cmake", "c++"))), reason="CMake or a C++ compiler is missing"
    ),
]


def test_the_commands_of_its_page_run_as_they_stand(tmp_path: Path) -> None:
    assert HEADERS is not None
    assert HEADERS.submodule_search_locations
    environment = os.environ | {"CMAKE_INCLUDE_PATH": f"{HEADERS.submodule_search_locations[0]}/include"}
    copy = tmp_path / "cpp"
    shutil.copytree(FOLDER, copy)
    (block,) = run_by("tests/conformance/test_template_cpp.py", "conformance/drivers/template/cpp/README.md")
    *building, running = block.text.splitlines()
    for command in building:
        done = subprocess.run(
            shlex.split(command), cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning:" not in done.stderr

    words = [*shlex.split(running)[1:], "--report", "report"]
    done = ucp_conformance(*words, cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((copy / "report" / "report.json").read_bytes())
    assert report["totals"].keys() == {"pass", "unclaimed", "unsupported"}
