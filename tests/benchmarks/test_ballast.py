"""The page cache is filled down to a floor, from a sparse file, and what is to be read is read again after it."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ballast as module
from benchmarks.__main__ import main
from benchmarks.ballast import Ballast, loaded, memory, prepare
from benchmarks.measure import measured
from benchmarks.results import Run
from benchmarks.tables import markdown

MIB = 1 << 20
STEP = module._CALLS * module._CALL_BYTES


class Kernel:
    """Free memory that shrinks by so much a look, and what was read in the meantime."""

    def __init__(self, free: int, taken: int) -> None:
        self.now = free
        self.taken = taken
        self.reads: list[tuple[int, int]] = []

    def free(self) -> int:
        now = self.now
        self.now = max(0, self.now - self.taken)
        return now

    def preadv(self, nbytes: int) -> Callable[[int, list[bytearray], int], int]:
        def preadv(descriptor: int, buffers: list[bytearray], start: int) -> int:
            got = min(len(buffers[0]), nbytes - start)
            self.reads.append((start, got))
            return got

        return preadv


def sparse(path: Path, nbytes: int) -> Path:
    path.touch()
    os.truncate(path, nbytes)
    return path


@given(
    nbytes=st.integers(1, 8 * STEP),
    free=st.integers(0, 1 << 30),
    taken=st.integers(0, 1 << 28),
    floor=st.integers(0, 1 << 28),
    calls=st.integers(1, 3),
    at_most=st.one_of(st.none(), st.integers(0, 8 * STEP)),
)
def test_it_is_read_on_and_around_until_the_floor(
    nbytes: int, free: int, taken: int, floor: int, calls: int, at_most: int | None
) -> None:
    kernel = Kernel(free, taken)
    ballast = Ballast(Path(os.devnull), nbytes, floor, kernel.free)
    most = nbytes if at_most is None else min(nbytes, at_most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", kernel.preadv(nbytes))
        for _ in range(calls):
            kernel.now = free
            kernel.reads, before = [], kernel.reads
            filled = ballast.fill(at_most)
            assert filled.free_before == free
            assert filled.nbytes == sum(got for _, got in kernel.reads)
            assert (filled.nbytes > 0) == (free > floor and most > 0)
            # Down to the floor, or once around; in whole steps between two looks.
            assert filled.free_after <= floor or filled.nbytes >= most
            assert filled.nbytes < most + STEP
            for (start, got), (following, _) in itertools.pairwise([*before[-1:], *kernel.reads]):
                assert following == (start + got if start + got < nbytes else 0)


def test_holes_are_read_and_take_no_disk(tmp_path: Path) -> None:
    kernel = Kernel(3 * STEP, STEP)
    ballast = Ballast(sparse(tmp_path / "b", 4 * STEP), 4 * STEP, STEP, kernel.free)
    assert ballast.fill() == (2 * STEP, 3 * STEP, STEP)
    ballast.drop(STEP)
    kernel.now, kernel.taken = 3 * STEP, 3 * STEP
    assert ballast.fill().nbytes == STEP
    assert ballast._at == 2 * STEP  # what was dropped was read again
    assert ballast.path.stat().st_blocks * 512 < STEP


def asked() -> int:
    """Bytes that this process has asked of the kernel so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar:")).split()[1])


@pytest.mark.parametrize(("free", "again"), [(4 * MIB, True), (2 * MIB, False), (0, False)])
def test_what_is_to_be_read_is_read_after_something_was_filled(
    tmp_path: Path, free: int, again: bool
) -> None:
    place = tmp_path / "saved" / "deep"
    place.mkdir(parents=True)
    for name, nbytes in (("a", 5 * MIB), ("b", 3 * MIB)):
        (place / name).write_bytes(bytes(nbytes))
    ballast = Ballast(sparse(tmp_path / "b", STEP), STEP, MIB, Kernel(free, 0).free)
    before = asked()
    prepare(ballast, tmp_path / "saved")
    nbytes = asked() - before
    assert nbytes >= STEP + 8 * MIB if again else nbytes < MIB


def test_room_is_made_behind_what_was_read_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After memory was claimed: what is dropped before goes to whoever claims."""
    events: list[object] = []
    ballast = Ballast(sparse(tmp_path / "b", 4 * STEP), 4 * STEP, STEP, Kernel(3 * STEP, STEP).free)
    monkeypatch.setattr(
        os, "posix_fadvise", lambda _, start, nbytes, advice: events.append((start, nbytes, advice))
    )
    monkeypatch.setattr(Ballast, "claim", lambda *_: events.append("claim"))
    prepare(ballast, room=STEP)
    assert events == ["claim", (0, STEP, os.POSIX_FADV_DONTNEED)]


def test_without_a_ballast_nothing_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(8 * MIB))
    before = asked()
    prepare(None, tmp_path)
    assert asked() - before < MIB


def test_what_stays_free_is_used_once() -> None:
    ballast = Ballast(Path(os.devnull), 1, 64 * MIB, lambda: 0)
    assert measured(lambda: ballast.claim(0)).peak_bytes >= 60 * MIB
    assert measured(lambda: ballast.claim(128 * MIB)).peak_bytes >= 120 * MIB
    resident = Path("/proc/self/statm").read_text().split()[1]
    ballast.claim(0)
    assert abs(int(Path("/proc/self/statm").read_text().split()[1]) - int(resident)) < 4096  # 16 MiB


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A small one, whose memory is what the test says."""
    facts = {"MemTotal": 2 * STEP, "MemFree": 0}
    monkeypatch.setattr(module, "memory", facts.__getitem__)
    monkeypatch.setattr(module, "_LEAST_FREE", MIB)
    return facts


def test_the_file_is_as_large_as_the_memory_and_goes(tmp_path: Path, machine: dict[str, int]) -> None:
    with loaded(tmp_path, steady=True) as ballast:
        assert ballast is not None
        assert ballast.path.stat().st_size == ballast.nbytes == machine["MemTotal"]
        assert ballast.path.is_relative_to(tmp_path)
        assert ballast.floor == MIB
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_kept_where_it_is_named(tmp_path: Path, machine: dict[str, int]) -> None:
    for _ in range(2):
        with loaded(tmp_path, steady=True, kept=tmp_path / "kept") as ballast:
            assert ballast is not None
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").stat().st_size == machine["MemTotal"]


def test_where_holes_fill_nothing_there_is_none(
    tmp_path: Path, machine: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    machine["MemFree"] = machine["MemTotal"]
    with loaded(tmp_path, steady=True) as ballast:
        assert ballast is None
    assert "cannot be filled" in capsys.readouterr().err


def test_it_goes_to_other_processes(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "b", 3, 2)
    assert pickle.loads(pickle.dumps(ballast)) == ballast


def test_it_is_switched_off(tmp_path: Path, machine: dict[str, int]) -> None:
    with loaded(tmp_path, steady=False) as ballast:
        assert ballast is None


def test_the_machine_says_what_is_free() -> None:
    assert 0 < memory("MemFree") < memory("MemTotal")
    with pytest.raises(OSError, match="no MemSquared"):
        memory("MemSquared")


@pytest.mark.parametrize(("words", "steady"), [([], True), (["--no-steady"], False)])
def test_a_run_says_whether_it_was_on(
    tmp_path: Path, machine: dict[str, int], words: list[str], steady: bool
) -> None:
    data, table = tmp_path / "run.json", tmp_path / "run.md"
    arguments = ["save-load", "--size", "1MiB", "--repeats", "1", "--only", "raw", *words]
    files = ["--directory", str(tmp_path), "--json", str(data), "--markdown", str(table)]
    result = CliRunner().invoke(main, [*arguments, *files], catch_exceptions=False)
    assert result.exit_code == 0
    run = json.loads(data.read_text())
    assert run["facts"]["steady"] is steady
    assert run["command"].endswith(" --no-steady") is not steady
    assert ("page cache kept full" in table.read_text()) is steady
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.md"]


def test_runs_from_before_are_read_as_they_were() -> None:
    facts: dict[str, str | int | float | dict[str, str]] = {
        "cores": 2,
        "processor": "p",
        "memory_bytes": 1 << 30,
        "kernel": "k",
        "file_system": "ext4",
        "load_at_start": 1.0,
        "python": "3",
        "packages": {},
    }
    assert "load 1.0 at the start; Python" in markdown(Run("c", facts, MIB, 1, {}, {}, {}))


def test_the_effect_is_shown(tmp_path: Path, machine: dict[str, int]) -> None:
    data = tmp_path / "run.json"
    arguments = ["free-pages", "--size", "1MiB", "--repeats", "2", "--seconds", "0"]
    result = CliRunner().invoke(
        main, [*arguments, "--directory", str(tmp_path), "--json", str(data)], catch_exceptions=False
    )
    assert result.exit_code == 0
    found = json.loads(data.read_text())
    assert found["command"] == f"python -m benchmarks {' '.join(arguments)}"
    assert {name: len(readings) for name, readings in found["readings"].items()} == {
        "just freed": 2,
        "free for a while": 2,
        "full cache": 2,
    }
    assert all(name in result.stdout for name in found["readings"])
    machine["MemFree"] = machine["MemTotal"]
    assert CliRunner().invoke(main, [*arguments, "--directory", str(tmp_path)]).exit_code == 1
