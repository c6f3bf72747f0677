"""What may be wrong with a log and the job that recovers from it, line by line: a registered error, never a silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import ucpformat as ucp
from tests.replay.jobs import Job
from ucpformat import jsonio
from ucpformat.cli import main
from ucpformat.model.references import sha256_digest
from ucpformat.storage.checksum import crc32c
from ucpformat.update_log.batch import PREFIX_BYTES, BatchHeader, Entry, framed, parse_header, read_prefix

STEPS = 8
LOG = "updates.ucplog"
Damage = Callable[[Path], object]


def logged(run: Path, steps: int = STEPS, **options: Any) -> None:
    """Log some steps, each in a batch of its own, with sparse gradients."""
    job = Job()
    torch.manual_seed(2)
    given = {"batch": 1, "full_every": None, "compressor": ucp.TopK(0.3), **options}
    with ucp.UpdateLog(run, job.model, job.optimizer, state=job.objects, **given) as log:
        job.train(log, 0, steps)


def batch_path(run: Path, step: int = STEPS - 1, epoch: int = 0) -> Path:
    return run / LOG / f"batches/{epoch}/0/{step}.batch"


def unsealed(path: Path) -> tuple[BatchHeader, bytearray]:
    data = path.read_bytes()
    prefix = read_prefix(data[:PREFIX_BYTES], at="")
    assert prefix is not None
    stop = PREFIX_BYTES + prefix.header_bytes
    return parse_header(data[PREFIX_BYTES:stop], prefix, at=""), bytearray(data[stop:])


def seal(path: Path, header: BatchHeader, payload: bytes) -> None:
    """Write a batch of one step whose checksums are right."""
    (record,) = header.steps
    header = replace(header, steps=(replace(record, checksum=crc32c(payload), length=len(payload)),))
    buffers, _ = framed(header, [memoryview(payload)])
    path.write_bytes(b"".join(buffers))


def with_places(first: int, second: int) -> Damage:
    """Make the first two places of the first sparse entry others; a place lies in 2 bytes behind the counts."""

    def change(run: Path) -> None:
        header, payload = unsealed(batch_path(run))
        assert header.steps[0].entries[0].form == "sparse"
        payload[4:8] = np.array([first, second], "<u2").tobytes()
        seal(batch_path(run), header, bytes(payload))

    return change


def with_unknown_piece(run: Path) -> None:
    header, payload = unsealed(batch_path(run))
    entries = (*header.steps[0].entries, Entry(99, "dense"))
    seal(batch_path(run), replace(header, steps=(replace(header.steps[0], entries=entries),)), bytes(payload))


def overlapping(run: Path) -> None:
    """Have a batch of two steps, behind which one begins with the second of these."""
    header, _ = unsealed(batch_path(run, 3))
    empty = replace(header.steps[0], entries=(), length=0, checksum=0, skipped=True)
    buffers, _ = framed(replace(header, steps=(empty, empty)), [])
    batch_path(run, 3).write_bytes(b"".join(buffers))


def epoch_with(**members: Any) -> Damage:
    """Change members of the epoch document, and have the first batch go on from it."""

    def change(run: Path) -> None:
        path = run / LOG / "epochs/0.json"
        data = jsonio.dumps_canonical(json.loads(path.read_text()) | members)
        path.write_bytes(data)
        header, payload = unsealed(batch_path(run, 0))
        seal(batch_path(run, 0), replace(header, previous=sha256_digest(data)), bytes(payload))

    return change


def renamed(run: Path) -> None:
    for step in range(1, STEPS):  # each goes on from the one before, and the first from the epoch
        batch_path(run, step).unlink()
    tensors = json.loads((run / LOG / "epochs/0.json").read_text())["tensors"]
    epoch_with(tensors=[{**tensors[0], "atom": "stranger"}, *tensors[1:]])(run)


def another_run(run: Path) -> Path:
    logged(run.with_name("other"))
    return run.with_name("other")


def other_log(run: Path) -> None:
    other = another_run(run)
    shutil.rmtree(run / LOG)
    shutil.copytree(other / LOG, run / LOG)


def batch_of_another_log(run: Path) -> None:
    shutil.copy(batch_path(another_run(run), 3), batch_path(run, 3))


def epoch_of_another_log(run: Path) -> None:
    shutil.copy(another_run(run) / LOG / "epochs/0.json", run / LOG / "epochs/0.json")


def checkpoint_that_was_given_up(run: Path) -> None:
    """Lose the last steps, go on without them, and keep the checkpoint of those alone."""
    last = Job()
    recovery = ucp.recover(run, last.model, last.optimizer, state=last.objects)
    with ucp.UpdateLog(run, last.model, last.optimizer, state=last.objects, after=recovery) as log:
        last.train(log, STEPS, STEPS + 2)
        log.full()
    batch_path(run, STEPS, epoch=1).unlink(missing_ok=True)
    path = run / LOG / "epochs/1.json"
    document = json.loads(path.read_text())
    document |= {"epoch": 2, "start": "0" * 32, "after": {**document["after"], "epoch": 0}}
    (run / LOG / "epochs/2.json").write_bytes(jsonio.dumps_canonical(document))
    shutil.rmtree(run / f"step-{STEPS}.ucp")


class Line(NamedTuple):
    """Something that is wrong with a log, and what is said of it.

    ``planned`` says that `ucp recover --dry-run` refuses it as well, ``invalid`` that `ucp validate` does.
    """

    name: str
    damage: Damage
    code: str
    match: str
    planned: bool = True
    invalid: bool = True


LINES = [
    Line("a gap", lambda run: batch_path(run, 3).unlink(), "UCP-E-LOG", "missing"),
    Line("an overlap", overlapping, "UCP-E-LOG", "durable steps lie behind"),
    Line("a record for an unknown piece", with_unknown_piece, "", "piece 99 is none of this rank", False),
    Line("a record for an unknown atom", renamed, "UCP-E-MISMATCH", "stranger", False, False),
    Line("a duplicate index", with_places(1, 1), "UCP-E-LOG", "ascend", False),
    Line("an index out of range", with_places(1, 60000), "UCP-E-LOG", "leave|ascend|range|outside", False),
    Line("a log of another run", other_log, "UCP-E-LOG", "another one", True, False),
    Line("a batch of another log", batch_of_another_log, "UCP-E-LOG", "another log"),
    Line("an epoch of another log", epoch_of_another_log, "UCP-E-LOG", "another log"),
    Line("a stale epoch", checkpoint_that_was_given_up, "UCP-E-LOG", "given up", True, False),
    Line("no log document", lambda run: (run / LOG / "log.json").unlink(), "UCP-E-MISSING", "restore it"),
    Line("no epoch", lambda run: (run / LOG / "epochs/0.json").unlink(), "UCP-E-MISSING", "epoch 0 is gone"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    logged(run)
    return run


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_what_is_wrong_with_a_log(tmp_path: Path, whole: Path, line: Line) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    line.damage(run)
    job = Job()
    if line.code:
        with pytest.raises(ucp.UcpError, match=line.match) as caught:
            ucp.recover(run, job.model, job.optimizer, state=job.objects)
        assert caught.value.code == line.code
        assert caught.value.problem().at
    else:  # of the last batch: nothing lies behind it, so that the recovery ends before it, and says why
        recovery = ucp.recover(run, job.model, job.optimizer, state=job.objects)
        assert recovery.step == STEPS - 1
        assert any(line.match in fault.message for fault in recovery.faults)
    planned = CliRunner().invoke(main, ["recover", str(run), "--dry-run"])
    assert (planned.exit_code == 1) == line.planned, planned.output
    if not line.code:
        assert line.match in planned.output
    found = CliRunner().invoke(main, ["validate", str(run / LOG)])
    assert (found.exit_code == 1) == line.invalid, found.output


class Other(NamedTuple):
    """A job that is not the one that was logged."""

    name: str
    make: Callable[[Job], torch.optim.Optimizer]
    match: str


def plain(job: Job) -> torch.optim.Optimizer:
    return torch.optim.AdamW(job.groups(), lr=1e-2)


def without_buffers(job: Job) -> torch.optim.Optimizer:
    job.model.norm = nn.BatchNorm1d(12, track_running_stats=False)
    return plain(job)


def with_more_buffers(job: Job) -> torch.optim.Optimizer:
    job.model.register_buffer("more", torch.zeros(2))
    return plain(job)


def with_group_option(name: str, value: object) -> Callable[[Job], torch.optim.Optimizer]:
    def make(job: Job) -> torch.optim.Optimizer:
        groups = job.groups()
        groups[1][name] = value
        return torch.optim.AdamW(groups, lr=1e-2)

    return make


OTHERS = [
    Other("another optimizer", lambda job: torch.optim.SGD(job.groups(), lr=1e-2), "torch.optim.SGD"),
    Other("another kind of Adam", lambda job: torch.optim.Adam(job.groups(), lr=1e-2), "torch.optim.Adam"),
    Other("one group", lambda job: torch.optim.AdamW(job.model.parameters()), "parameter groups"),
    Other("groups in another order", lambda job: torch.optim.AdamW(job.groups()[::-1]), "parameter groups"),
    Other("other betas", with_group_option("betas", (0.5, 0.9)), "betas"),
    Other("another decay", with_group_option("weight_decay", 0.5), "weight_decay"),
    Other("another epsilon", with_group_option("eps", 1e-3), "eps"),
    Other("AMSGrad", with_group_option("amsgrad", True), "amsgrad"),
    Other("ascent", with_group_option("maximize", True), "maximize"),
    Other("missing BatchNorm buffers", without_buffers, "norm.running_mean"),
    Other("a buffer that the log has not", with_more_buffers, "more"),
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.name)
def test_a_job_that_is_not_the_one_that_was_logged(whole: Path, other: Other) -> None:
    """UCP-R-043; and nothing of the job is changed."""
    job = Job()
    optimizer = other.make(job)
    before = {name: one.clone() for name, one in job.model.state_dict().items()}
    with pytest.raises(ucp.UcpError, match=other.match) as caught:
        ucp.recover(whole, job.model, optimizer)
    assert caught.value.code == "UCP-E-MISMATCH"
    assert all(torch.equal(one, before[name]) for name, one in job.model.state_dict().items())
    assert not optimizer.state


def test_other_options_that_are_meant(whole: Path) -> None:
    """The steps are made with the options of the log, which the optimizer has then."""
    job = Job()
    optimizer = with_group_option("weight_decay", 0.5)(job)
    recovery = ucp.recover(whole, job.model, optimizer, allow_other_options=True)
    assert (recovery.step, recovery.exactness) == (STEPS, "bitwise")
    assert optimizer.param_groups[1]["weight_decay"] == Job().optimizer.param_groups[1]["weight_decay"]


@pytest.mark.parametrize("has_log", [True, False])
def test_a_recovery_of_another_run(tmp_path: Path, whole: Path, has_log: bool) -> None:
    """Its epoch would make the log unreadable; nothing is written."""
    run = tmp_path / "run"
    if has_log:
        logged(run)
    before = sorted(tmp_path.rglob("*"))
    job = Job()
    recovery = ucp.recover(whole, job.model, job.optimizer, state=job.objects)
    with pytest.raises(ucp.MismatchError, match="another run"):
        ucp.UpdateLog(run, job.model, job.optimizer, after=recovery)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "code"), [("updates.ucplog", "UCP-E-MISMATCH"), ("step-0.ucp", "UCP-E-EXISTS")]
)
def test_what_lies_in_a_run_in_place_of_it(whole: Path, name: str, code: str) -> None:
    """As a run it would look empty, and training begin again."""
    job = Job()
    for call in (ucp.recover, ucp.UpdateLog):
        with pytest.raises(ucp.UcpError, match="lies in") as caught:
            call(whole / name, job.model, job.optimizer)
        assert caught.value.code == code


def test_a_stale_recovery(tmp_path: Path, whole: Path) -> None:
    """UCP-W-038 and UCP-W-039: of two jobs that have recovered, the second to begin goes on."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    job = Job()
    recovery = ucp.recover(run, job.model, job.optimizer, state=job.objects)
    log = ucp.UpdateLog(run, job.model, job.optimizer, state=job.objects, after=recovery, batch=1)
    with pytest.raises(ucp.UcpError, match="recover") as caught:
        ucp.UpdateLog(run, job.model, job.optimizer, after=recovery)
    assert caught.value.code == "UCP-E-FENCED"
    with pytest.raises(ucp.UcpError, match="recover") as caught:
        ucp.UpdateLog(run, job.model, job.optimizer)
    assert caught.value.code == "UCP-E-EXISTS"
    log.close()
