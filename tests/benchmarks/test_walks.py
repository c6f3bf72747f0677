"""The way through the library does not become longer: CONTRIBUTING.md has these numbers."""

from __future__ import annotations

import pytest

from benchmarks.walks import WALKS, Walk, walked
from tests.documentation.markdown import ROOT

MOST = {
    "save, one process": (283, 46),
    "save, two ranks": (433, 63),
    "open and slice": (175, 27),
    "validate": (173, 28),
    "convert safetensors to ucp": (295, 45),
}
"""Functions and modules."""
CALLBACKS = {
    ("state_dict.save_load", "save_state.<locals>.describe"),
    ("state_dict.tensors.local_tensors", "is_tensor"),
    ("state_dict.tensors.local_tensors", "LocalTensor.array"),
    ("state_dict.save_load", "save_state"),
    ("validation.integrity", "_chunks"),
    ("conversion.formats.safetensors.importer", "import_safetensors"),
    ("conversion.convert", "<lambda>"),
}
"""What a lower layer calls because it was handed down to it."""


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    return walked()


@pytest.mark.parametrize("name", WALKS)
def test_no_walk_becomes_longer(walks: dict[str, Walk], name: str) -> None:
    walk = walks[name]
    functions, modules = MOST[name]
    assert 0.5 * functions < len(walk.calls) <= functions
    assert 0.5 * modules < len(walk.modules) <= modules
    assert f"| {functions} | {modules} |" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WALKS)
def test_nothing_is_called_upward_but_what_was_handed_down(walks: dict[str, Walk], name: str) -> None:
    called = {(module.removeprefix("ucpformat."), function) for _, (module, function) in walks[name].upward}
    assert called <= CALLBACKS
