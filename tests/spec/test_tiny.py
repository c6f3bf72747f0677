"""Appendix B of SPEC.md: the tiny checkpoint is what the format makes of it, and every reader reads it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import ucpformat as ucp
from tests.spec import tiny


def test_the_objects_shown_are_those_of_the_format() -> None:
    if os.environ.get("UCP_REWRITE_DOCS"):
        tiny.rewrite()
    assert tiny.shown() == tiny.made()


def test_the_objects_shown_are_a_checkpoint(tmp_path: Path) -> None:
    for key, data in tiny.shown().items():
        (tmp_path / "x" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / key).write_bytes(data)
    assert ucp.validate(tmp_path / "x") == []
    with ucp.open(tmp_path / "x") as checkpoint:
        assert np.array_equal(checkpoint["w"]["value"].read(), np.array(tiny.VALUES, np.float32))
