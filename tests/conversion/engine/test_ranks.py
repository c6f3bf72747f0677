"""Ranks of one job convert together: real gloo processes, of which one fails or is killed, and torchrun itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ucpformat
from tests.conversion.engine.jobs import assert_same, make
from tests.conversion.engine.test_exporting import content
from tests.conversion.formats.deepspeed.made import make_checkpoint
from tests.distributed.thread_group import run_threads
from tests.processes import launch
from ucpformat.cli import main
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine import ranks
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.ranks import RankExecutor, together
from ucpformat.distributed.group import OneProcess
from ucpformat.errors import UcpError, error

ROOT = Path(__file__).resolve().parents[3]
WORLD = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source.ucp"
    make(path)
    return path


def heard(out: Path) -> list[Any]:
    """What each rank was told, in order of rank."""
    files = sorted(out.with_name(f"{out.name}-ranks").glob("heard-*"))
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.distributed
def test_ranks_write_one_checkpoint_and_fail_as_one(source: Path, tmp_path: Path) -> None:
    state = make_checkpoint(tmp_path / "state.ucp")
    ucp, foreign = {"source": str(source), "format": "ucp"}, {"source": str(state), "format": "ds-universal"}
    tasks = [
        {**ucp, "out": str(tmp_path / "whole")},
        {**foreign, "out": str(tmp_path / "universal")},
        {**ucp, "out": str(tmp_path / "refused"), "victim": 2, "fate": "refused"},
        {**ucp, "out": str(tmp_path / "broken"), "victim": 1, "fate": "broken", "resume": True},
        {**ucp, "out": str(tmp_path / "broken"), "resume": True},
        {**foreign, "out": str(tmp_path / "first"), "victim": 0, "fate": "broken"},
    ]
    launch("tests.conversion.engine.ranks_worker", [json.dumps(tasks)], WORLD)
    for name in ("whole", "broken"):
        assert_same(source, tmp_path / name)
    reports = heard(tmp_path / "whole")
    assert len({found["bytes"] for found in reports}) == 1
    # The first rank is told of progress.
    assert [found["told"] for found in reports] == [reports[0]["bytes"], 0, 0]
    convert_checkpoint(state, tmp_path / "alone", source_format="ucp", destination_format="ds-universal")
    assert content(tmp_path / "universal") == content(tmp_path / "alone")
    assert len(heard(tmp_path / "universal")) == WORLD
    damaged = {"code": "UCP-E-CHECKSUM", "message": "damaged (on rank 2)", "at": "a place"}
    assert heard(tmp_path / "refused") == [damaged] * WORLD
    assert not (tmp_path / "refused").exists()
    codes = [found["code"] for found in heard(tmp_path / "first")]
    assert codes == ["UCP-E-STORE"] * WORLD
    assert not (tmp_path / "first").exists()


@pytest.mark.distributed
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_is_killed_takes_the_others_with_it(source: Path, tmp_path: Path, victim: int) -> None:
    out = tmp_path / "c"
    task = {
        "source": str(source),
        "format": "ucp",
        "out": str(out),
        "victim": victim,
        "fate": "killed",
        "resume": True,
    }
    launch("tests.conversion.engine.ranks_worker", [json.dumps([task])], WORLD)
    found = heard(out)
    assert [one["code"] for one in found] == ["UCP-E-RANK"] * (WORLD - 1)
    assert all(f"rank {victim} is gone" in one["message"] for one in found)
    with pytest.raises(UcpError, match="UCP-E-NOT-FOUND"):
        ucpformat.open(out)
    convert_checkpoint(
        source,
        out,
        source_format="ucp",
        destination_format="ucp",
        engine=EngineOptions(durability="none", batch_bytes=8192, resume=True),
    )
    assert_same(source, out)


@pytest.mark.distributed
def test_torchrun_itself(source: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "ucpformat", "convert", str(source), str(tmp_path / "c"), "--to", "ucp"),
            *("--format", "json"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tensors"] == 63  # one rank says it
    assert_same(source, tmp_path / "c")


def in_threads(call: Any, size: int = 3) -> list[Any]:
    """What each rank of a group of threads gets or is refused."""
    return list(run_threads(size, lambda group: together(group, call)))


def test_everybody_gets_what_the_call_returns() -> None:
    def call(executor: RankExecutor | None) -> list[int]:
        assert executor is not None
        assert executor.workers == 3
        return list(executor.map(abs, range(-20, 0)))

    assert in_threads(call) == [list(range(20, 0, -1))] * 3


def test_everybody_is_refused_what_the_call_refuses() -> None:
    def call(executor: RankExecutor | None) -> int:
        raise error("UCP-E-SOURCE", "no", at="here")

    assert [(one.code, one.at) for one in in_threads(call)] == [("UCP-E-SOURCE", "here")] * 3


def test_alone_there_is_no_executor() -> None:
    assert together(OneProcess(), lambda executor: executor) is None


ALL_SAID = threading.Event()


def until_all_said(_: int) -> bool:
    return ALL_SAID.wait(200)


def test_signs_of_life_keep_groups_from_giving_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a call takes long, its rank says that it lives, and the first one says so to a rank without a call."""
    monkeypatch.setattr(ranks, "_PULSE", 0.02)
    said: set[str] = set()
    ALL_SAID.clear()
    send = ranks._Line.send

    def noted(line: ranks._Line, kind: bytes, content: object) -> None:
        if kind == ranks._ALIVE:
            said.add("idle" if line.peer else "working")
            if len(said) == 2:
                ALL_SAID.set()
        send(line, kind, content)

    monkeypatch.setattr(ranks._Line, "send", noted)

    def call(executor: RankExecutor | None) -> list[bool]:
        assert executor is not None
        return list(executor.map(until_all_said, range(2)))

    # Whichever ranks take the two calls, one that is not the first has one, and another one has none.
    assert in_threads(call, 4) == [[True] * 2] * 4


def test_where_there_is_no_job(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    arguments = ["convert", str(source), str(tmp_path / "c"), "--to", "ucp"]
    refused = CliRunner().invoke(main, [*arguments, "--pool", "torchrun"])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error UCP-E-RANK")
    assert not (tmp_path / "c").exists()
    # One rank of torchrun's is none but itself.
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert CliRunner().invoke(main, arguments).exit_code == 0
