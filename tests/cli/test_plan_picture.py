"""Pictures of ``ucp plan`` at three widths, as kept beside this module; UCP_REWRITE_DOCS=1 writes them anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.cli.conftest import Ucp
from tests.geometry.test_transfer import mesh
from tests.planning.arrangements import Held, arranged
from ucpformat.drawing.bars import bars_of
from ucpformat.geometry import Flatten, Layout, Mesh, Only, Shard
from ucpformat.model.dtype import DTYPES
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

PAGES = Path(__file__).parent / "pages"
SVG = "{http://www.w3.org/2000/svg}"


def model(grid: Mesh) -> dict[tuple[str, str], Held]:
    rows = (Shard("tp", 0, "even"),)
    value, moment = Layout(grid, rows), Layout(grid, (*rows, Flatten(), Shard("dp", 0)))
    alone = Layout(grid, (Only("tp", (0,)), Only("dp", (0,))))
    return {
        ("layers.0.wq", "value"): Held("bfloat16", (64, 64), value),
        ("layers.0.wq", "exp_avg"): Held("float32", (64, 64), moment),
        ("norm", "value"): Held("float32", (64,), alone),
    }


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    grids = {
        "a.json": mesh(dp=2, tp=4), "b.json": mesh(dp=4, tp=2),
        "many.json": mesh(dp=32, tp=4), "more.json": mesh(dp=16, tp=4),
    }  # fmt: skip
    for name, grid in grids.items():
        Path(name).write_text(json.dumps(arranged(model(grid)).to_json()))
    specs = [
        AtomSpec(atom, {slot: SlotSpec(held.dtype, held.shape, held.layout)})
        for (atom, slot), held in model(mesh(dp=2, tp=4)).items()
        if slot == "value"
    ]
    with CheckpointWriter("saved.ucp", specs, attempt="a" * 8, durability="none") as writer:
        for spec in specs:
            form = spec.slots["value"]
            writer.write(spec.name, "value", np.ones(form.shape, DTYPES[str(form.dtype)].numpy))


CASES = {
    "ranks": ("a.json", "b.json"),
    "storage": ("saved.ucp", "b.json"),
    "many": ("many.json", "more.json"),
}


@pytest.mark.parametrize("width", [60, 100, 160])
@pytest.mark.parametrize("name", CASES)
def test_the_pictures_are_as_they_are_kept(
    ucp: Ucp, sides: None, name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    source, target = CASES[name]
    result = ucp("plan", "--from", source, "--to", target, "--picture")
    assert result.exit_code == 0
    kept = PAGES / f"plan-{name}-{width}.txt"
    if os.environ.get("UCP_REWRITE_DOCS"):
        kept.write_text(result.stdout, encoding="utf-8")
    assert result.stdout == kept.read_text(encoding="utf-8")
    assert all(line.isprintable() for line in result.stdout.splitlines())  # no colour in a pipe
    assert max(map(len, result.stdout.splitlines())) <= width


def test_the_svg_says_the_same(ucp: Ucp, sides: None) -> None:
    result = ucp("plan", "--from", "a.json", "--to", "b.json", "-o", "plan.svg", "--format", "json")
    ranks = {int(rank): entry for rank, entry in enumerate(json.loads(result.stdout)["ranks"])}
    root = ElementTree.parse("plan.svg").getroot()
    titles = [group.findtext(f"{SVG}title") or "" for group in root.iter(f"{SVG}g")]
    assert len(titles) == 4 * len(ranks)
    assert titles[:4] == [
        "0: is to hold 6.25 KiB", "0: has 4.25 KiB", "0: receives 2.00 KiB", "0: sends 2.00 KiB",
    ]  # fmt: skip


@pytest.mark.parametrize("more", [("--rank", "0"), ("--explain", "norm"), ("--format", "json")])
def test_a_picture_is_of_all_ranks(ucp: Ucp, sides: None, more: tuple[str, str]) -> None:
    result = ucp("plan", "--from", "a.json", "--to", "b.json", "--picture", *more)
    assert result.exit_code == 2
    assert "--picture" in result.output


def test_names_are_text_in_svg() -> None:
    drawn = bars_of(["<script>\u202e"], ["is & holds"], [(0, (5,))]).svg()
    assert "<script>" not in drawn
    assert "\u202e" not in drawn
    ElementTree.fromstring(drawn)


def test_bars_have_one_scale_and_none_vanishes() -> None:
    lines = list(bars_of(["all"], ["holds", "moves"], [(0, (1 << 30, 0)), (1, (1, 1 << 29))]).lines(80))
    assert lines[2].count("█") == 2 * lines[3].count("█")
    assert "▏" in lines[3]
    assert "█" not in "".join(bars_of(["all"], ["holds"], [(0, (5,))]).lines(16))


def test_bars_of_nobody() -> None:
    assert list(bars_of(["all"], ["holds"], []).lines(60)) == ["all", "ranks     holds"]
