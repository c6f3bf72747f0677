"""What loops do around a log: the order of their calls, what they change between two steps, and what fails in one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ucpformat as ucp

Made = tuple[nn.Module, torch.optim.Optimizer]


class Net(nn.Module):
    """A layer, and a buffer that each forward replaces by another tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = self.seen + data.sum().detach()
        found: torch.Tensor = self.layer(data)
        return found


def new() -> Made:
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def backward(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    model(torch.randn(2, 4, generator=torch.Generator().manual_seed(step))).square().mean().backward()


def require_equal(mine: Made, others: Made) -> None:
    for name, one in mine[0].state_dict().items():
        assert torch.equal(one, others[0].state_dict()[name]), name
    states, theirs = mine[1].state_dict(), others[1].state_dict()
    assert states["param_groups"] == theirs["param_groups"]
    for number, state in states["state"].items():
        for name, value in state.items():
            assert torch.equal(value, theirs["state"][number][name]), name


class Counter:
    """Counts how often it was stepped, as a schedule of the user's own; its state dict is what it goes on to change."""

    def __init__(self, method: str) -> None:
        self.steps = [0]
        setattr(self, method, self.count)

    def count(self) -> None:
        self.steps[0] += 1

    def state_dict(self) -> dict[str, list[int]]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.steps[:] = state["steps"]


class TestOrder:
    """Every order of calls that makes sense is logged as it was, and others are refused."""

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
    @pytest.mark.parametrize("batch", [1, 3])
    def test_a_schedule_that_goes_by_a_look_at_the_model(
        self, tmp_path: Path, mode: Callable[[], Any], batch: int
    ) -> None:
        """The look is a forward between the optimizer's step and the schedule's."""

        def train(made: Made, schedule: Any, log: Any, stop: int) -> None:
            model, optimizer = made
            for step in range(log.steps, stop):
                backward(model.train(), optimizer, step)
                log.step()
                with mode():
                    loss = model.eval()(torch.ones(1, 4)).square().mean().item()
                schedule.step(loss)

        def scheduled(made: Made) -> Any:
            return torch.optim.lr_scheduler.ReduceLROnPlateau(made[1], patience=0, threshold=10.0)

        made = new()
        schedule = scheduled(made)
        with ucp.UpdateLog(tmp_path, *made, state={"schedule": schedule}, batch=batch) as log:
            train(made, schedule, log, 6)
        again = new()
        other = scheduled(again)
        assert ucp.recover(tmp_path, *again, state={"schedule": other}).step == 6
        require_equal(made, again)
        assert schedule.state_dict() == other.state_dict()

    @pytest.mark.parametrize("method", ["step", "update", "update_parameters"])
    def test_what_is_stepped_behind_the_optimizer(self, tmp_path: Path, method: str) -> None:
        made, counter = new(), Counter(method)
        with ucp.UpdateLog(tmp_path, *made, state={"counter": counter}, batch=1) as log:
            for step in range(5):
                backward(*made, step)
                log.step()
                counter.count()
        again = Counter(method)
        ucp.recover(tmp_path, *new(), state={"counter": again})
        assert again.steps == [5]

    def test_what_goes_on_behind_the_step_without_being_stepped(self, tmp_path: Path) -> None:
        """A sampler draws before the next forward; the log has it as it was, though its state dict goes on with it."""
        made, sampler = new(), Counter("draw")
        with ucp.UpdateLog(tmp_path, *made, state={"sampler": sampler}, batch=1) as log:
            for step in range(5):
                sampler.count()
                backward(*made, step)
                log.step()
            sampler.count()
        again = Counter("draw")
        ucp.recover(tmp_path, *new(), state={"sampler": again})
        assert again.steps == [5]

    def test_a_step_of_the_optimizer_that_is_not_logged(self, tmp_path: Path) -> None:
        model, optimizer = new()
        scaler = torch.amp.GradScaler("cpu")
        with ucp.UpdateLog(tmp_path, model, optimizer) as log:
            backward(model, optimizer, 0)
            with pytest.raises(ucp.MismatchError, match=r"call step\(\) of the log"):
                optimizer.step()
            scaler.scale(model(torch.ones(1, 4)).sum()).backward()
            with pytest.raises(ucp.MismatchError, match=r"log\.step\(scaler\)"):
                scaler.step(optimizer)
            log.step()
        optimizer.step()

    def test_two_logs_of_one_optimizer(self, tmp_path: Path) -> None:
        made = new()
        with ucp.UpdateLog(tmp_path / "first", *made) as log, ucp.UpdateLog(tmp_path / "second", *made):
            backward(*made, 0)
            with pytest.raises(ucp.MismatchError, match="close a log before another one"):
                log.step()

    def test_a_closed_log(self, tmp_path: Path) -> None:
        with ucp.UpdateLog(tmp_path, *new()) as log:
            pass
        for call in (log.step, log.full, log.flush):
            with pytest.raises(ucp.MismatchError, match="the log is closed"):
                call()
        log.close()

    def test_a_process_that_was_forked(self, tmp_path: Path) -> None:
        """The thread that writes is not there; the parent goes on."""
        made = new()
        log = ucp.UpdateLog(tmp_path, *made, batch=1)
        backward(*made, 0)
        log.step()
        log.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:  # pragma: no cover
            told = 1
            try:
                with log:
                    backward(*made, 1)
                    log.step()
                    log.flush()
            except ucp.MismatchError as refusal:
                told = 0 if "forked" in str(refusal) else 2
            finally:
                os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with log:
            backward(*made, 1)
            log.step()
        again = new()
        assert ucp.recover(tmp_path, *again).step == 2
        require_equal(made, again)

    @pytest.mark.parametrize("run", ["", "run", "run/"])
    def test_a_process_that_changes_its_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
    ) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        first.mkdir()
        second.mkdir()
        monkeypatch.chdir(first)
        made = new()
        with ucp.UpdateLog(run, *made, batch=1, full_every=2) as log:
            for step in range(5):
                monkeypatch.chdir(second)
                backward(*made, step)
                log.step()
        assert not list(second.iterdir())
        monkeypatch.chdir(first)
        assert ucp.recover(run, *new()).step == 5
        assert (first / run / "updates.ucplog").is_dir()


class TestHooks:
    """Hooks of the optimizer before a step: the log has what they have made of gradients."""

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_hook_that_changes_gradients(self, tmp_path: Path, is_first: bool) -> None:
        def halving(made: Made) -> Any:
            def halve(*_: object) -> None:
                for one in made[0].parameters():
                    assert one.grad is not None
                    one.grad.mul_(0.5)

            return made[1].register_step_pre_hook(halve)

        made = new()
        if is_first:
            halving(made)
        with ucp.UpdateLog(tmp_path, *made) as log:
            if not is_first:
                halving(made)
            for step in range(3):
                backward(*made, step)
                log.step()
        plain, hooked = new(), new()
        halving(hooked)
        for again in (plain, hooked):
            ucp.recover(tmp_path, *again)
            require_equal(made, again)
        backward(*hooked, 3)
        hooked[1].step()  # the hook is there again
        require_equal(made, plain)

    @pytest.mark.parametrize("when", ["before", "behind"])
    def test_a_step_that_fails(self, tmp_path: Path, when: str) -> None:
        """Nothing was changed by one that fails before the optimizer begins; of another nobody knows."""

        def fail(*_: object) -> None:
            if log.steps == 2:
                raise RuntimeError("failed")

        model, optimizer = new()
        with ucp.UpdateLog(tmp_path, model, optimizer) as log:
            hook = optimizer.register_step_pre_hook if when == "before" else optimizer.register_step_post_hook
            handle = hook(fail)
            for step in range(2):
                backward(model, optimizer, step)
                log.step()
            backward(model, optimizer, 2)
            with pytest.raises(RuntimeError, match="failed"):
                log.step()
            handle.remove()
            if when == "before":
                log.step()
            else:
                for call in (log.step, log.full):
                    with pytest.raises(ucp.MismatchError, match="nobody knows what it has changed"):
                        call()
        again = new()
        assert ucp.recover(tmp_path, *again).step == (3 if when == "before" else 2)
        if when == "before":
            require_equal((model, optimizer), again)


class TestWhatIsReplaced:
    """Tensors that others take the place of while a log is open."""

    def test_a_buffer_that_a_forward_replaces(self, tmp_path: Path) -> None:
        made = new()
        with ucp.UpdateLog(tmp_path, *made, batch=1, full_every=None) as log:
            for step in range(4):
                backward(*made, step)
                log.step()
        again = new()
        assert ucp.recover(tmp_path, *again).checkpoint_step == 0
        require_equal(made, again)

    @pytest.mark.parametrize("other", [None, torch.zeros(2), torch.zeros((), dtype=torch.int64)])
    def test_a_buffer_of_another_kind(self, tmp_path: Path, other: Any) -> None:
        model, optimizer = new()
        with ucp.UpdateLog(tmp_path, model, optimizer) as log:
            backward(model, optimizer, 0)
            model.seen = other
            with pytest.raises(ucp.MismatchError, match="the buffer"):
                log.step()

    def test_a_parameter_of_the_optimizer(self, tmp_path: Path) -> None:
        model, optimizer = new()
        with ucp.UpdateLog(tmp_path, model, optimizer) as log:
            optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.zeros(3, 4))
            with pytest.raises(ucp.MismatchError, match="other parameters or groups"):
                log.step()

    def test_a_group_that_is_added_loses_no_step(self, tmp_path: Path) -> None:
        """Steps before it that wait to be written are written without it."""
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model[0].parameters())
        with ucp.UpdateLog(tmp_path, model, optimizer, full_every=2) as log:
            for step in range(4):
                backward(model, optimizer, step)
                log.step()
            optimizer.add_param_group({"params": model[1].parameters()})
        again = torch.optim.SGD(model[0].parameters())
        assert ucp.recover(tmp_path, model, again).step == 4
        assert not (tmp_path / "step-4.ucp").exists()

    def test_an_optimizer_that_is_made_fused(self, tmp_path: Path) -> None:
        model, optimizer = new()
        with ucp.UpdateLog(tmp_path, model, optimizer) as log:
            backward(model, optimizer, 0)
            optimizer.param_groups[0]["fused"] = True
            with pytest.raises(ucp.MismatchError, match="`fused` set to False"):
                log.step()


def test_momentum_of_a_sparse_gradient(tmp_path: Path) -> None:
    """Torch keeps it as a sparse tensor, which no checkpoint can have."""
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with ucp.UpdateLog(tmp_path, model, optimizer) as log:
        model(torch.tensor([1, 1])).sum().backward()
        with pytest.raises(ucp.MismatchError, match="momentum of a sparse"):
            log.step()


def test_names_that_wrappers_give(tmp_path: Path) -> None:
    model: Any = nn.Module()
    model.register_parameter("_orig_mod", nn.Parameter(torch.ones(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ucp.UpdateLog(tmp_path, model, optimizer) as log:
        model._orig_mod.sum().backward()
        log.step()
    assert ucp.recover(tmp_path, model, optimizer).step == 1


def test_a_parameter_that_another_optimizer_changes(tmp_path: Path) -> None:
    """Its steps would be in no log, or be undone where two are recovered one after the other."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False))
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with ucp.UpdateLog(tmp_path, model, first) as log:
        for step in range(2):
            backward(model, first, step)
            log.step()
        second.step()
        with pytest.raises(ucp.MismatchError, match=r"1\.weight.*one optimizer"):
            log.step()


@pytest.mark.parametrize("replica", [False, True])
def test_a_parameter_without_elements(tmp_path: Path, replica: bool) -> None:
    model: Any
    model, optimizer = new()
    model.register_parameter("empty", nn.Parameter(torch.zeros(0, 4)))
    optimizer.add_param_group({"params": [model.empty]})
    options: Any = {"replica": ucp.Replica(linger=0.0)} if replica else {}
    with ucp.UpdateLog(tmp_path, model, optimizer, **options) as log:
        for step in range(3):
            backward(model, optimizer, step)
            model.empty.grad = torch.zeros(0, 4)
            log.step()
    weight = model.layer.weight.detach().clone()
    assert ucp.recover(tmp_path, model, optimizer).step == 3
    assert torch.equal(model.layer.weight, weight)


def test_a_manager_that_keeps_others_in_the_run_of_a_log(tmp_path: Path) -> None:
    """What the log goes on from stays, though newer checkpoints are kept that are of no log."""
    model, optimizer = new()
    with ucp.UpdateLog(tmp_path, model, optimizer, full_every=None) as log:
        for step in range(3):
            backward(model, optimizer, step)
            log.step()
        with ucp.CheckpointManager(tmp_path, keep_last=1) as manager:
            for step in (50, 60):
                manager.save(step, {"model": model, "optim": optimizer})
    assert manager.steps() == [0, 60]
    again = new()
    assert ucp.recover(tmp_path, *again).step == 3
    require_equal((model, optimizer), again)
