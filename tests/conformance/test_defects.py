"""The defects that `make mutants` plants: each fits the sources, and a few are planted here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.conformance.suite import CONFORMANCE, ROOT

sys.path.append(str(CONFORMANCE / "mutants"))
from defects import IMPLEMENTATIONS, Defect, changes, load

CAMPAIGN = CONFORMANCE / "mutants" / "campaign.py"
pytestmark = pytest.mark.skipif(
    not (ROOT / "ucpformat").is_dir(), reason="defects are planted in sources, and the package is installed"
)
DEFECTS = [defect for name in IMPLEMENTATIONS for defect in load(name)]
# One of each of several kinds.
SHORT = {
    "python": ["blobs-share-a-key", "halves-added-wide", "leap-seconds", "mode-without-effect"],
    "node": ["fills-holes", "volume-counted", "atom-annotations-dropped"],
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect.implementation}-{defect.name}")
def test_each_defect_fits_the_sources(defect: Defect) -> None:
    assert changes(defect)
    assert defect.what.endswith(".")
    assert bool(defect.near) != bool(defect.tests)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_each_implementation_has_many(name: str) -> None:
    names = [defect.name for defect in load(name)]
    assert len(names) == len(set(names)) >= 60


def test_the_page_of_campaigns_has_the_figures() -> None:
    page = (ROOT / "docs" / "campaigns.md").read_text(encoding="utf-8")
    told = {
        kind: (int(python), int(node or 0))
        for kind, python, node in re.findall(
            r"^\| (\w+) \|[^|]*\| (\d+) \|(?: (\d+) \|)?$", page, re.MULTILINE
        )
    }
    counts = {
        kind: tuple(
            sum(one.kind == kind for one in DEFECTS if one.implementation == name) for name in IMPLEMENTATIONS
        )
        for kind in dict.fromkeys(defect.kind for defect in DEFECTS)
    }
    assert told == counts


@pytest.mark.parametrize("name", SHORT)
def test_some_are_found(name: str) -> None:
    if name == "node" and shutil.which("node") is None:
        pytest.skip("Node is missing")
    chosen = [f"{name}:{defect}" for defect in SHORT[name]]
    done = subprocess.run([sys.executable, CAMPAIGN, *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(chosen)} of {len(chosen)} defects found" in done.stdout
