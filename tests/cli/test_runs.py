"""``ucp ls`` and ``ucp gc``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Ucp
from ucpformat import CheckpointManager, save
from ucpformat.cadence import SaveTimes, decide
from ucpformat.jsonio import JsonValue
from ucpformat.manager.pace import CADENCE
from ucpformat.text import human_bytes


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with CheckpointManager(path) as manager:
        for step, loss in ((5, 0.25), (10, 0.125), (100, float("nan"))):
            manager.save(step, {"w": np.ones(9)}, metrics={"loss": loss})
    (path / "step-7.ucp" / "packs").mkdir(parents=True)
    return path


def total(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def size(run: Path, step: int) -> list[str]:
    return human_bytes(total(run / f"step-{step}.ucp")).split()


def test_a_listing_has_steps_in_order_and_their_metrics(ucp: Ucp, run: Path) -> None:
    result = ucp("ls", run)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["step", "state", "frees", "shared", "with", "loss"],
        ["5", "committed", *size(run, 5), "0.25"],
        ["7", "no", "root", "document"],
        ["10", "committed", *size(run, 10), "0.125"],
        ["100", "committed", *size(run, 100)],
    ]
    (run / "step-5.ucp" / "ucp.json").write_text("{")
    listing = ucp("ls", run).stdout.splitlines()
    assert listing[1].split()[:3] == ["5", "damaged", "(UCP-E-JSON)"]
    found = json.loads(ucp("ls", run, "--format", "json").stdout)
    assert found["uncommitted"] == [7]
    broken, good = found["committed"][:2]
    assert (broken["step"], broken["metrics"], broken["problem"]["code"]) == (5, None, "UCP-E-JSON")
    sizes = {"shared_bytes": 0, "shares_with": [], "shares_elsewhere": False}
    assert good == {
        "step": 10,
        "metrics": {"loss": 0.125},
        "increment": False,
        "cadence": None,
        "log": None,
        "bytes": {"freed_bytes": total(run / "step-10.ucp"), **sizes},
        "problem": None,
    }


@pytest.mark.parametrize("command", ["ls", "gc"])
def test_what_is_no_run_directory_is_refused(ucp: Ucp, run: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").touch()
    for place, says in (
        (run / "none", "nothing lies there; check the path"),
        (tmp_path / "rum", f"nothing lies there; did you mean {run}?"),
        (f"memory://{tmp_path.name}/none", "nothing lies there; check the URL"),
        (run / "step-10.ucp", "this is a checkpoint, and no run directory; look into it with `ucp inspect"),
        (tmp_path / "dcp", "this looks like a directory of torch.distributed.checkpoint; `ucp convert"),
    ):
        refused = ucp(command, place)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.startswith(f"error UCP-E-NOT-FOUND at {place}: ")
        assert says in refused.stderr
    (tmp_path / "new").mkdir()
    assert ucp(command, tmp_path / "new").exit_code == 0, "a run that has saved nothing yet"


def test_collecting_removes_what_no_option_keeps(ucp: Ucp, run: Path) -> None:
    said = ucp("gc", run, "--keep-best", 1, "--metric", "loss", "--debris-age", 0, "--dry-run")
    frees = human_bytes(total(run / "step-5.ucp"))
    assert said.stdout == (
        f"would remove step-5.ucp: frees {frees}\nwould remove step-7.ucp: frees 0 B\nkept 2 checkpoints\n"
    )
    assert len(list(run.iterdir())) == 4
    done = ucp("gc", run, "--keep-every", 10, "--format", "json")
    report = json.loads(done.stdout)
    assert [*report.pop("bytes")] == ["step-5.ucp"]
    assert report == {
        "kept": [10, 100],
        "removed": ["step-5.ucp"],
        "uploads": {},
        "log": None,
        "problems": [],
    }
    assert {path.name for path in run.iterdir()} == {"step-7.ucp", "step-10.ucp", "step-100.ucp"}
    assert ucp("gc", run, "--debris-age", 0).stdout == "removed step-7.ucp: frees 0 B\nkept 2 checkpoints\n"


def test_what_keeps_others_from_going_is_said(ucp: Ucp, run: Path) -> None:
    next((run / "step-100.ucp" / "packs").iterdir()).unlink()
    result = ucp("gc", run, "--keep-last", 1)
    assert result.exit_code == 1
    assert result.stdout == "kept 3 checkpoints\n"
    assert result.stderr.startswith("error UCP-E-MISSING at step-100.ucp:")
    assert json.loads(ucp("gc", run, "--keep-last", 1, "--format", "json").stdout)["problems"]
    assert ucp("gc", run, "--keep-best", 1).exit_code == 1, "by no metric"


def test_a_metric_that_no_checkpoint_has_keeps_all_and_is_an_error(ucp: Ucp, run: Path) -> None:
    result = ucp("gc", run, "--keep-best", 1, "--metric", "lss")
    assert (result.exit_code, result.stdout) == (1, "kept 3 checkpoints\n")
    assert "no checkpoint has a finite metric 'lss' (they have 'loss'), so that all are kept" in result.stderr


@pytest.fixture
def increments(tmp_path: Path) -> Path:
    """Three checkpoints that share 40,000 bytes, the last of which has another name outside the run as well."""
    path = tmp_path / "increments"
    frozen = np.arange(1, 5001, dtype=np.float64)
    with CheckpointManager(path, incremental=True) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"frozen": frozen, "trained": np.full(10, step)})
    return path


def test_a_listing_says_how_often_the_run_saves(ucp: Ucp, tmp_path: Path) -> None:
    decision = decide(SaveTimes(step=0.5, stall=0.3, write=4.0), max_overhead=0.03).to_json()
    notes: list[JsonValue] = [None, decision, {"every": "now and then"}]
    for step, note in enumerate(notes, 1):
        save(tmp_path / f"step-{step}.ucp", {"w": np.zeros(3)}, step=step, annotations={CADENCE: note})
    said = ucp("ls", tmp_path).stdout
    assert said.splitlines()[-1].startswith("saved every 20 steps: a step takes 0.5 s")
    listed = json.loads(ucp("ls", tmp_path, "--format", "json").stdout)["committed"]
    assert [one["cadence"] for one in listed] == [None, decision, None]


def test_what_increments_share_is_counted_once(ucp: Ucp, increments: Path) -> None:
    found = json.loads(ucp("ls", increments, "--format", "json").stdout)["committed"]
    assert [one["increment"] for one in found] == [False, True, True]
    assert found[1]["bytes"]["shares_with"] == ["step-1.ucp", "step-3.ucp"]
    assert all(one["bytes"]["shared_bytes"] >= 40_000 > one["bytes"]["freed_bytes"] for one in found)
    lines = ucp("ls", increments).stdout.splitlines()
    assert lines[1].split()[-2:] == ["2,", "3"]
    assert lines[2].split()[1] == "increment"


def test_removal_frees_what_nobody_shares_any_more(ucp: Ucp, increments: Path) -> None:
    """What is said comes true: blocks of the disk are counted by their files."""

    def used() -> int:
        files = {file.stat().st_ino: file.stat().st_size for file in increments.rglob("*") if file.is_file()}
        return sum(files.values())

    before = used()
    planned = json.loads(ucp("gc", increments, "--keep-last", 1, "--dry-run", "--format", "json").stdout)
    assert used() == before
    said = ucp("gc", increments, "--keep-last", 1)
    assert "removed step-1.ucp: frees" in said.stdout
    assert " stay for step 2, 3" in said.stdout
    assert " stay for step 3" in said.stdout
    assert before - used() == sum(one["freed_bytes"] for one in planned["bytes"].values())


def test_files_may_have_names_outside_the_run(ucp: Ucp, increments: Path, tmp_path: Path) -> None:
    for pack in (increments / "step-3.ucp" / "packs").iterdir():
        (tmp_path / f"kept-{pack.name}").hardlink_to(pack)
    (last,) = json.loads(ucp("ls", increments, "--format", "json").stdout)["committed"][2:]
    assert last["bytes"]["shares_elsewhere"]
    assert "files outside the run" in ucp("ls", increments).stdout
    said = ucp("gc", increments, "--keep-last", 1, "--dry-run").stdout
    assert "stay for step 2, 3 and files outside the run" in said


def test_object_stores_have_no_sizes(ucp: Ucp, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/run"
    with CheckpointManager(url) as manager:
        manager.save(1, {"w": np.ones(2)})
        manager.save(2, {"w": np.ones(2)})
    assert json.loads(ucp("ls", url, "--format", "json").stdout)["committed"][0]["bytes"] is None
    assert ucp("gc", url, "--keep-last", 1).stdout == "removed step-1.ucp\nkept 1 checkpoints\n"


def test_a_run_is_validated_checkpoint_by_checkpoint(ucp: Ucp, increments: Path) -> None:
    good = ucp("validate", increments)
    assert (good.exit_code, good.stdout.splitlines()[-1]) == (
        0,
        f"{increments}: 3 of 3 checkpoints valid (level integrity)",
    )
    (increments / "step-7.ucp" / "packs").mkdir(parents=True)  # which was never committed
    shared = max((increments / "step-1.ucp" / "packs").iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(shared.read_bytes())
    data[4100] ^= 1
    shared.write_bytes(data)  # in all three of them
    said = ucp("validate", increments)
    assert said.exit_code == 1
    lines = said.stdout.splitlines()
    assert lines[-1] == f"{increments}: 0 of 3 checkpoints valid (level integrity)"
    assert f"the same file packs/{shared.name} is in step-2.ucp, step-3.ucp: lost for them too" in lines
    assert sum(line.startswith("lost: frozen value") for line in lines) == 3
    report = json.loads(ucp("validate", increments, "--format", "json").stdout)
    assert not report["valid"]
    first = report["checkpoints"][0]
    assert (first["step"], first["valid"], first["lost"]["tensors"][0]["atom"]) == (1, False, "frozen")
    assert first["files"] == {
        f"packs/{shared.name}": {"same_file_in": ["step-2.ucp", "step-3.ucp"], "another_file_in": []}
    }


def test_a_shared_pack_that_is_missing_or_replaced_is_found_in_the_others(ucp: Ucp, increments: Path) -> None:
    packs = increments / "step-2.ucp" / "packs"
    shared = max(packs.iterdir(), key=lambda file: file.stat().st_size)
    data = shared.read_bytes()
    for forged in (None, bytes(len(data))):
        shared.unlink()
        if forged is not None:
            shared.write_bytes(forged)
        said = ucp("validate", increments)
        lines = said.stdout.splitlines()
        assert lines[-1] == f"{increments}: 2 of 3 checkpoints valid (level integrity)"
        assert (
            f"another file packs/{shared.name} is in step-1.ucp, step-3.ucp: `ucp repair` may use it" in lines
        )
        shared.write_bytes(b"")
    shared.unlink()
    shared.write_bytes(bytes(len(data)))
    assert ucp("repair", increments / "step-2.ucp", "--from", increments / "step-1.ucp").exit_code == 0
    assert ucp("validate", increments).exit_code == 0


def test_a_run_in_an_object_store_is_validated(ucp: Ucp, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/run"
    with CheckpointManager(url) as manager:
        manager.save(1, {"w": np.ones(2)})
    assert ucp("validate", url).stdout.splitlines()[-1].endswith("1 of 1 checkpoints valid (level integrity)")
