"""`fence=`: what is saved is the state at the call, whatever changes it behind the call."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ucpformat as ucp
from ucpformat import UcpError
from ucpformat.distributed import later_copies, snapshot
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.snapshot import Copied, Copy, HostCopier
from ucpformat.state_dict import fences
from ucpformat.state_dict.stateful import state_to_save


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Let torch compute in one thread: many small computations beside other threads take far longer in several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "for-loop": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=False),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "fused momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
}


class SlowCopier(HostCopier):
    """Takes its time for each batch, as ``seconds`` says in turn, and begins late or ends late."""

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__(1)
        self._seconds = list(seconds)
        self._count = 0
        self.copied: list[str] = []

    def copy(self, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]) -> Copied:
        self._count += 1
        time.sleep(self._seconds[self._count % len(self._seconds)])
        self.copied.extend("/".join(one.name) for one in copies)
        return super().copy(local, copies, memory)


@contextmanager
def saving(
    fence: Any, seconds: Sequence[float] = (0.0,), *, at_once: int = 256, **options: Any
) -> Iterator[ucp.AsyncSaver]:
    """A saver that copies slowly, and few bytes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(later_copies, "_AT_ONCE", at_once)
        patch.setattr(later_copies, "_AT_A_FENCE", 2 * at_once)
        patch.setattr(snapshot, "_BATCH_BYTES", 4 * at_once)
        with ucp.AsyncSaver(fence=fence, **options) as saver:
            saver._saver._copier = SlowCopier(seconds)
            yield saver


class Job:
    """A model with batch normalisation, its optimizer, and an average of it."""

    def __init__(self, optimizer: str = "foreach") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
        self.frozen = list(self.model.parameters())[-1].requires_grad_(False)
        trained = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = OPTIMIZERS[optimizer](trained)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
        self.extra = np.arange(50.0)
        self.train()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optim": self.optimizer, "ema": self.ema, "extra": self.extra}

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 12)).square().sum().backward()

    def train(self) -> None:
        self.backward()
        self.optimizer.step()

    def forward(self) -> None:
        self.model(torch.randn(8, 12))

    def average(self) -> None:
        self.ema.update_parameters(self.model)

    def outside(self) -> None:
        self.extra += 1
        with torch.no_grad():
            self.frozen.add_(1)


def as_saved(state: Any) -> dict[str, Any]:
    """Copy everything that a save stores, as `flat` has it."""
    return flat(state_to_save(state))


def flat(found: Any, at: str = "") -> dict[str, Any]:
    if isinstance(found, dict):
        return {name: one for key, value in found.items() for name, one in flat(value, f"{at}.{key}").items()}
    if isinstance(found, list | tuple):
        return flat(dict(enumerate(found)), at)
    if isinstance(found, torch.Tensor):
        found = found.detach().numpy()
    return {at: found.tobytes() if isinstance(found, np.ndarray) else found}


ACTIONS = ("train", "backward", "forward", "average", "outside")


@settings(max_examples=25)
@given(
    optimizer=st.sampled_from([*OPTIMIZERS]),
    fences=st.sampled_from([("optimizer",), ("optimizer", "ema"), ("ema",)]),
    saves=st.lists(st.lists(st.sampled_from(ACTIONS), max_size=5), min_size=1, max_size=3),
    seconds=st.lists(st.sampled_from([0.0, 0.0, 0.0005, 0.002]), min_size=1, max_size=4),
    arena_bytes=st.sampled_from([None, 4096]),
    bandwidth=st.sampled_from([None, 1e6]),
    storage=st.sampled_from(["packed", "plain"]),
)
def test_what_is_saved_is_the_state_at_the_call(
    optimizer: str,
    fences: tuple[str, ...],
    saves: list[list[str]],
    seconds: list[float],
    arena_bytes: int | None,
    bandwidth: float | None,
    storage: Any,
) -> None:
    job = Job(optimizer)
    fence = [getattr(job, name) for name in fences]
    with (
        TemporaryDirectory() as directory,
        saving(fence, seconds, arena_bytes=arena_bytes, bandwidth=bandwidth) as saver,
    ):
        for number, actions in enumerate(saves):
            expected = as_saved(job.state)
            path = Path(directory, f"{number}.ucp")
            save = saver.save(path, job.state, storage=storage, chunk_bytes=1024)
            for action in actions:
                getattr(job, action)()
            save.wait()
            assert ucp.validate(path) == []
            assert flat(ucp.load(path)) == expected


class Gate(HostCopier):
    """Copies when it is let: ``open`` gives leave for all, and `copied` has the slots of each batch."""

    def __init__(self) -> None:
        super().__init__(1)
        self.open = threading.Event()
        self.reached = threading.Event()
        self.copied: list[set[str]] = []

    def copy(self, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]) -> Copied:
        if threading.current_thread() is not threading.main_thread():
            self.reached.set()
            assert self.open.wait(60)
        self.copied.append({"/".join(one.name) for one in copies})
        return super().copy(local, copies, memory)


def test_only_what_is_behind_a_fence_is_left_for_later(tmp_path: Path) -> None:
    job = Job()
    with ucp.AsyncSaver(fence=job.optimizer) as saver:
        saver._saver._copier = gate = Gate()
        save = saver.save(tmp_path / "a.ucp", job.state)
        (in_call,) = gate.copied
        trained = {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight"}
        states = {"step", "exp_avg", "exp_avg_sq"}
        gate.open.set()
        report = save.wait()
        (_, later) = gate.copied
    assert later == {f"{name}/{slot}" for name in trained for slot in {"value", *states}}
    assert "3.bias/value" in in_call  # nobody knows who changes a parameter that is not trained
    assert "1.running_mean/value" in in_call  # a buffer changes in the next forward
    assert not in_call & later
    assert report.fenced == 0


@pytest.mark.parametrize("mutator", ["optimizer", "ema", "another optimizer", "staged"])
def test_whoever_changes_a_tensor_waits_for_its_copy(tmp_path: Path, mutator: str) -> None:
    job = Job()
    fence: Any = "staged" if mutator == "staged" else [job.optimizer, job.ema]
    expected = as_saved(job.state)
    with ucp.AsyncSaver(fence=fence) as saver:
        saver._saver._copier = gate = Gate()
        save = saver.save(tmp_path / "a.ucp", job.state)
        job.backward()
        assert gate.reached.wait(60)
        threading.Timer(0.05, gate.open.set).start()
        before = gate.open.is_set()
        if mutator == "optimizer":
            job.optimizer.step()
        elif mutator == "ema":
            job.average()
        elif mutator == "staged":
            save.staged()
        else:
            torch.optim.SGD(job.model.parameters(), lr=0.1).step()
        assert (before, gate.open.is_set()) == (False, True)
        if mutator == "staged":
            job.outside()
            job.optimizer.step()
        assert save.wait().fenced > 0
    assert flat(ucp.load(tmp_path / "a.ucp")) == expected


def test_an_average_is_as_before_when_its_copies_are_made(tmp_path: Path) -> None:
    job = Job()
    with ucp.AsyncSaver(fence=[job.optimizer, job.ema]) as saver:
        saver._saver._copier = gate = Gate()
        save = saver.save(tmp_path / "a.ucp", job.state)
        assert "update_parameters" in job.ema.__dict__
        twin = copy.deepcopy(job.ema)
        assert twin.__dict__["update_parameters"].__self__ is twin
        gate.open.set()
        save.wait()
        assert "update_parameters" not in job.ema.__dict__
        twin.update_parameters(job.model)


def out_of_place(job: Job) -> None:
    with torch.no_grad():
        next(job.model.parameters()).mul_(2)


def a_state(job: Job) -> None:
    job.optimizer.state[next(job.model.parameters())]["exp_avg"].zero_()


@pytest.mark.parametrize("change", [out_of_place, a_state])
@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("steps", [False, True])
def test_what_is_changed_by_others_fails_the_save(
    tmp_path: Path, change: Callable[[Job], None], is_copied: bool, steps: bool
) -> None:
    """Whenever it was copied: whether a save fails does not depend on who was faster."""
    job = Job()
    with ucp.AsyncSaver(fence=job.optimizer) as saver:
        saver._saver._copier = gate = Gate()
        save = saver.save(tmp_path / "a.ucp", job.state)
        if is_copied:
            later = save._later
            assert later is not None
            hold = threading.Event()
            settle = later.settle
            later.settle = lambda: (hold.wait(60), settle())[1]  # type: ignore[method-assign]
            gate.open.set()
            while later._left or later._in_hand:
                time.sleep(0.001)
        change(job)
        gate.open.set()
        if steps:
            job.train()
        if is_copied:
            hold.set()
        with pytest.raises(UcpError, match="was changed behind the save") as caught:
            save.wait()
        assert caught.value.code == "UCP-E-MISMATCH"
        assert caught.value.at.startswith("0.weight/")
    assert not ucp.CheckpointManager(tmp_path).steps()
    assert not (tmp_path / "a.ucp" / "ucp.json").exists()


@pytest.mark.parametrize(
    ("fence", "said"),
    [
        ("step", "fence= is an optimizer, an AveragedModel, several of them, or \"staged\", not 'step'"),
        ([], "several of them"),
        (nn.Linear(2, 2), "not 'Linear'"),
        (7, "not 'int'"),
        (
            torch.optim.AdamW(nn.Linear(2, 2).parameters()),
            "the AdamW of fence= changes no tensor of the state",
        ),
        (torch.optim.Adam(nn.Linear(2, 2).parameters(), capturable=True), "CUDA graph"),
    ],
)
def test_what_is_no_fence(tmp_path: Path, fence: Any, said: str) -> None:
    job = Job()
    with pytest.raises(UcpError, match=said) as caught:
        ucp.async_save(tmp_path / "a.ucp", job.state, fence=fence)
    assert (caught.value.code, caught.value.at) == ("UCP-E-MISMATCH", "fence")
    ucp.async_save(tmp_path / "a.ucp", job.state, fence=job.optimizer).wait()


def test_options_without_effect(tmp_path: Path) -> None:
    makes: list[tuple[Callable[[], object], str]] = [
        (lambda: ucp.AsyncSaver(bandwidth=1e9), "give fence= as well"),
        (lambda: ucp.AsyncSaver(fence="staged", bandwidth=0), "a bandwidth is a number of bytes a second"),
        (lambda: ucp.CheckpointManager(tmp_path, fence="staged"), "give asynchronous=True as well"),
    ]
    for make, said in makes:
        with pytest.raises(UcpError, match=said):
            make()


@pytest.mark.parametrize("is_late", [False, True])
def test_copies_are_made_in_the_order_in_which_fences_came_the_last_time(
    tmp_path: Path, is_late: bool
) -> None:
    """As with one optimizer for each parameter, which steps while the backward pass goes on; copies may be late."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(5)])
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in model]
    for weight, one in zip(model.parameters(), optimizers, strict=True):
        weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, one=one: (one.step(), one.zero_grad())[0]
        )
    state = {"model": model} | {f"optim{number}": one for number, one in enumerate(optimizers)}

    def train() -> None:
        model(torch.ones(2, 8)).sum().backward()

    train()
    with saving(optimizers, [0.01], at_once=1) as saver:
        copier = saver._saver._copier
        assert isinstance(copier, SlowCopier)
        orders = []
        for number in range(2):
            expected = as_saved(state)
            if is_late and number == 1:
                copier._seconds = [0.05]  # five times as slow as before
            save = saver.save(tmp_path / f"{number}.ucp", state)
            if is_late and number == 1:
                save.wait()  # no fence asks for anything
            train()
            save.wait()
            orders.append([name[0] for name in copier.copied[::2]])
            copier.copied.clear()
            assert flat(ucp.load(tmp_path / f"{number}.ucp")) == expected
    assert orders[1] == ["4", "3", "2", "1", "0"]


def test_a_fork_does_not_wait_for_copies_of_its_parent(tmp_path: Path) -> None:
    job = Job()
    with ucp.AsyncSaver(fence=job.optimizer) as saver:
        saver._saver._copier = gate = Gate()
        save = saver.save(tmp_path / "a.ucp", job.state)
        assert gate.reached.wait(60)
        child = os.fork()
        if not child:
            job.optimizer.step()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        gate.open.set()
        save.wait()


def test_what_fails_behind_the_call_lets_training_go_on(tmp_path: Path) -> None:
    class Failing(HostCopier):
        def copy(self, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]) -> Copied:
            if threading.current_thread() is not threading.main_thread():
                raise OSError("no memory")
            return super().copy(local, copies, memory)

    job = Job()
    with ucp.AsyncSaver(fence=job.optimizer) as saver:
        saver._saver._copier = Failing(1)
        save = saver.save(tmp_path / "a.ucp", job.state)
        job.train()
        save.staged()
        with pytest.raises(OSError, match="no memory"):
            save.wait()
        saver._saver._copier = HostCopier()
        expected = as_saved(job.state)
        save = saver.save(tmp_path / "a.ucp", job.state)
        job.train()
        save.wait()
    assert flat(ucp.load(tmp_path / "a.ucp")) == expected


def test_a_save_waits_for_the_copies_of_the_one_before(tmp_path: Path) -> None:
    job = Job()
    with saving(job.optimizer, [0.001]) as saver:
        saves = [saver.save(tmp_path / f"{number}.ucp", job.state) for number in range(3)]
        assert [save.done() for save in saves[:2]] == [True, True]
        with pytest.raises(UcpError, match="still being written"):
            saver.save(tmp_path / "b.ucp", job.state, when_busy="raise")
        saves[-1].wait()


def test_a_manager_leaves_copies_for_later_too(tmp_path: Path) -> None:
    job = Job()
    expected = []
    with ucp.CheckpointManager(tmp_path, asynchronous=True, fence=job.optimizer, bandwidth=1e9) as manager:
        for step in range(3):
            job.train()
            expected.append(as_saved(job.state))
            manager.save(step, job.state)
    assert [flat(ucp.load(tmp_path / f"step-{step}.ucp")) for step in range(3)] == expected


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_waits_too(tmp_path: Path) -> None:
    """Also one that was compiled before the first save with a fence, which gives torch the hook."""
    while fences._hooked:
        handle: Any = fences._hooked.pop()
        handle.remove()
    job = Job()
    step = torch.compile(job.optimizer.step, backend="eager")
    for _ in range(2):
        job.backward()
        step()
    expected = as_saved(job.state)
    with ucp.AsyncSaver(fence=job.optimizer) as saver:
        saver._saver._copier = gate = Gate()
        save = saver.save(tmp_path / "a.ucp", job.state)
        job.backward()
        assert gate.reached.wait(60)
        threading.Timer(0.05, gate.open.set).start()
        step()
        assert gate.open.is_set()
        save.wait()
    assert flat(ucp.load(tmp_path / "a.ucp")) == expected
