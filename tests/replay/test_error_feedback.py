"""What a compressor with error feedback has held back is stored, given back, or said to be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ucpformat as ucp
from tests.processes import launch
from tests.replay.jobs import STEPS, Job
from ucpformat.cli import main
from ucpformat.replay.compressors import compress


def logged(run: Path, stop: int, **options: Any) -> tuple[Job, dict[str, torch.Tensor]]:
    """Train a job with error feedback from the beginning; return it, and its residuals."""
    job, compressor = Job(), ucp.TopK(0.05, error_feedback=True)
    torch.manual_seed(2)
    given_ = {"batch": 3, "full_every": None, "residuals_every": 5, "check_every": 2, **options}
    with ucp.UpdateLog(
        run, job.model, job.optimizer, state=job.objects, compressor=compressor, **given_
    ) as log:
        job.train(log, 0, stop)
    assert compressor.residuals is not None
    return job, compressor.residuals


def recovered(run: Path, **options: Any) -> tuple[Job, dict[str, torch.Tensor], ucp.Recovery]:
    job, compressor = Job(), ucp.TopK(0.05, error_feedback=True)
    recovery = ucp.recover(run, job.model, job.optimizer, state=job.objects, compressor=compressor, **options)
    assert compressor.residuals is not None
    return job, compressor.residuals, recovery


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(one, second[name]) for name, one in first.items()
    )


@given(data=st.data())
def test_nothing_of_a_gradient_is_lost(data: st.DataObject) -> None:
    """What is applied and what is held back add up to the gradient and what was held back before."""
    size = data.draw(st.integers(1, 40))
    numbers = st.lists(st.integers(-1000, 1000).map(float), min_size=size, max_size=size)
    gradient, residual = (torch.tensor(data.draw(numbers)) for _ in range(2))
    wanted = gradient + residual
    places = compress(ucp.TopK(data.draw(st.floats(0.01, 1.0))), gradient, residual)
    assert places is not None
    assert torch.equal(gradient + residual, wanted)
    assert not torch.count_nonzero(gradient * residual)
    assert torch.count_nonzero(residual[places]) == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, dict[str, torch.Tensor]]:
    """What training comes to that does not end before."""
    return logged(tmp_path_factory.mktemp("whole"), STEPS)


@settings(max_examples=15)
@given(data=st.data())
def test_training_goes_on_as_if_it_had_not_ended(
    tmp_path_factory: pytest.TempPathFactory,
    whole: tuple[Job, dict[str, torch.Tensor]],
    data: st.DataObject,
) -> None:
    """UCP-R-046: from the last step whose residuals are stored, to the last bit of states and residuals."""
    run = tmp_path_factory.mktemp("run")
    stop = data.draw(st.integers(1, STEPS - 1))
    options: dict[str, Any] = {
        "batch": data.draw(st.integers(1, 5)),
        "full_every": data.draw(st.none() | st.integers(1, 9)),
        "residuals_every": data.draw(st.integers(1, 9)),
    }
    logged(run / "ends", stop, **options)
    job, held, recovery = recovered(run / "ends", keep_residuals=True)
    every, full = options["residuals_every"], options["full_every"]
    last_full = 0 if full is None else stop // full * full
    assert recovery.step == max(last_full, stop // every * every)
    assert (recovery.exactness, recovery.continuation) == ("bitwise", "bitwise")
    compressor = ucp.TopK(0.05, error_feedback=True)
    compressor.residuals = held
    with ucp.UpdateLog(
        run / "ends", job.model, job.optimizer, state=job.objects, compressor=compressor, after=recovery
    ) as log:
        job.train(log, recovery.step, STEPS)
    job.require_equal(whole[0])
    assert same(held, whole[1])


def test_residuals_that_are_not_stored_are_said_to_be_lost(tmp_path: Path) -> None:
    """UCP-R-046: the newest state has the bits of training, and what goes on from there has not."""
    trained, residuals = logged(tmp_path, 17)
    job, held, recovery = recovered(tmp_path)
    assert (recovery.step, recovery.exactness, recovery.continuation) == (17, "bitwise", "lossy")
    job.require_equal(trained)
    assert not any(one.count_nonzero() for one in held.values())
    assert any(one.count_nonzero() for one in residuals.values())
    other = Job()
    without = ucp.recover(tmp_path, other.model, other.optimizer, state=other.objects, keep_residuals=True)
    assert (without.step, without.continuation) == (15, "lossy")  # nobody takes them


def test_a_lossy_continuation_is_not_taken_for_another(tmp_path: Path) -> None:
    """Where training goes on without residuals from a checkpoint that has some, the checkpoint is saved anew."""
    logged(tmp_path, 6, full_every=6)
    job = Job()
    recovery = ucp.recover(tmp_path, job.model, job.optimizer, state=job.objects)
    assert (recovery.step, recovery.checkpoint_step, recovery.continuation) == (6, 6, "lossy")
    compressor = ucp.TopK(0.05, error_feedback=True)
    with ucp.UpdateLog(
        tmp_path, job.model, job.optimizer, state=job.objects, compressor=compressor, after=recovery
    ):
        pass
    _, held, again = recovered(tmp_path)
    assert (again.step, again.continuation) == (6, "bitwise")
    assert not any(one.count_nonzero() for one in held.values())


def test_checkpoints_alone(tmp_path: Path) -> None:
    """With ``residuals_every=None`` the log has none, and checkpoints do."""
    _, residuals = logged(tmp_path, 6, full_every=6, residuals_every=None)
    _, held, recovery = recovered(tmp_path)
    assert (recovery.step, recovery.continuation) == (6, "bitwise")
    assert same(held, residuals)
    logged(tmp_path / "none", 9, residuals_every=None)
    assert recovered(tmp_path / "none", keep_residuals=True)[2].step == 0


def test_a_run_without_feedback_has_nothing_to_lose(tmp_path: Path) -> None:
    job = Job()
    with ucp.UpdateLog(tmp_path, job.model, job.optimizer, compressor=ucp.TopK(0.05)) as log:
        job.train(log, 0, 4)
    _, held, recovery = recovered_plain(tmp_path)
    assert (recovery.step, recovery.continuation) == (4, "bitwise")
    assert not any(one.count_nonzero() for one in held.values())


def recovered_plain(run: Path) -> tuple[Job, dict[str, torch.Tensor], ucp.Recovery]:
    job, compressor = Job(), ucp.TopK(0.05, error_feedback=True)
    recovery = ucp.recover(run, job.model, job.optimizer, compressor=compressor)
    assert compressor.residuals is not None
    return job, compressor.residuals, recovery


def test_the_command_says_which_residuals_are_stored(tmp_path: Path) -> None:
    logged(tmp_path, 17)
    said = CliRunner().invoke(main, ["recover", str(tmp_path), "--dry-run"]).output
    assert "stored up to step 15: training that goes on from step 17 is lossy" in said
    said = CliRunner().invoke(main, ["recover", str(tmp_path), "--dry-run", "--keep-residuals"]).output
    assert "makes 15 steps again, and ends at step 15" in said
    assert "the residuals of error feedback are stored of step 15" in said


class TestRefusals:
    """What a compressor with error feedback cannot do."""

    def test_a_replica(self, tmp_path: Path) -> None:
        job = Job()
        with pytest.raises(ucp.MismatchError, match="without error feedback"):
            ucp.UpdateLog(
                tmp_path,
                job.model,
                job.optimizer,
                compressor=ucp.TopK(0.1, error_feedback=True),
                replica=True,
            )

    def test_residuals_of_another_model(self, tmp_path: Path) -> None:
        compressor = ucp.TopK(0.1, error_feedback=True)
        for width, match in ((3, ""), (4, "make a new compressor")):
            model = nn.Linear(width, 2)
            make = torch.optim.SGD(model.parameters())
            if match:
                with pytest.raises(ucp.MismatchError, match=match):
                    ucp.UpdateLog(tmp_path / match, model, make, compressor=compressor)
            else:
                ucp.UpdateLog(tmp_path / "first", model, make, compressor=compressor).close()

    def test_a_number_of_steps(self, tmp_path: Path) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(ucp.MismatchError, match="residuals_every"):
            ucp.UpdateLog(tmp_path, model, torch.optim.SGD(model.parameters()), residuals_every=0)


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
class TestRanks:
    """Ranks have residuals of their own pieces."""

    def run(self, run: Path, kind: str, world: int, stop: int, feedback: str = "feedback") -> dict[str, Any]:
        out = run.parent / f"{kind}-{world}-{stop}.pt"
        launch("tests.replay.ranks_worker", [str(run), kind, str(stop), str(out), feedback], world)
        found: dict[str, Any] = torch.load(out, weights_only=True)
        return found

    def test_residuals_are_resharded(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        before: dict[str, torch.Tensor] = {}
        # Each ends with a step whose residuals are stored: by the log, or in a checkpoint.
        for kind, world, stop in (("ddp", 2, 3), ("fsdp-tp", 4, 7), ("fsdp", 3, 12), ("fsdp", 2, 15)):
            found = self.run(run, kind, world, stop)
            assert found["continuation"] == "bitwise"
            if before:
                assert same(found["recovered_residuals"], before), kind
                assert any(one.count_nonzero() for one in before.values())
            before = found["residuals"]

    def test_values_of_each_ranks_own(self, tmp_path: Path) -> None:
        """Where the number of ranks is another, what differed from rank to rank is lost, and that is said."""
        run = tmp_path / "run"
        self.run(run, "ddp", 2, 3, "own")
        assert self.run(run, "ddp", 2, 6, "own")["continuation"] == "bitwise"
        assert self.run(run, "ddp", 1, 9, "own")["continuation"] == "lossy"
