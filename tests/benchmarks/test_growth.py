"""Curves of growth: exponents are right, and everything is measured at every size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.giant import Grid, Optimizer, Size
from benchmarks.growth.command import OVER
from benchmarks.growth.curves import Curves, Point, exponent
from benchmarks.growth.ranks import GRIDS, Job, at_ranks
from benchmarks.plots import draw_curves


@given(st.floats(0, 3), st.floats(0.1, 10), st.lists(st.integers(1, 10**6), min_size=2, unique=True))
def test_the_exponent_of_a_power_is_found(power: float, factor: float, sizes: list[int]) -> None:
    points = [Point(size, {"work, s": factor * size**power}) for size in sorted(sizes)]
    found = exponent(points, "work, s")
    assert found == pytest.approx(power, abs=1e-6)
    assert exponent([Point(1, {"work, s": 0.0}), *points][-2:][:1], "work, s") is None
    assert exponent([Point(size, {"work, s": 1e-6}) for size in sizes], "work, s") is None


@pytest.mark.parametrize(
    ("over", "sizes", "named"),
    [
        ("layouts", "4,20", {"save, CPU s", "validate metadata, CPU s", "root document, KiB"}),
        ("atoms", "20,200", {"save, CPU s", "open and read one, MiB", "validate metadata, MiB"}),
        ("bytes", "1,2", {"save, memory above the state, MiB", "load, CPU s", "objects"}),
    ],
)
def test_the_command_writes_tables_readings_and_a_picture(
    tmp_path: Path, over: str, sizes: str, named: set[str]
) -> None:
    files = {name: tmp_path / f"run.{suffix}" for name, suffix in (("json", "json"), ("markdown", "md"))}
    arguments = ["growth", "--over", over, "--sizes", sizes, "--repeats", "1"]
    where = ["--directory", str(tmp_path), "--plot", str(tmp_path / "run.svg")]
    for name, path in files.items():
        where += [f"--{name}", str(path)]
    result = CliRunner().invoke(main, [*arguments, *where], catch_exceptions=False)
    assert result.exit_code == 0
    run = json.loads(files["json"].read_text())
    assert run["command"] == f"python -m benchmarks {' '.join(arguments)}"
    for case in run["cases"]:
        assert len(case["points"]) == 2
        assert all(named <= point.keys() for point in case["points"])
    assert run["command"] in files["markdown"].read_text()
    assert str(tmp_path) not in files["json"].read_text() + files["markdown"].read_text()
    assert (tmp_path / "run.svg").read_bytes().startswith(b"<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.md", "run.svg"]


SMALL = Size(layers=4, experts=4, hidden=64, inner=64)


@pytest.mark.parametrize("optimizer", ["tensors", "buffers"])
def test_what_simulated_ranks_commit_is_read_under_another_grid(optimizer: Optimizer) -> None:
    """The reader's own checks pass: the documents are those of a real save."""
    source, target = Grid(2, 2, 2, 2, optimizer), Grid(1, 1, 2, 8, optimizer)
    point = at_ranks(Job(SMALL, source), Job(SMALL, target), 1)
    assert point.size == 16
    assert point.values["its reads"] > 0
    assert point.values["its portions"] > 0
    assert point.values["root document, KiB"] > 1
    alone = at_ranks(Job(SMALL, source), Job(SMALL, target), 1, commits=False)
    for name in ("its portions", "its shared chunks", "segments of all ranks"):
        assert alone.values[name] == point.values[name] > 0


def test_all_sizes_of_ranks_have_a_grid() -> None:
    assert set(OVER["ranks"]) == set(GRIDS)
    for ranks, degrees in GRIDS.items():
        assert Grid(*degrees).ranks == ranks


@pytest.mark.parametrize("sizes", ["", "many", "0", "1,,2"])
def test_sizes_that_make_no_sense_are_refused(sizes: str) -> None:
    assert CliRunner().invoke(main, ["growth", "--over", "atoms", "--sizes", sizes]).exit_code == 2


def test_curves_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    points = [Point(size, {"save, CPU s": size / 10, "its memory, MiB": 3.0}) for size in (1, 10, 100)]
    curves = Curves("", {}, "atoms", {"atoms": points, "others": points})
    for name in ("a.svg", "b.svg"):
        draw_curves(curves, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
