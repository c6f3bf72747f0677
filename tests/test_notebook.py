"""What notebooks show of views, layouts and results: hostile names are text in each of them, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import ucpformat as ucp
from tests.drawing.test_html_tree import Shown
from tests.planning.arrangements import Held, side
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.planning import pair, survey
from ucpformat.views import StateEntries

LONG = "x" * 1024
HOSTILE = ["<script>alert(1)</script>", "red\u202egnp.exe", "&amp;\"'><img src=x onerror=alert(1)>", LONG]
SVG_TAGS = {"svg", "title", "rect", "text", "g"}


def save(path: Path, name: str, fill: float = 1.0) -> ucp.SaveReport:
    return ucp.save(path, {name: np.full((4, 4), fill, np.float32), "epoch": fill})


def plan(name: str) -> Any:
    grid = Mesh((MeshAxis("tp", 2),))
    slots = {(name, "value"): Held("float32", (4, 4), Layout(grid, (Shard("tp", 0),)))}
    turned = {(name, "value"): Held("float32", (4, 4), Layout(grid, (Shard("tp", 1),)))}
    return survey(pair(side(name, slots), side(name, turned), "ranks"))


def damaged(path: Path, name: str) -> ucp.Examination:
    save(path, name)
    (pack,) = (path / "packs").glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[8] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    return ucp.examine(path)


def shown(page: str) -> str:
    """Return the text of a page; `Shown` refuses tags and attributes but those of plain pages."""
    assert "\u202e" not in page
    assert "<script" not in page
    assert "<img" not in page
    assert LONG not in page
    return Shown(page).text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_in_html(tmp_path: Path, name: str) -> None:
    told = name[:20].replace("\u202e", r"\u202e")[:12]
    report = save(tmp_path / "a", name)
    assert report.digest in shown(report._repr_html_())
    with ucp.open(tmp_path / "a") as ckpt:
        for one in (ckpt, ckpt[name], ckpt[name]["value"]):
            assert told in shown(one._repr_html_())
    save(tmp_path / "b", name, 2.0)
    assert told in shown(ucp.diff(tmp_path / "a", tmp_path / "b")._repr_html_())
    found = damaged(tmp_path / "c", name)
    assert found.problems
    assert told in shown(found._repr_html_())
    root = ElementTree.fromstring(plan(name)._repr_svg_())
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == SVG_TAGS
    assert all(text.isprintable() for text in root.itertext())


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_axes_are_text_in_html(name: str) -> None:
    layout = Layout(Mesh((MeshAxis(name, 2),)), (Shard(name, 0, "even"),))
    assert "Shard" in shown(layout._repr_html_())


def test_state_is_completed_by_name(tmp_path: Path) -> None:
    save(tmp_path / "a", "w")
    with ucp.open(tmp_path / "a") as ckpt:
        assert ckpt._ipython_key_completions_() == ["w"]
        assert ckpt["w"]._ipython_key_completions_() == ["value"]
        objects = ckpt.objects
        assert isinstance(objects, StateEntries)
        assert objects._ipython_key_completions_() == ["epoch"]


def test_results_are_short_in_a_console(tmp_path: Path) -> None:
    save(tmp_path / "a", "w")
    save(tmp_path / "b", "w", 2.0)
    assert repr(ucp.diff(tmp_path / "a", tmp_path / "b")) == "<Comparison: 2 differences, 128 B read>"
    assert repr(ucp.diff(tmp_path / "a", tmp_path / "a")) == "<Comparison: both hold the same, 0 B read>"
    assert repr(ucp.examine(tmp_path / "a")) == "<Examination: no problems>"
    assert repr(damaged(tmp_path / "c", "w")).startswith("<Examination: 1 problem>")
    assert repr(plan("w")) == "<Survey w to w: 2 ranks, 64 B sent, received and fetched>"


def test_long_tables_are_cut(tmp_path: Path) -> None:
    for name, fill in (("a", 0), ("b", 1)):
        ucp.save(tmp_path / name, {f"v{n}": fill for n in range(150)})
    assert "and 50 more" in shown(ucp.diff(tmp_path / "a", tmp_path / "b")._repr_html_())
