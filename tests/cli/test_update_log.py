"""`ucp log`: what a log has, what is wrong with it, and where a recovery would end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import ucpformat as ucp
from tests.update_log.logs import ID, LogMaker
from ucpformat.cli import main
from ucpformat.model.root import LogPosition
from ucpformat.text import human_bytes


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["log", *arguments])


def told(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--format", "json").output)


def a_run(path: Path) -> LogMaker:
    """A run with a checkpoint of step 2, and a log that goes on to step 5."""
    maker = LogMaker(path / "updates.ucplog")
    maker.epoch()
    maker.steps(0, 0, 4)
    maker.epoch(1, 3, after=0)
    maker.steps(1, 3, 5)
    with ucp.CheckpointManager(path) as manager:
        manager.save(2, {"w": np.ones((4, 3), np.float32)}, log=LogPosition(ID, 0))
    return maker


def test_it_says_what_there_is_and_where_a_recovery_ends(tmp_path: Path) -> None:
    a_run(tmp_path)
    result = run(str(tmp_path))
    assert result.exit_code == 0
    assert (
        result.output.splitlines()[-1]
        == "a recovery loads step-2.ucp, makes 3 steps again, and ends at step 5"
    )
    found = told(str(tmp_path))
    assert [(one["epoch"], one["first_step"], one["stop_step"]) for one in found["epochs"]] == [
        (0, 0, 3),
        (1, 3, 5),
    ]
    assert found["recovery"] == dry(str(tmp_path))["recovery"]
    alone = told(str(tmp_path / "updates.ucplog"))
    assert (alone["id"], alone["recovery"]) == (ID, None)


def test_a_torn_end_is_a_warning_and_a_gap_an_error(tmp_path: Path) -> None:
    maker = a_run(tmp_path)
    last = maker.path / "batches/1/1/4.batch"
    last.write_bytes(last.read_bytes()[:-1])
    result = run(str(tmp_path))
    assert result.exit_code == 0
    assert "warning UCP-W-UNREFERENCED at batches/1/1/4.batch" in result.output
    assert "ends at step 4" in result.output
    (maker.path / "batches/1/1/3.batch").unlink()
    result = run(str(tmp_path))
    assert result.exit_code == 1
    assert "error UCP-E-LOG" in result.output


def test_an_epoch_that_was_given_up_says_so(tmp_path: Path) -> None:
    maker = a_run(tmp_path)
    maker.epoch(2, 2, after=0)
    result = run(str(maker.path))
    assert [line.split()[-2:] for line in result.output.splitlines() if "ucp.sgd" in line][1] == [
        "given",
        "up",
    ]


def dry(*arguments: str) -> Any:
    result = CliRunner().invoke(main, ["recover", *arguments, "--dry-run", "--format", "json"])
    return json.loads(result.stdout)


class TestDryRun:
    """`ucp recover --dry-run`."""

    def test_it_says_what_a_recovery_does_and_reads(self, tmp_path: Path) -> None:
        maker = a_run(tmp_path)
        with ucp.CheckpointManager(tmp_path) as manager:
            manager.save(0, {"w": np.ones((4, 3), np.float32)}, log=LogPosition(ID, 0))
            manager.save(9, {"w": np.ones((4, 3), np.float32)})
        result = CliRunner().invoke(main, ["recover", str(tmp_path), "--dry-run"])
        assert result.exit_code == 0
        lines = result.output.splitlines()
        assert lines[0] == "a recovery loads step-2.ucp, makes 3 steps again, and ends at step 5"
        assert lines[1].startswith("  epoch 0: steps 2 to 3 by ucp.sgd, ")
        assert lines[4] == "if that is damaged: loads step-0.ucp, makes 5 steps again, and ends at step 5"
        assert "step-9.ucp: passed over: the checkpoint is of no log" in lines[5]
        found = dry(str(tmp_path))
        (fault,) = found["faults"]
        assert (fault["code"], fault["at"]) == ("UCP-E-LOG", str(tmp_path / "step-9.ucp"))
        recovery = found["recovery"]
        assert (recovery["checkpoint_step"], recovery["step"], recovery["exactness"]) == (2, 5, "bitwise")
        needed = [
            maker.path / f"batches/{epoch}/{rank}/{step}.batch"
            for epoch, step in ((0, 2), (1, 3), (1, 4))
            for rank in (0, 1)
        ]
        assert recovery["bytes"] == {"checkpoint": 48, "log": sum(one.stat().st_size for one in needed)}
        assert [one["checkpoint_step"] for one in recovery["otherwise"]] == [0]

    def test_it_is_as_exact_as_the_worst_epoch(self, tmp_path: Path) -> None:
        maker = a_run(tmp_path)
        maker.epoch(2, 4, after=1, exactness="tolerance", profile={"torch": "2.13.0"})
        maker.steps(2, 4, 6)
        assert dry(str(tmp_path))["recovery"]["exactness"] == "tolerance"

    def test_what_is_refused_and_what_may_be_lost(self, tmp_path: Path) -> None:
        """UCP-R-040: a newer checkpoint behind the damage serves, since nothing durable is lost by that."""
        maker = a_run(tmp_path)
        (maker.path / "batches/1/0/3.batch").write_bytes(b"?")
        result = CliRunner().invoke(main, ["recover", str(tmp_path), "--dry-run"])
        assert (result.exit_code, "allow_loss=True) ends at step 3" in result.stderr) == (1, True)
        assert dry(str(tmp_path))["problems"][0]["code"] == "UCP-E-LOG"
        assert dry(str(tmp_path), "--allow-loss")["recovery"]["step"] == 3
        with ucp.CheckpointManager(tmp_path) as manager:
            manager.save(4, {"w": np.ones((4, 3), np.float32)}, log=LogPosition(ID, 1))
        found = dry(str(tmp_path))
        assert (found["recovery"]["step"], found["recovery"]["otherwise"]) == (5, [])
        assert "leads from it to step 3 only" in found["faults"][0]["message"]
        (older,) = dry(str(tmp_path), "--allow-loss")["recovery"]["otherwise"]
        assert (older["checkpoint_step"], older["step"]) == (2, 3)

    def test_there_is_nothing_to_begin_with(self, tmp_path: Path) -> None:
        maker = LogMaker(tmp_path / "updates.ucplog")
        maker.epoch()
        assert dry(str(tmp_path))["recovery"] is None
        maker.steps(0, 0, 1)
        assert "it was removed" in dry(str(tmp_path))["problems"][0]["message"]
        result = CliRunner().invoke(main, ["recover", str(tmp_path / "none"), "--dry-run"])
        assert (result.exit_code, "UCP-E-NOT-FOUND" in result.stderr) == (1, True)

    def test_without_it_the_answer_is_what_to_call(self, tmp_path: Path) -> None:
        a_run(tmp_path)
        result = CliRunner().invoke(main, ["recover", str(tmp_path)])
        assert (
            result.exit_code,
            "call ucp.recover(run, model, optimizer)" in " ".join(result.output.split()),
        ) == (2, True)


def test_there_is_no_log(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert "UCP-E-NOT-FOUND" in result.output


def test_validate_knows_logs(tmp_path: Path) -> None:
    maker = a_run(tmp_path)
    for place in (tmp_path, maker.path):
        result = CliRunner().invoke(main, ["validate", str(place)])
        assert result.exit_code == 0
        assert "updates.ucplog: valid" in result.output
    damaged = maker.path / "batches/1/0/3.batch"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    for place in (tmp_path, maker.path):
        result = CliRunner().invoke(main, ["validate", str(place), "--format", "json"])
        assert result.exit_code == 1
        found = json.loads(result.output)
        assert "UCP-E-CHECKSUM" in {one["code"] for one in found.get("log", found)["problems"]}


class TestOtherCommands:
    """`ls`, `gc`, `inspect` and `validate` of runs with logs."""

    def told(self, *arguments: str) -> Any:
        return json.loads(CliRunner().invoke(main, [*arguments, "--format", "json"]).stdout)

    def test_ls(self, tmp_path: Path) -> None:
        maker = a_run(tmp_path)
        with ucp.CheckpointManager(tmp_path) as manager:
            for step, position in ((4, LogPosition(ID, 0)), (6, None), (7, LogPosition("0" * 32, 0))):
                manager.save(step, {"w": np.ones(2)}, log=position)
        lines = CliRunner().invoke(main, ["ls", str(tmp_path)]).output.splitlines()
        assert lines[0].split()[-1] == "log"
        assert [line.split("  ")[-1] for line in lines[1:5]] == [
            "epoch 0",
            "given up",
            "no log",
            "another log",
        ]
        sizes = [one.stat().st_size for one in (maker.path / "batches").rglob("*.batch")]
        size = human_bytes(sum(sizes))
        assert lines[5] == f"update log: steps 0 to 5 in 2 epochs; {size} in 12 batches; `ucp log` says more"
        found = self.told("ls", str(tmp_path))
        assert found["committed"][0]["log"] == "epoch 0"
        assert found["log"]["epochs"] == told(str(tmp_path))["epochs"]
        (maker.path / "epochs/0.json").unlink()
        lines = CliRunner().invoke(main, ["ls", str(tmp_path)]).output.splitlines()
        assert lines[5].startswith("update log: UCP-E-MISSING at epochs/0.json")
        assert {line.split("  ")[-1] for line in lines[1:5]} == {"unknown", "no log"}

    @pytest.mark.parametrize("command", ["ls", "gc", "log", "recover", "validate"])
    def test_a_log_without_its_document(self, tmp_path: Path, command: str) -> None:
        """All say the same of what is left, and touch nothing."""
        maker = a_run(tmp_path)
        (maker.path / "log.json").unlink()
        left = places(maker)
        arguments = [command, str(tmp_path), *(["--dry-run"] if command == "recover" else [])]
        result = CliRunner().invoke(main, arguments)
        assert "UCP-E-MISSING" in result.output
        assert "the document of the log is gone, and epochs or batches are there: restore it" in result.output
        assert result.exit_code == (0 if command == "ls" else 1)
        assert places(maker) == left

    def test_a_log_without_its_document_for_programs(self, tmp_path: Path) -> None:
        maker = a_run(tmp_path)
        (maker.path / "log.json").unlink()
        found = self.told("ls", str(tmp_path))
        assert found["committed"][0]["log"] == "unknown"
        problem = found["log"]["problem"]
        assert (found["log"]["id"], problem["code"], problem["at"]) == (None, "UCP-E-MISSING", "log.json")
        for place in (tmp_path, maker.path):
            found = self.told("validate", str(place))
            assert [one["code"] for one in found.get("log", found)["problems"]] == ["UCP-E-MISSING"]
        (problem,) = self.told("gc", str(tmp_path))["problems"]
        assert problem["code"] == "UCP-E-MISSING"

    def test_ls_of_a_log_without_checkpoints(self, tmp_path: Path) -> None:
        LogMaker(tmp_path / "updates.ucplog")
        result = CliRunner().invoke(main, ["ls", str(tmp_path)])
        assert (result.exit_code, "no steps in 0 epochs" in result.output) == (0, True)

    def test_gc_removes_what_no_recovery_needs(self, tmp_path: Path) -> None:
        maker = a_run(tmp_path)  # epoch 0 has steps 0 to 4, epoch 1 has 3 to 5
        maker.epoch(2, 4, after=1)
        maker.steps(2, 4, 6)
        maker.epoch(3, 4, after=1)  # so that 2 was given up
        maker.steps(3, 4, 6)
        needed = {"0": ["2"], "1": ["3"], "3": ["4", "5"]}
        removed = {f"{epoch}/{rank}/{step}" for epoch, rank, step in places(maker)}
        removed -= {f"{e}/{r}/{s}" for e, steps in needed.items() for s in steps for r in "01"}
        before = dry(str(tmp_path))["recovery"]
        result = CliRunner().invoke(main, ["gc", str(tmp_path), "--dry-run"])
        assert f"would remove {len(removed)} batches of the update log: frees " in result.output
        assert "8 batches" in result.output
        assert "for step 2 and later" in result.output
        assert len(places(maker)) == len(removed) + 8
        found = self.told("gc", str(tmp_path))["log"]
        assert (found["removed"], found["kept"], found["kept_for"]) == (len(removed), 8, 2)
        assert {step for epoch, _, step in places(maker) if epoch == "3"} == {"4", "5"}
        assert dry(str(tmp_path))["recovery"] == before
        staged = maker.path / "batches/3/0/.0123456789abcdef0123456789abcdef"
        staged.touch()
        assert self.told("gc", str(tmp_path))["log"]["debris"] == 0
        result = CliRunner().invoke(main, ["gc", str(tmp_path), "--debris-age", "0"])
        assert "removed 1 unfinished file of the update log" in result.output
        assert not staged.exists()
        assert run(str(tmp_path)).exit_code == 0

    def test_gc_keeps_what_it_cannot_judge(self, tmp_path: Path) -> None:
        """Without a checkpoint that the log goes on from, and of an epoch of which nobody knows what it was."""
        maker = a_run(tmp_path)
        with ucp.CheckpointManager(tmp_path) as manager:
            manager.save(9, {"w": np.ones(2)})
        for step in manager.steps()[:-1]:
            shutil.rmtree(tmp_path / f"step-{step}.ucp")
        result = CliRunner().invoke(main, ["gc", str(tmp_path)])
        assert "stay though no checkpoint goes on with them" in result.output
        assert len(places(maker)) == 10  # those of epoch 0 behind step 3 are gone
        (maker.path / "epochs/1.json").unlink()
        CliRunner().invoke(main, ["gc", str(tmp_path)])
        assert len(places(maker)) == 10
        (maker.path / "epochs/0.json").write_text("{")
        result = CliRunner().invoke(main, ["gc", str(tmp_path)])
        assert (result.exit_code, "error UCP-E-JSON at updates.ucplog" in result.stderr) == (1, True)

    def test_inspect(self, tmp_path: Path) -> None:
        maker = a_run(tmp_path)
        result = CliRunner().invoke(main, ["inspect", str(tmp_path / "step-2.ucp")])
        assert f"epoch 0 of the update log {ID} goes on from it" in result.output
        assert self.told("inspect", str(tmp_path / "step-2.ucp"))["log"] == {"id": ID, "epoch": 0}
        result = CliRunner().invoke(main, ["inspect", str(maker.path)])
        assert result.exit_code == 0
        assert [line.split() for line in result.output.splitlines()[-2:]] == [
            ["w", "gradient", "0", "float32", "4x3", "2"],
            ["mean", "value", "float32", "2", "1"],
        ]
        assert self.told("inspect", str(maker.path))["newest"]["epoch"] == 1
        result = CliRunner().invoke(main, ["inspect", str(maker.path), "--stats"])
        assert (result.exit_code, "is about checkpoints" in result.output) == (2, True)

    def test_validate_says_that_a_recovery_is_refused(self, tmp_path: Path) -> None:
        """Where the first batch of the log is gone nobody can tell, without the checkpoint that needs it."""
        maker = a_run(tmp_path)
        for rank in (0, 1):
            for step in (0, 1, 2):
                (maker.path / f"batches/0/{rank}/{step}.batch").unlink()
        assert self.told("validate", str(maker.path))["valid"] is True
        found = self.told("validate", str(tmp_path))
        assert found["log"]["valid"] is False
        assert "no checkpoint can be gone on from" in found["log"]["problems"][0]["message"]


def places(maker: LogMaker) -> list[tuple[str, str, str]]:
    """The epoch, rank and first step of each batch that is there."""
    found = (maker.path / "batches").rglob("*.batch")
    return [(one.parts[-3], one.parts[-2], one.stem) for one in found]
