"""A job that logs its steps, ends anywhere, and goes on from the very step before, to the last bit."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ucpformat as ucp
from tests.replay.jobs import OPTIMIZERS, STEPS, Job, logged, recovered, trained
from tests.update_log.logs import ID, LogMaker
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.validation import log_problems


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_recovery_is_bitwise(tmp_path: Path, name: str) -> None:
    """UCP-R-041, UCP-R-042, UCP-R-044: with groups, a schedule, clipping, a frozen layer and skipped steps."""
    logged(tmp_path, STEPS, name, batch=3, full_every=13, check_every=2)
    job, recovery = recovered(tmp_path, name)
    assert (recovery.step, recovery.checkpoint_step, recovery.exactness) == (STEPS, 13, "bitwise")
    assert recovery.checked > 12
    job.require_equal(trained(STEPS, name))
    assert log_problems(str(tmp_path / "updates.ucplog")) == []


@given(data=st.data())
def test_a_job_that_ends_anywhere_goes_on_as_if_it_had_not(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """UCP-W-038: several ends, each at any step, with any batches and full checkpoints; dropout included."""
    run = tmp_path_factory.mktemp("run")
    stops = data.draw(st.lists(st.integers(1, STEPS - 1), min_size=1, max_size=3, unique=True).map(sorted))
    begin, job, recovery = 0, Job(), ucp.Recovery()
    torch.manual_seed(2)
    for stop in (*stops, STEPS):
        with ucp.UpdateLog(
            run,
            job.model,
            job.optimizer,
            state=job.objects,
            after=recovery,
            batch=data.draw(st.integers(1, 5)),
            full_every=data.draw(st.none() | st.integers(1, 9)),
            check_every=data.draw(st.integers(1, 7)),
        ) as log:
            assert log.steps == begin
            job.train(log, begin, stop)
        torch.manual_seed(99)
        job, recovery = recovered(run)
        begin = recovery.step
        assert (begin, recovery.exactness) == (stop, "bitwise")
    job.require_equal(trained(STEPS))


def test_a_run_without_anything_changes_nothing(tmp_path: Path) -> None:
    job, recovery = recovered(tmp_path / "nothing")
    assert recovery == ucp.Recovery()
    job.require_equal(Job())
    assert not (tmp_path / "nothing").exists()


def test_checkpoints_without_a_log_are_loaded(tmp_path: Path) -> None:
    job = trained(3)
    with ucp.CheckpointManager(tmp_path) as manager:
        manager.save(3, {"model": job.model, "optim": job.optimizer})
    again = Job()
    recovery = ucp.recover(tmp_path, again.model, again.optimizer)
    assert (recovery.step, recovery.log) == (3, None)
    assert torch.equal(again.model.head.weight, job.model.head.weight)


def test_a_log_that_was_only_begun_is_in_nobodys_way(tmp_path: Path) -> None:
    """A start of a job on a run of plain checkpoints dies when it has made the log, or its first epoch."""
    first = trained(3)
    with ucp.CheckpointManager(tmp_path) as manager:
        manager.save(3, {"model": first.model, "optim": first.optimizer})
    maker = LogMaker(tmp_path / "updates.ucplog")
    for number in (0, 1):
        job = Job()
        recovery = ucp.recover(tmp_path, job.model, job.optimizer)
        assert (recovery.step, recovery.log, recovery.next_epoch) == (3, ID, number)
        if number == 0:
            with ucp.UpdateLog(tmp_path / "other", job.model, job.optimizer):
                pass
            found = json.loads((tmp_path / "other/updates.ucplog/epochs/0.json").read_text())
            maker.put("epochs/0.json", json.dumps(found | {"log": ID, "first_step": 3}).encode())
    with ucp.UpdateLog(tmp_path, job.model, job.optimizer, after=recovery, batch=1) as log:
        for one in job.model.parameters():
            one.grad = torch.ones_like(one)
        log.step()
    again = Job()
    assert ucp.recover(tmp_path, again.model, again.optimizer).step == 4
    assert torch.equal(again.model.head.weight, job.model.head.weight)
    with pytest.raises(ucp.MismatchError, match="leave it out"):
        ucp.recover(tmp_path, again.model, again.optimizer, state={"schedule": again.schedule})


def test_a_log_that_is_there_is_recovered_from_first(tmp_path: Path) -> None:
    logged(tmp_path, 2)
    job = Job()
    with pytest.raises(ucp.UcpError, match="recover"):
        ucp.UpdateLog(tmp_path, job.model, job.optimizer)


def trained_on(job: Job, log: ucp.UpdateLog) -> None:
    """Make five more steps, and wait for the thread that writes them."""
    job.train(log, 4, 9)
    log.flush()


def test_a_zombie_is_fenced(tmp_path: Path) -> None:
    """UCP-W-039, UCP-W-040: a process that was taken for dead cannot write any more."""
    old = Job()
    torch.manual_seed(2)
    log = ucp.UpdateLog(tmp_path, old.model, old.optimizer, state=old.objects, batch=1)
    old.train(log, 0, 4)
    log.flush()
    new, recovery = recovered(tmp_path)
    with ucp.UpdateLog(tmp_path, new.model, new.optimizer, state=new.objects, after=recovery) as other:
        with torch.random.fork_rng(), pytest.raises(ucp.UcpError, match="UCP-E-FENCED"):
            trained_on(old, log)
        with pytest.raises(ucp.UcpError, match="UCP-E-FENCED"):
            log.close()
        new.train(other, 4, 6)
    with pytest.raises(
        ucp.UcpError, match="UCP-E-FENCED"
    ):  # a second job that has recovered from the same state
        ucp.UpdateLog(tmp_path, new.model, new.optimizer, after=recovery)
    job, again = recovered(tmp_path)
    assert again.step == 6
    job.require_equal(trained(6))


def test_a_zombie_saves_no_checkpoint(tmp_path: Path) -> None:
    """Those of the job that has gone on would be removed for it."""
    old = Job()
    log = ucp.UpdateLog(tmp_path, old.model, old.optimizer, state=old.objects, batch=1, full_every=5)
    old.train(log, 0, 4)
    log.flush()
    new, recovery = recovered(tmp_path)
    with ucp.UpdateLog(tmp_path, new.model, new.optimizer, state=new.objects, after=recovery):
        with pytest.raises(ucp.UcpError, match="UCP-E-FENCED"):
            old.train(log, 4, 9)
        with pytest.raises(ucp.UcpError, match="UCP-E-FENCED"):
            log.close()
    assert ucp.CheckpointManager(tmp_path).steps() == [0, 4]


class TestDamage:
    """What lies on the disk is not what was written."""

    def test_a_torn_end(self, tmp_path: Path) -> None:
        logged(tmp_path, 8, batch=1, full_every=None)
        last = tmp_path / "updates.ucplog/batches/0/0/7.batch"
        last.write_bytes(last.read_bytes()[:-1])
        job, recovery = recovered(tmp_path)
        assert (recovery.step, len(recovery.faults)) == (7, 1)
        job.require_equal(trained(7))
        with ucp.UpdateLog(tmp_path, job.model, job.optimizer, state=job.objects, after=recovery) as log:
            job.train(log, 7, 12)
        recovered(tmp_path)[0].require_equal(trained(12))

    def test_a_gap(self, tmp_path: Path) -> None:
        """UCP-R-040."""
        logged(tmp_path, 8, batch=1, full_every=None)
        (tmp_path / "updates.ucplog/batches/0/0/5.batch").unlink()
        with pytest.raises(ucp.UcpError, match="allow_loss=True"):
            recovered(tmp_path)
        job, recovery = recovered(tmp_path, allow_loss=True)
        assert recovery.step == 5
        job.require_equal(trained(5))

    def test_damage_before_a_newer_checkpoint(self, tmp_path: Path) -> None:
        """UCP-R-040: nothing durable is lost, unless that checkpoint is damaged as well."""
        logged(tmp_path, 9, batch=1, full_every=6, keep_full=3)
        damaged = tmp_path / "updates.ucplog/batches/0/0/2.batch"
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
        job, recovery = recovered(tmp_path)
        assert (recovery.step, recovery.checkpoint_step) == (9, 6)
        assert "leads from it to step 2 only" in recovery.faults[0].message
        job.require_equal(trained(9))
        for pack in (tmp_path / "step-6.ucp/packs").iterdir():
            pack.write_bytes(bytes(pack.stat().st_size))
        with pytest.raises(ucp.UcpError, match="allow_loss=True takes any"):
            recovered(tmp_path)
        job, recovery = recovered(tmp_path, allow_loss=True)
        assert (recovery.step, recovery.checkpoint_step) == (2, 0)
        job.require_equal(trained(2))

    def test_a_damaged_checkpoint(self, tmp_path: Path) -> None:
        logged(tmp_path, 9, full_every=6)
        for pack in (tmp_path / "step-6.ucp/packs").iterdir():
            pack.write_bytes(bytes(pack.stat().st_size))
        job, recovery = recovered(tmp_path)
        assert (recovery.step, recovery.checkpoint_step) == (9, 0)
        assert "passed over" in recovery.faults[0].message
        job.require_equal(trained(9))

    def test_no_checkpoint(self, tmp_path: Path) -> None:
        """Steps that cannot be replayed are not passed over in silence."""
        logged(tmp_path, 4, full_every=None)
        shutil.rmtree(tmp_path / "step-0.ucp")
        with pytest.raises(ucp.UcpError, match="no checkpoint to begin with"):
            recovered(tmp_path)

    @pytest.mark.parametrize(("full_every", "with_batches"), [(None, True), (2, True), (2, False)])
    def test_the_document_of_the_newest_epoch_is_gone(
        self, tmp_path: Path, full_every: int | None, with_batches: bool
    ) -> None:
        """Its steps are lost, or those behind its checkpoints: they are no branch that was given up."""
        logged(tmp_path, 4, full_every=None)
        job, recovery = recovered(tmp_path)
        with ucp.UpdateLog(
            tmp_path,
            job.model,
            job.optimizer,
            state=job.objects,
            after=recovery,
            full_every=full_every,
            keep_full=9,
        ) as log:
            job.train(log, 4, 8)
        (tmp_path / "updates.ucplog/epochs/1.json").unlink()
        if not with_batches:
            shutil.rmtree(tmp_path / "updates.ucplog/batches/1")
        with pytest.raises(ucp.UcpError, match=r"UCP-E-MISSING.*epoch 1 is gone.*allow_loss=True"):
            recovered(tmp_path)
        job, recovery = recovered(tmp_path, allow_loss=True)
        assert (recovery.step, recovery.faults[0].code) == (4, "UCP-E-MISSING")
        job.require_equal(trained(4))

    def test_the_log_is_gone(self, tmp_path: Path) -> None:
        logged(tmp_path, 4, full_every=2)
        shutil.rmtree(tmp_path / "updates.ucplog")
        _, recovery = recovered(tmp_path)
        assert (recovery.step, [fault.code for fault in recovery.faults]) == (4, ["UCP-E-MISSING"])

    def test_a_checkpoint_of_another_run(self, tmp_path: Path) -> None:
        """UCP-R-039."""
        logged(tmp_path / "a", 4, full_every=None)
        logged(tmp_path / "b", 9, full_every=6)
        shutil.copytree(tmp_path / "b/step-6.ucp", tmp_path / "a/step-6.ucp")
        job, recovery = recovered(tmp_path / "a")
        assert (recovery.step, recovery.checkpoint_step) == (4, 0)
        assert "another one" in recovery.faults[0].message
        job.require_equal(trained(4))

    def test_a_write_outside_of_the_optimizer(self, tmp_path: Path) -> None:
        """The sums show it; the state goes back to where it was right."""
        job = Job()
        torch.manual_seed(2)
        with ucp.UpdateLog(
            tmp_path, job.model, job.optimizer, state=job.objects, batch=2, full_every=None, check_every=2
        ) as log:
            job.train(log, 0, 6)
            with torch.no_grad():
                job.model.head.weight += 1
            job.train(log, 6, 8)
        again, recovery = recovered(tmp_path)
        assert recovery.step == 6
        assert "head.weight/value has another sum" in recovery.faults[-1].message
        again.require_equal(trained(6))


class TestForms:
    """Gradients that are sparse, compressed, of other types."""

    def test_a_compressor_makes_a_small_log(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        model = nn.Linear(300, 200)
        optimizer = torch.optim.AdamW(model.parameters())
        compressor = ucp.TopK(0.01)
        with ucp.UpdateLog(
            tmp_path, model, optimizer, compressor=compressor, batch=10, full_every=None, rng=False
        ) as log:
            for step in range(10):
                optimizer.zero_grad()
                model(
                    torch.randn(4, 300, generator=torch.Generator().manual_seed(step))
                ).square().sum().backward()
                log.step()
            log.full()
        written = (tmp_path / "updates.ucplog/batches/0/0/0.batch").stat().st_size / 10
        full = sum(one.stat().st_size for one in (tmp_path / "step-10.ucp").rglob("*") if one.is_file())
        assert written < full / 100
        shutil.rmtree(tmp_path / "step-10.ucp")
        again = nn.Linear(300, 200)
        recovery = ucp.recover(tmp_path, again, torch.optim.AdamW(again.parameters()))
        assert recovery.exactness == "bitwise"
        assert torch.equal(again.weight, model.weight)

    def test_rows_of_an_embedding(self, tmp_path: Path) -> None:
        """Rows that have no gradient are not touched, which is not the same as a gradient of zero."""

        def make() -> tuple[nn.Embedding, torch.optim.Optimizer]:
            torch.manual_seed(0)
            model = nn.Embedding(50, 4, sparse=True)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        model, optimizer = make()
        with ucp.UpdateLog(tmp_path, model, optimizer, full_every=None) as log:
            for step in range(5):
                optimizer.zero_grad()
                model(torch.tensor([step, 2 * step, 7])).square().sum().backward()
                log.step()
            assert model.weight.grad is not None
        again, other = make()
        recovery = ucp.recover(tmp_path, again, other)
        assert recovery.exactness == "bitwise"
        assert torch.equal(again.weight, model.weight)

    def test_bfloat16(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        model = nn.Linear(5, 3).to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with ucp.UpdateLog(tmp_path, model, optimizer, full_every=None, check_every=1) as log:
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(2, 5, dtype=torch.bfloat16)).square().sum().backward()
                log.step()
        again = nn.Linear(5, 3).to(torch.bfloat16)
        recovery = ucp.recover(tmp_path, again, torch.optim.AdamW(again.parameters(), lr=0.1))
        assert recovery.exactness == "bitwise"
        assert torch.equal(again.weight, model.weight)

    def test_negative_zeros_and_nan(self, tmp_path: Path) -> None:
        model = nn.Linear(4, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with ucp.UpdateLog(tmp_path, model, optimizer, full_every=None) as log:
            model.weight.grad = torch.tensor([[-0.0, float("nan"), 0.0, 1.0]])
            log.step()
        again = nn.Linear(4, 1, bias=False)
        ucp.recover(tmp_path, again, torch.optim.SGD(again.parameters(), lr=1.0))
        assert np.array_equal(again.weight.detach().numpy(), model.weight.detach().numpy(), equal_nan=True)


def test_a_step_waits_where_too_much_is_pending(tmp_path: Path) -> None:
    logged(tmp_path, 6, batch=1, pending_bytes=1)
    job, recovery = recovered(tmp_path)
    assert recovery.step == 6
    job.require_equal(trained(6))


def test_a_disk_that_fails_is_said_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    log = ucp.UpdateLog(tmp_path, job.model, job.optimizer, state=job.objects, batch=1)
    job.train(log, 0, 2)
    log.flush()

    def full(place: LogPlace, key: str, buffers: object) -> None:
        raise ucp.StoreError("UCP-E-STORE", "no space left on device", at=key)

    monkeypatch.setattr(LogPlace, "create", full)
    with pytest.raises(ucp.StoreError, match="no space left"):
        job.train(log, 2, 9)
    monkeypatch.undo()
    with pytest.raises(ucp.StoreError, match="no space left"):
        log.close()
    assert recovered(tmp_path)[1].step == 2


def test_a_checkpoint_that_is_due_is_not_saved_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for one at the very step at which one is due gets one, not that one and another over it."""
    saved: list[int] = []
    save = ucp.CheckpointManager.save

    def counted(manager: ucp.CheckpointManager, step: int, *content: object, **options: object) -> object:
        saved.append(step)
        return save(manager, step, *content, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ucp.CheckpointManager, "save", counted)
    job = Job()
    torch.manual_seed(2)
    with ucp.UpdateLog(tmp_path, job.model, job.optimizer, state=job.objects, full_every=4) as log:
        job.train(log, 0, 4)
        log.full()
        job.train(log, 4, 7)
        log.full()
        job.train(log, 7, 11)
    assert saved == [0, 4, 7, 11]
    again, recovery = recovered(tmp_path)
    assert (recovery.step, recovery.checkpoint_step) == (11, 11)
    again.require_equal(trained(11))


def test_a_run_in_an_object_store() -> None:
    """The same job, by puts that create exclusively; a zombie of its first start is fenced."""
    run = f"memory://{uuid4().hex}/run"
    job = Job()
    torch.manual_seed(2)
    first = ucp.UpdateLog(run, job.model, job.optimizer, state=job.objects, batch=1, full_every=4)
    job.train(first, 0, 9)
    first.flush()
    first._manager.wait()  # a checkpoint is committed in the background
    again = Job()
    recovery = ucp.recover(run, again.model, again.optimizer, state=again.objects)
    assert (recovery.step, recovery.checkpoint_step, recovery.exactness) == (9, 8, "bitwise")
    with ucp.UpdateLog(run, again.model, again.optimizer, state=again.objects, after=recovery) as log:
        again.train(log, 9, 12)
        again.require_equal(trained(12))
    with suppress(ucp.UcpError):  # it learns of that when the batch is written
        job.train(first, 9, 10)
    with pytest.raises(ucp.UcpError, match="UCP-E-FENCED"):
        first.close()


def test_old_steps_are_removed(tmp_path: Path) -> None:
    logged(tmp_path, STEPS, batch=2, full_every=5, keep_full=2)
    first = min(int(one.stem) for one in (tmp_path / "updates.ucplog/batches/0/0").iterdir())
    kept = ucp.CheckpointManager(tmp_path).steps()
    assert kept == [15, 20]
    assert (
        5 <= first <= 15
    )  # what is removed when a checkpoint is committed is what the one before made needless
    job, recovery = recovered(tmp_path)
    assert recovery.step == STEPS
    job.require_equal(trained(STEPS))
