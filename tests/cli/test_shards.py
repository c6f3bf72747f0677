"""``ucp shards``: a drawing of one tensor."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from tests.cli.conftest import Ucp
from tests.cli.test_plan import TP2, TP4, Write, model, write

__all__ = ["write"]


def test_every_group_of_slots_is_drawn(ucp: Ucp, write: Write) -> None:
    write("a.json", model(TP4))
    result = ucp("shards", "a.json", "layers.1.wq")
    assert result.exit_code == 0
    assert "layers.1.wq: exp_avg\n64x64 over dp 2 x tp 4\n" in result.stdout
    assert "layers.1.wq: value\n64x64 over dp 2 x tp 4\n" in result.stdout
    assert "\x1b" not in result.stdout


def test_another_layout_and_svg(ucp: Ucp, write: Write, tmp_path: Path) -> None:
    write("a.json", model(TP4))
    write("b.json", model(TP2))
    svg = tmp_path / "picture.svg"
    result = ucp(
        "shards", "a.json", "layers.1.wq", "--slot", "value", "--layout", "b.json", "--svg", str(svg)
    )
    assert result.exit_code == 0
    assert "tp 2" in result.stdout
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_json_lists_every_part(ucp: Ucp, write: Write) -> None:
    write("a.json", model(TP4))
    said = json.loads(ucp("shards", "a.json", "layers.1.wq", "--slot", "value", "--format", "json").stdout)
    assert [region["ranks"] for region in said["sides"][0]["explained"][0]["regions"]] == [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
    ]


def test_refusals(ucp: Ucp, write: Write, tmp_path: Path) -> None:
    write("a.json", model(TP4))
    result = ucp("shards", "a.json", "layers.1.wq", "--slot", "velocity")
    assert result.exit_code == 1
    assert "no slot 'velocity'" in result.stderr
    result = ucp("shards", "a.json", "layers.1.wq/value")
    assert "'value' is a slot of 'layers.1.wq': give the name of the atom" in result.stderr
    result = ucp("shards", "a.json", "layers.1.wq", "--svg", str(tmp_path / "x.svg"))
    assert result.exit_code == 2
    assert "--slot" in result.stderr
