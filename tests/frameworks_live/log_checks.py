"""What every object store has to be able to do for update logs, asked by HTTP of a server (SPEC-UPDATE-LOGS).

A room has a module that makes a fixture ``url``, below which nothing lies, and takes these tests by importing them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest
import torch
from click.testing import CliRunner

import ucpformat as ucp
from tests.replay.jobs import Job, resumed, trained
from ucpformat.cli import main as cli
from ucpformat.errors import UcpError
from ucpformat.storage.stores.remote.conditional_put import ConditionalPuts
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.validation import log_problems

__all__ = [
    "test_a_logged_run_ends_and_goes_on",
    "test_a_put_whose_answer_is_lost_is_recognised",
    "test_a_second_job_is_refused_and_a_zombie_fenced",
    "test_of_eight_creators_of_a_batch_one_creates",
    "test_what_the_commands_say_of_a_run",
]


def logged(run: str, begin: int, stop: int, **options: Any) -> tuple[Job, ucp.Recovery]:
    """Recover a new job, which goes on up to a step."""
    job, recovery = resumed(run)
    assert (recovery.step, recovery.exactness, recovery.faults) == (begin, "bitwise", ())
    with ucp.UpdateLog(
        run, job.model, job.optimizer, state=job.objects, after=recovery, batch=1, check_every=1, **options
    ) as log:
        job.train(log, begin, stop)
    return job, recovery


def test_a_logged_run_ends_and_goes_on(url: str) -> None:
    """UCP-W-036, UCP-W-038: with full checkpoints in the background, and steps that are removed behind them."""
    logged(url, 0, 9, full_every=4)
    job, recovery = logged(url, 9, 21, full_every=5)
    job.require_equal(trained(21))
    assert recovery.checkpoint_step == 8
    assert recovery.checked > 0
    again, recovery = logged(url, 21, 22, full_every=None)
    again.require_equal(trained(22))
    assert recovery.checkpoint_step == 19
    assert log_problems(f"{url}/updates.ucplog") == []
    assert {key.epoch for key in LogPlace(f"{url}/updates.ucplog").keys().batches} == {1, 2}


def test_a_second_job_is_refused_and_a_zombie_fenced(url: str) -> None:
    """UCP-W-039, UCP-W-040."""
    old = Job()
    torch.manual_seed(2)
    first = ucp.UpdateLog(url, old.model, old.optimizer, state=old.objects, batch=1, full_every=4)
    old.train(first, 0, 9)
    first.flush()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        ucp.UpdateLog(url, old.model, old.optimizer)
    new = Job()
    recovery = ucp.recover(url, new.model, new.optimizer, state=new.objects)
    assert recovery.step == 9
    with ucp.UpdateLog(url, new.model, new.optimizer, state=new.objects, after=recovery) as log:
        new.train(log, 9, 12)
    with pytest.raises(UcpError, match="UCP-E-FENCED"):
        ucp.UpdateLog(url, new.model, new.optimizer, after=recovery)
    with torch.random.fork_rng(), suppress(UcpError):  # it learns of that when the batch is written
        old.train(first, 9, 10)
    with pytest.raises(UcpError, match="UCP-E-FENCED"):
        first.close()
    logged(url, 12, 14)[0].require_equal(trained(14))


def test_of_eight_creators_of_a_batch_one_creates(url: str) -> None:
    """UCP-W-036: the server decides."""
    places = [LogPlace(f"{url}/updates.ucplog") for _ in range(8)]

    def create(number: int) -> str:
        try:
            places[number].create("batches/0/0/0.batch", [memoryview(b"%d" % number)])
        except UcpError as problem:
            return "UCP-E-EXISTS" if problem.code == "UCP-E-EXISTS" else str(problem)
        return "created"

    with ThreadPoolExecutor(8) as executor:
        made = list(executor.map(create, range(8)))
    assert (made.count("created"), made.count("UCP-E-EXISTS")) == (1, 7)
    assert places[0].store.read("batches/0/0/0.batch", 0, 1) == b"%d" % made.index("created")
    places[0].remove(["batches/0/0/0.batch", "batches/0/0/1.batch"])
    assert not places[0].has("batches/0/0/0.batch")


@contextmanager
def repeated() -> Iterator[list[str]]:
    """Make each put twice, as a client does that has got no answer to the first."""
    real = ConditionalPuts._put_once
    made: list[str] = []

    def put(self: ConditionalPuts, path: str, data: bytes) -> None:
        real(self, path, data)
        made.append(path)
        real(self, path, data)

    with patch.object(ConditionalPuts, "_put_once", put):
        yield made


def test_a_put_whose_answer_is_lost_is_recognised(url: str) -> None:
    """UCP-W-036: the second request is refused, since there is an object: the writer's own."""
    with repeated() as made:
        logged(url, 0, 7, full_every=None)
    assert any(path.endswith(".batch") for path in made)
    logged(url, 7, 8)[0].require_equal(trained(8))
    assert log_problems(f"{url}/updates.ucplog") == []


def told(*words: str) -> Any:
    """What a command says, as JSON."""
    done = CliRunner().invoke(cli, [*words, "--format", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_what_the_commands_say_of_a_run(url: str) -> None:
    logged(url, 0, 5, full_every=3)
    logged(url, 5, 7, full_every=None)
    log = f"{url}/updates.ucplog"
    for words in (["log", url], ["log", log]):
        report = told(*words)
        assert [one["first_step"] for one in report["epochs"]] == [0, 5]
        assert report["problems"] == []
    assert told("recover", url, "--dry-run")["recovery"]["step"] == 7
    assert told("inspect", log)["newest"]["epoch"] == 1
    listed = told("ls", url)
    assert [one["step"] for one in listed["committed"]] == [3, 5]
    assert len(listed["log"]["epochs"]) == 2
    for words in (["validate", url], ["validate", log]):
        assert CliRunner().invoke(cli, words).exit_code == 0
    dry = told("gc", url, "--keep-last", "1", "--dry-run")
    done = told("gc", url, "--keep-last", "1")
    assert dry["log"] == done["log"]
    assert done["removed"] == ["step-3.ucp"]
    assert done["log"]["kept_for"] == 5
    assert {key.epoch for key in LogPlace(log).keys().batches} == {1}
    logged(url, 7, 8)[0].require_equal(trained(8))
