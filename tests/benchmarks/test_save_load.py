"""The benchmark measures what it says: everybody brings the state back, and the numbers add up."""

from __future__ import annotations

import json
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.base import Contender
from benchmarks.contenders.raw import RawLimit
from benchmarks.measure import Reading, footprint, measured
from benchmarks.plots import draw
from benchmarks.results import Run, Series, Task
from benchmarks.save_load import compare
from benchmarks.workloads import WORKLOADS, gpt_shapes, workload
from ucpformat.storage.stores.store import Durability

MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings("ignore")  # those of peers


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
@pytest.mark.parametrize("durability", ["none", "fsync"])
def test_everybody_brings_the_state_back(
    tmp_path: Path, contender: Contender, durability: Durability
) -> None:
    state = workload("gpt", MIB)
    into = state.blank()
    assert state.differing(into) is not None
    contender.save(state, tmp_path, durability)
    contender.load(tmp_path, into)
    assert state.differing(into) is None
    assert footprint(tmp_path).nbytes >= state.nbytes


@pytest.mark.parametrize("name", ["raw", "ucp-packed", "ucp-plain"])
@pytest.mark.parametrize("durability", ["none", "fsync"])
def test_only_the_durable_save_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, durability: Durability
) -> None:
    synced = []
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        synced.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    (contender,) = [contender for contender in CONTENDERS if contender.name == name]
    contender.save(workload("gpt", MIB), tmp_path, durability)
    files = footprint(tmp_path).objects
    assert len(synced) == 0 if durability == "none" else len(synced) > files


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
@pytest.mark.parametrize("name", ["gpt-mixed", "moe", "single"])
def test_everybody_does_every_work(tmp_path: Path, contender: Contender, name: str) -> None:
    state = workload(name, MIB)
    into = state.blank()
    contender.save(state, tmp_path, "none")
    contender.load(tmp_path, into)
    assert state.differing(into) is None


@pytest.mark.parametrize("name", ["gpt", "gpt-mixed", "single"])
@pytest.mark.parametrize("mebibytes", [8, 64])
def test_works_have_the_size_asked_for(name: str, mebibytes: int) -> None:
    state = workload(name, mebibytes * MIB)
    assert state.nbytes == pytest.approx(mebibytes * MIB, rel=0.02)
    assert all(array.all() for array in state.flat.values())  # zeros would be left out


def test_small_tensors_are_as_many_as_the_name_says() -> None:
    assert len(WORKLOADS["small-10k"](0).flat) == 10_000


@pytest.mark.parametrize("mebibytes", [8, 64, 300, 1024, 4096])
def test_the_state_has_the_size_asked_for(mebibytes: int) -> None:
    shapes = gpt_shapes(mebibytes * MIB // 12)
    nbytes = 12 * sum(int(np.prod(shape)) for shape in shapes.values())
    assert nbytes == pytest.approx(mebibytes * MIB, rel=0.01)
    if mebibytes >= 64:
        assert sum(len(shape) == 1 for shape in shapes.values()) > len(shapes) / 2


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_everybody_loads_into_the_arrays_that_were_saved(tmp_path: Path, contender: Contender) -> None:
    run = compare(
        [contender],
        state_name="gpt-mixed",
        nbytes=MIB,
        repeats=1,
        directory=tmp_path,
        command="",
        report=print,
        in_place=True,
    )
    assert {task.what for task in run.series} == {"save", "load", "save durable"}


def test_orbax_takes_part_where_it_is_installed() -> None:
    names = [contender.name for contender in CONTENDERS]
    assert ("orbax" in names) == (find_spec("orbax") is not None)
    assert len(names) - ("orbax" in names) == 12


class Forgetful(RawLimit):
    """Loads nothing."""

    def load(self, directory: Path, into: object) -> None:
        pass


@pytest.mark.parametrize("in_place", [False, True])
def test_who_loads_something_else_is_refused(tmp_path: Path, in_place: bool) -> None:
    raw = RawLimit.bare()
    forgetful = Forgetful("forgetful", "", raw.look, raw.call_bytes)
    with pytest.raises(ValueError, match="forgetful brought back other values"):
        compare(
            [raw, forgetful],
            state_name="gpt",
            nbytes=MIB,
            repeats=1,
            directory=tmp_path,
            command="",
            report=print,
            in_place=in_place,
        )


def test_memory_is_measured_above_what_was_there() -> None:
    ballast = np.ones(64 * MIB, np.uint8)

    def work() -> None:
        np.ones(32 * MIB, np.uint8)

    reading = measured(work)
    assert 31 * MIB <= reading.peak_bytes < ballast.nbytes  # the kernel counts in batches
    assert reading.seconds > 0


@pytest.mark.parametrize("name", ["ucp-packed", "ucp-plain"])
def test_saving_and_loading_take_little_memory_beside_the_state(tmp_path: Path, name: str) -> None:
    """At most 64 MiB more than is there, whatever the state: here it has three times as much."""
    (contender,) = [contender for contender in CONTENDERS if contender.name == name]
    state = workload("gpt", 192 * MIB)
    into = state.blank()
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    contender.save(state, tmp_path / "first", "none")  # what is imported and pooled once does not count
    assert measured(partial(contender.save, state, tmp_path / "second", "none")).peak_bytes <= 64 * MIB
    assert measured(partial(contender.load, tmp_path / "second", into)).peak_bytes <= 64 * MIB


def test_ratios_are_of_the_same_round() -> None:
    def series(*seconds: float) -> Series:
        return Series([Reading(value, 0.0, 0) for value in seconds])

    tasks = {Task("a", "save"): series(1, 2, 1, 1), Task("b", "save"): series(1, 4, 3, 8)}
    run = Run("", {}, 10**9, 1, {"a": "", "b": ""}, tasks, {})
    assert run.ratio(Task("a", "save"), "b") == (2.5, 2, 3)
    assert run.rate(Task("b", "save")) == pytest.approx(2 / 7)


def test_the_command_writes_tables_and_every_reading(tmp_path: Path) -> None:
    data, table = tmp_path / "run.json", tmp_path / "run.md"
    arguments = ["save-load", "--size", "1MiB", "--repeats", "2", "--only", "raw,ucp-packed"]
    files = ["--no-steady", "--directory", str(tmp_path), "--json", str(data), "--markdown", str(table)]
    result = CliRunner().invoke(main, [*arguments, *files], catch_exceptions=False)
    assert result.exit_code == 0
    run = json.loads(data.read_text())
    assert (
        run["command"]
        == "python -m benchmarks save-load --state gpt --size 1MiB --repeats 2 --only raw,ucp-packed --no-steady"
    )
    assert [contender["name"] for contender in run["contenders"]] == ["raw", "ucp-packed"]
    for contender in run["contenders"]:
        assert {what: len(readings) for what, readings in contender["tasks"].items()} == {
            "save": 2,
            "load": 2,
            "save durable": 2,
        }
    assert run["command"] in table.read_text()
    assert "| ucp-packed, load |" in table.read_text()
    assert str(tmp_path) not in data.read_text() + table.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.md"]


@pytest.mark.parametrize("arguments", [["--size", "many"], ["--only", "nobody"], ["--repeats", "0"]])
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["save-load", *arguments]).exit_code == 2


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_run_is_drawn_the_same_each_time(tmp_path: Path, suffix: str) -> None:
    readings = {"raw": [1.0, 2.0, 3.0], "ucp-packed": [2.0, 2.0, 2.0], "torch-dcp": [4.0, 5.0, 9.0]}
    series = {
        Task(name, what): Series([Reading(seconds, seconds, 0) for seconds in found])
        for name, found in readings.items()
        for what in ("save", "load")
    }
    run = Run("", {}, MIB, 1, dict.fromkeys(readings, ""), series, {})
    draw(run, tmp_path / f"a{suffix}")
    draw(run, tmp_path / f"b{suffix}")
    first = (tmp_path / f"a{suffix}").read_bytes()
    assert first == (tmp_path / f"b{suffix}").read_bytes()
    assert first.startswith(b"<?xml" if suffix == ".svg" else b"\x89PNG")
